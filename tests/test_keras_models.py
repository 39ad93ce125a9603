"""Keras models: which are taken, which are refused and why, and that a group trains them as one process does."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import aner_nb as aner
from aner_nb.case import case_from_record
from aner_nb.errors import CaseError
from aner_nb.keras_models import keras_model

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def layers() -> Any:
    from aner_nb.backends.keras import keras, prepare_coordinator

    prepare_coordinator()
    return keras.layers


def conv(layers: Any) -> Any:
    from keras import Sequential

    return Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(6, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )


def gru(layers: Any) -> Any:
    from keras import Sequential

    return Sequential([layers.Input((8, 8)), layers.GRU(12), layers.Dense(10)])


def attention(layers: Any) -> Any:
    from keras import Model

    rows = layers.Input((8, 8))
    seen = layers.MultiHeadAttention(2, 4)(rows, rows)
    both = layers.LayerNormalization()(layers.Add()([rows, seen]))
    ends = layers.Bidirectional(layers.LSTM(4))(both)
    return Model(rows, layers.Dense(10)(layers.Concatenate()([layers.Flatten()(both), ends])))


NETS = {"conv": conv, "gru": gru, "attention": attention}


def case(model: Any, **changes: Any) -> aner.Case:
    fields: dict[str, Any] = {
        "batch": 256,
        "epochs": 2,
        "optimizer": aner.Adam(0.01),
        "ranks": ["cpu:1"],
        "channel": "inline",
        "seed": 4,
    }
    return aner.Case("digits", data=aner.digits(), model=model, **{**fields, **changes})


@pytest.mark.parametrize("net", NETS)
def test_one_configuration_however_often_the_model_is_built(layers: Any, net: str) -> None:
    first, second = keras_model(NETS[net](layers)), keras_model(NETS[net](layers).to_json())
    assert first == second
    assert case(first).contract_id == case(second).contract_id
    again = case_from_record(json.loads(json.dumps(case(first).to_record())))
    assert again == case(first)
    assert "layers" not in case(first).to_record()


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-10), ("float32", 3e-5)])
def test_gradients_are_keras_own(layers: Any, net: str, dtype: str, tolerance: float) -> None:
    import keras
    import tensorflow as tf

    from aner_nb.work import make_work

    work, _ = make_work(case(NETS[net](layers)))
    part = work.partitions[0]
    features = part.features[:32].astype(np.float64)
    targets = part.targets[:32]
    vector, found = work.model.initial(4), np.empty(work.model.layout.size)
    loss = work.model.gradient_sum(vector, features, targets, found)
    from aner_nb.backends.keras import build

    own = build(keras_model(NETS[net](layers)).text, dtype)
    for variable, value in zip(own.trainable_variables, work.model.layout.views(vector), strict=True):
        variable.assign(value)
    with tf.GradientTape() as tape:
        rows = tf.reshape(tf.constant(features, dtype), [-1, *own.input_shape[1:]])
        judge = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum", dtype=dtype)
        total = judge(targets, own(rows, training=True))
    expected = np.concatenate(
        [np.ravel(g) for g in tape.gradient(total, [v.value for v in own.trainable_variables])]
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * np.abs(expected).max())
    assert loss == pytest.approx(float(total), rel=1e-5)


def test_initial_values_depend_on_the_seed_alone_and_leave_random_as_it_was(layers: Any) -> None:
    import random

    from aner_nb.work import make_work

    model = make_work(case(attention(layers)))[0].model
    random.seed(9)
    expected = random.Random(9).random()
    first = model.initial(1)
    assert random.random() == expected
    np.testing.assert_array_equal(first, model.initial(1))
    assert (first != model.initial(2)).any()
    query, _, key, *_ = model.layout.views(first)
    assert (query != key).any()


@pytest.mark.parametrize("net", ["conv", "gru"])
def test_one_process_learns(layers: Any, net: str) -> None:
    fitted = aner.fit(
        aner.digits(),
        model=NETS[net](layers),
        batch=256,
        epochs=20,
        optimizer=aner.Adam(0.01),
        ranks=["cpu:1"],
        channel="inline",
    )
    evaluation = fitted.evaluate()
    assert evaluation.accuracy is not None
    assert evaluation.accuracy > 0.7
    assert fitted.trial.receipt.test is not None
    assert fitted.trial.receipt.test.accuracy == evaluation.accuracy
    raw = aner.digits().load()
    assert np.mean(fitted.predict(raw.features) == raw.targets) > 0.7


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("net", "dtype", "tolerance"),
    [
        ("conv", "float32", 1e-4),
        ("gru", "float64", 1e-9),
        pytest.param("gru", "float32", 1e-4, marks=pytest.mark.long),
    ],
)
def test_a_group_learns_what_standalone_learns(
    layers: Any, cluster: aner.Cluster, net: str, dtype: str, tolerance: float
) -> None:
    vectors = []
    for ranks in (["cpu:1"], ["cpu:1", ("cpu:1", 3)]):
        wanted = case(NETS[net](layers), dtype=dtype, channel="auto", ranks=ranks, epochs=4)
        trial = aner.run(wanted, cluster)
        receipt = trial.raise_unless_passed().receipt
        assert all(check.passed for check in receipt.checks)
        assert all(set(rank.proof.operations_on) == {"CPU:0"} for rank in receipt.ranks)
        assert all(rank.trace_count == 1 for rank in receipt.ranks)
        assert trial.parameters is not None
        vectors.append(trial.parameters)
    alone, group = vectors
    assert np.abs(group - alone).max() <= tolerance * np.abs(alone).max()


def test_develop_computes_each_update_a_second_time(layers: Any) -> None:
    developed = aner.develop(
        aner.digits(), model=conv(layers), batch=512, epochs=1, ranks=["cpu:1"], channel="inline"
    )
    assert max(update.gradient_difference for update in developed.updates) < 1e-5
    assert any("Conv2D" in name for name in developed.operations)


def test_a_run_goes_on_from_its_checkpoint(layers: Any, tmp_path: Any) -> None:
    wanted = case(gru(layers), epochs=2)
    whole = aner.run(wanted).raise_unless_passed().parameters
    ended = []

    def stop() -> bool:
        return bool(ended)

    keep = aner.Durability(tmp_path / "state.safetensors", every=1)

    def watch(event: Any) -> None:
        if type(event).__name__ == "EpochValidated":
            ended.append(event)

    cut = aner.run(wanted, durability=keep, stop=stop, subscribers=[watch])
    rest = aner.run(wanted, durability=keep).raise_unless_passed()
    assert rest.parameters is not None and whole is not None
    np.testing.assert_array_equal(rest.parameters, whole)
    assert cut.receipt.status in ("cancelled", "passed")


def test_class_weights_and_regression(layers: Any) -> None:
    from keras import Sequential

    weighted = aner.run(case(conv(layers), class_weights=[2.0] + [1.0] * 9, epochs=1))
    plain = aner.run(case(conv(layers), epochs=1))
    assert weighted.raise_unless_passed().parameters is not None
    assert (weighted.parameters != plain.raise_unless_passed().parameters).any()
    random = np.random.default_rng(0)
    rows = random.standard_normal((300, 6))
    net = Sequential([layers.Input((6,)), layers.Dense(8, activation="tanh"), layers.Dense(2)])
    numbers = aner.fit(
        aner.arrays(rows, rows @ random.standard_normal((6, 2))),
        model=net, batch=50, epochs=30, optimizer=aner.Adam(0.01), channel="inline",
    )  # fmt: skip
    assert numbers.evaluate().loss < 2.0
    assert numbers.predict(rows).shape == (300, 2)


def refused(layers: Any) -> dict[str, tuple[Any, str]]:
    from keras import Input, Model, Sequential, regularizers

    def flat(*own: Any, last: Any = None) -> Any:
        return Sequential([Input((64,)), *own, last or layers.Dense(10)])

    rows, other = Input((64,)), Input((64,))
    merged = Model([rows, other], layers.Dense(10)(layers.Add()([rows, other])))
    summed = Model(rows, layers.Dense(10)(rows + layers.Dense(64)(rows)))
    mixed = Model(rows, layers.Dense(10)(layers.UnitNormalization(axis=0)(rows)))
    return {
        "batch norm": (flat(layers.BatchNormalization()), "BatchNormalization is refused: it normalizes by"),
        "dropout": (flat(layers.Dropout(0.5)), "Dropout is refused: its random.*aner.Dropout"),
        "noise": (flat(layers.GaussianNoise(0.1)), "GaussianNoise is refused: its random"),
        "code": (flat(layers.Lambda(lambda x: x)), "Lambda is refused: it holds code"),
        "normalization": (flat(layers.Normalization()), "normalized by the training rows already"),
        "regularizer": (flat(layers.Dense(4, kernel_regularizer=regularizers.L2(1e-3))), "L2|kernel_regularizer"),
        "frozen": (flat(layers.Dense(4, trainable=False)), "it is frozen"),
        "softmax": (flat(last=layers.Dense(10, activation="softmax")), "ends with softmax"),
        "softmax layer": (flat(layers.Dense(10), last=layers.Softmax()), "ends with softmax"),
        "half": (flat(layers.Dense(4, dtype="mixed_float16")), "mixed_float16"),
        "two inputs": (merged, "several inputs"),
        "operator": (summed, r"keras\.layers\.Add in place of \+"),
        "across rows": (mixed, "depends on the other rows"),
        "no shape": (Sequential([layers.Dense(10)]), "not the configuration|the shape of a row"),
        "wide": (Sequential([Input((8, 9)), layers.Flatten(), layers.Dense(10)]), "the data has 64 features"),
        "outputs": (flat(last=layers.Dense(9)), "9 outputs, the data 10 classes"),
        "stateful": (
            Sequential([Input((8, 8), batch_size=4), layers.GRU(3, stateful=True), layers.Dense(10)]),
            "state from batch to batch",
        ),
        "recurrent dropout": (
            Sequential([Input((8, 8)), layers.GRU(3, recurrent_dropout=0.1), layers.Dense(10)]),
            "recurrent_dropout is 0.1",
        ),
        "nonsense": ("[1, 2]", "not the configuration"),
        "number": (7, "not the configuration"),
    }  # fmt: skip


REFUSED = [
    "batch norm", "dropout", "noise", "code", "normalization", "regularizer", "frozen", "softmax", "softmax layer",
    "half", "two inputs", "operator", "across rows", "no shape", "wide", "outputs", "stateful", "recurrent dropout",
    "nonsense", "number",
]  # fmt: skip


@pytest.mark.parametrize("which", REFUSED)
def test_what_breaks_the_contract_is_refused_with_its_reason(layers: Any, which: str) -> None:
    model, message = refused(layers)[which]
    with pytest.raises(CaseError, match=message):
        aner.run(case(model))


def test_every_refusal_is_tried(layers: Any) -> None:
    assert sorted(refused(layers)) == sorted(REFUSED)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("module",), "os"),
        (("class_name",), "system"),
        (("registered_name",), "mine>Thing"),
        (("config", "kernel_initializer", "module"), "subprocess"),
        (("config", "kernel_initializer", "class_name"), "Popen"),
        (("config", "activation"), {"class_name": "function", "config": "gelu", "module": "builtins"}),
        (("config", "activation"), {"class_name": "__lambda__", "config": {"value": "4wAAAA=="}}),
        (("config", "bias_initializer"), {"class_name": "__numpy__", "config": {}}),
    ],
)
def test_a_configuration_that_names_code_is_refused_before_keras_sees_it(
    layers: Any, place: tuple[str, ...], value: Any
) -> None:
    record = json.loads(conv(layers).to_json())
    item = record["config"]["layers"][1]
    for name in place[:-1]:
        item = item[name]
    item[place[-1]] = value
    with pytest.raises(CaseError, match="not among the layers|not the configuration"):
        keras_model(json.dumps(record))


def test_one_of_layers_and_model_and_no_numpy(layers: Any) -> None:
    model = keras_model(conv(layers))
    with pytest.raises(CaseError, match="both layers and a model"):
        case(model, layers=[10])
    with pytest.raises(CaseError, match="computed by TensorFlow, not by NumPy"):
        case(model, ranks=["numpy"])
    with pytest.raises(CaseError, match="does not fit its sha256"):
        keras_model({**model.to_record(), "sha256": "0" * 64})
    with pytest.raises(CaseError, match="over 1,048,576 bytes"):
        keras_model(" " * 2**21)


def test_views_show_the_layers(layers: Any) -> None:
    from aner_nb.views import case_html
    from aner_nb.widgets.case_picker import facts, work_text

    shown = case(conv(layers))
    assert "conv2d, max_pooling2d, flatten, dense" in case_html(shown)
    assert ("layers", "conv2d, max_pooling2d, flatten, dense") in facts(shown)
    assert "conv2d" in work_text(shown)
