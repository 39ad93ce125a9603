"""How training goes: L2, clipping, class weights and schedules beside Keras's own training, step by step."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aner_nb as aner
from aner_nb.case import case_from_record
from aner_nb.errors import CaseError
from aner_nb.layers import Dense, LayerNorm
from aner_nb.model import gradient_sum
from aner_nb.plain import read_yaml
from aner_nb.plan import Plan
from aner_nb.work import Work, make_work

SCHEDULE = {"kind": "cosine_decay", "initial_learning_rate": 0.0, "decay_steps": 8}
SCHEDULE |= {"warmup_target": 0.0625, "warmup_steps": 2}
RECORD: dict[str, Any] = {
    "name": "all",
    "data": {"source": "iris"},
    "layers": [
        {"units": 8, "l2": 0.125, "activation": "tanh"},
        {"kind": "layer_norm", "epsilon": 0.25},
        {"units": 3, "l2": 0.25},
    ],
    "batch": 30,
    "epochs": 3,
    "dtype": "float64",
    "optimizer": {"kind": "adamw", "learning_rate": SCHEDULE, "weight_decay": 0.25},
    "clip_norm": 0.25,
    "class_weights": [0.5, 1.0, 4.0],
    "channel": "inline",
    "ranks": ["numpy"],
}


def case_of(**changes: Any) -> aner.Case:
    return case_from_record({**RECORD, **changes})


def keras_model(work: Work) -> Any:
    """Return Keras's model of the same layers, with the initial parameters."""
    import keras

    layers: list[Any] = [keras.Input((work.model.features,))]
    for layer in work.model.layers:
        if isinstance(layer, LayerNorm):
            layers.append(keras.layers.LayerNormalization(epsilon=layer.epsilon, dtype="float64"))
            continue
        assert isinstance(layer, Dense)
        regularizer = keras.regularizers.L2(layer.l2) if layer.l2 else None
        layers.append(
            keras.layers.Dense(layer.units, layer.activation, kernel_regularizer=regularizer, dtype="float64")
        )
    model = keras.Sequential(layers)
    set_parameters(model, work, work.model.initial(work.case.seed))
    return model


def set_parameters(model: Any, work: Work, vector: np.ndarray) -> None:
    model.set_weights(list(work.model.layout.views(vector)))


def batches(work: Work) -> list[np.ndarray]:
    """Return the training rows of each update, in order."""
    plan, order = work.plan, work.plan.order()
    assert isinstance(plan, Plan)
    return [order[update.batch * plan.batch :][: update.rows] for update in plan.updates()]


def keras_optimizer(case: aner.Case) -> Any:
    import keras

    values = case.optimizer.to_record()
    del values["kind"]
    rate = values.pop("learning_rate")
    assert rate.pop("kind") == "cosine_decay"
    schedule = keras.optimizers.schedules.CosineDecay(**rate)
    return keras.optimizers.AdamW(schedule, global_clipnorm=case.clip_norm, **values)


@pytest.mark.tensorflow
def test_each_update_is_that_of_keras() -> None:
    import keras

    before = keras.config.floatx()
    keras.config.set_floatx("float64")
    try:
        case = case_of()
        work, _ = make_work(case)
        trial = aner.run(case).raise_unless_passed()
        model = keras_model(work)
        model.compile(
            keras_optimizer(case),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        train = work.data.train
        weights = dict(enumerate(work.model.class_weights))
        losses = []
        for rows in batches(work):
            model.reset_metrics()
            losses.append(
                float(model.train_on_batch(train.features[rows], train.targets[rows], class_weight=weights))
            )
        assert trial.parameters is not None
        assert trial.steps is not None
        # Keras keeps its schedules' and optimizers' constants in float32.
        np.testing.assert_allclose(trial.steps.loss, losses, rtol=1e-5)
        expected = np.concatenate([np.ravel(array) for array in model.get_weights()])
        np.testing.assert_allclose(trial.parameters, expected, rtol=1e-4, atol=1e-5)
    finally:
        keras.config.set_floatx(before)


def test_the_record_of_all_of_it_comes_back() -> None:
    case = case_of()
    assert case_from_record(case.to_record()) == case
    assert case.to_record()["layers"][0]["l2"] == 0.125
    assert case_of(class_weights="balanced").to_record()["class_weights"] == "balanced"
    assert len({case_of(**change).work_id for change in ({}, {"clip_norm": 1}, {"class_weights": None})}) == 3


def test_weighted_gradients_match_central_differences() -> None:
    work, _ = make_work(case_of())
    features, targets = work.data.train.features[:20], work.data.train.targets[:20]
    parameters = work.model.initial(1)
    gradient, unused = np.empty(parameters.size), np.empty(parameters.size)
    gradient_sum(work.model, parameters, features, targets, gradient)
    for index in range(parameters.size):
        ends = []
        for step in (1e-6, -1e-6):
            moved = parameters.copy()
            moved[index] += step
            ends.append(gradient_sum(work.model, moved, features, targets, unused))
        assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(gradient[index], rel=1e-6, abs=1e-6)


def test_balanced_weights_are_scikit_learns() -> None:
    from sklearn.utils.class_weight import compute_class_weight

    work, _ = make_work(case_of(class_weights="balanced", data={"source": "digits"}, layers=[10]))
    targets = work.data.train.targets
    expected = compute_class_weight("balanced", classes=np.arange(10), y=targets)
    np.testing.assert_allclose(work.model.class_weights, expected, rtol=1e-12)


def test_validation_and_test_know_neither_l2_nor_class_weights() -> None:
    plain = aner.run(case_of(class_weights=None, layers=[3], epochs=1, clip_norm=1e-300))
    other = aner.run(case_of(layers=[{"units": 3, "l2": 5.0}], epochs=1, clip_norm=1e-300))
    assert plain.receipt.test is not None
    assert other.receipt.test is not None
    # Clipped to nothing, both train by weight decay alone.
    assert other.receipt.test.loss == plain.receipt.test.loss
    assert other.receipt.validation[0].loss == plain.receipt.validation[0].loss
    assert other.receipt.validation[0].train_loss != plain.receipt.validation[0].train_loss


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"clip_norm": 0}, "case 'all': clip_norm: 0 is out of range. Give a finite number above 0"),
        ({"clip_norm": "long"}, "clip_norm: 'long' is out of range"),
        ({"class_weights": [1, -1, 1]}, "does not weigh the classes"),
        ({"class_weights": [1, 10**400]}, "does not weigh the classes"),
        ({"class_weights": {"a": 1}}, "does not weigh the classes"),
        ({"class_weights": []}, "does not weigh the classes"),
        ({"class_weights": "equal"}, "'equal' does not weigh the classes"),
        ({"class_weights": [1, 2]}, "there are 2 weights for 3 classes"),
        ({"layers": [{"units": 3, "l2": -1}]}, r"case 'all': layers\[0\]\.l2: -1 is out of range"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CaseError, match=sentence):
        make_work(case_of(**changes))


def test_numbers_have_no_classes_to_weigh() -> None:
    features, targets = np.zeros((30, 2)), np.linspace(0, 1, 30)
    case = aner.Case(
        "line", data=aner.arrays(features, targets), layers=[1], batch=10, epochs=1, class_weights=[1.0]
    )
    with pytest.raises(CaseError, match="the targets are numbers, not classes"):
        make_work(case)


def test_the_page_writes_one_case_in_two_ways() -> None:
    page = (Path(__file__).parent.parent / "docs" / "training.md").read_text("utf-8")
    yaml, code = (re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL) for kind in ("yaml", "python"))
    assert yaml and code  # the first blocks of each kind
    names: dict[str, Any] = {}
    exec(code[0], names)
    assert case_from_record(read_yaml(yaml[0], "page")) == names["case"]


def test_a_class_may_say_how_training_goes() -> None:
    class Flowers(aner.DenseNetwork):
        layers = (8, aner.Dropout(0.25), 3)
        clip_norm = 0.5
        class_weights = "balanced"
        stop_early = aner.EarlyStopping(3)

    case = Flowers().case(aner.iris(), ["numpy"])
    assert (case.clip_norm, case.class_weights, case.stop_early) == (0.5, "balanced", aner.EarlyStopping(3))
    assert case == case_from_record(case.to_record())


def test_a_case_shows_its_settings() -> None:
    page = case_of(stop_early={"patience": 3})._repr_html_()
    for words in (
        "8 tanh L2 0.125, layer norm, 3 linear L2 0.25",
        "0.5, 1.0, 4.0",
        "patience 3, min_delta 0.0",
    ):
        assert words in page
    assert "cosine_decay (initial_learning_rate 0.0, decay_steps 8" in page
    plain = aner.Case("plain", data=aner.iris(), layers=[3], batch=30, epochs=1)._repr_html_()
    assert "clip norm" not in plain
