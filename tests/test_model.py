"""The reference model: gradients against finite differences, sums, initial values, evaluation."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aner_nb as aner
from aner_nb import network as module
from aner_nb.errors import CaseError
from aner_nb.layers import Dense
from aner_nb.model import Model, forward, gradient_sum, make_model, operations
from aner_nb.network import evaluate
from aner_nb.sources import fingerprint

ACTIVATIONS = ("linear", "relu", "tanh", "sigmoid")
LOSSES = ("softmax_cross_entropy", "mean_squared_error")


def example(loss: str, activation: str, rows: int = 20) -> tuple[Model, np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(3)
    last = "linear" if loss == "softmax_cross_entropy" else activation
    model = Model(6, (Dense(5, activation), Dense(4, last)), loss)  # type: ignore[arg-type]
    features = random.standard_normal((rows, 6))
    targets = random.integers(0, 4, rows) if loss == LOSSES[0] else random.standard_normal((rows, 4))
    return model, model.initial(1) + 0.05 * random.standard_normal(model.layout.size), features, targets


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_match_central_differences(loss: str, activation: str) -> None:
    model, parameters, features, targets = example(loss, activation)
    gradient, unused = np.empty(parameters.size), np.empty(parameters.size)
    gradient_sum(model, parameters, features, targets, gradient)
    for index in range(parameters.size):
        step = 1e-6
        ahead, behind = parameters.copy(), parameters.copy()
        ahead[index] += step
        behind[index] -= step
        high = gradient_sum(model, ahead, features, targets, unused)
        low = gradient_sum(model, behind, features, targets, unused)
        estimate = (high - low) / (2 * step)
        assert estimate == pytest.approx(gradient[index], rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_shards_add_up_to_the_whole(loss: str) -> None:
    model, parameters, features, targets = example(loss, "tanh")
    whole, part = np.empty(parameters.size), np.empty(parameters.size)
    total = gradient_sum(model, parameters, features, targets, whole)
    summed, losses = np.zeros(parameters.size), 0.0
    for block in (slice(0, 3), slice(3, 3), slice(3, 20)):
        losses += gradient_sum(model, parameters, features[block], targets[block], part)
        summed += part
    np.testing.assert_allclose(summed, whole, rtol=1e-12, atol=1e-12)
    assert losses == pytest.approx(total, rel=1e-12)


def test_no_rows_give_zeros() -> None:
    model, parameters, features, targets = example(LOSSES[0], "relu")
    out = np.full(parameters.size, 7.0)
    assert gradient_sum(model, parameters, features[:0], targets[:0], out) == 0.0
    assert not out.any()


def test_initial_values_are_the_same_everywhere() -> None:
    model = Model(4, (Dense(16, "relu"), Dense(3, "linear", "he_uniform")), "softmax_cross_entropy")
    assert fingerprint(model.initial(0)) == "3978e314408bbb7a791e6b3c8f2eba0edf0b16e7e59a54d147910c1c2e72caf0"


def test_views_share_the_vectors_memory() -> None:
    model = Model(4, (Dense(3, "relu"),), "mean_squared_error")
    vector = np.zeros(15)
    weights, biases = model.layout.views(vector)
    weights[0, 0], biases[2] = 1.0, 2.0
    assert vector[0] == 1.0
    assert vector[14] == 2.0


def test_evaluation_in_blocks_is_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    model, parameters, features, targets = example(LOSSES[0], "relu", rows=50)
    whole = evaluate(model, parameters, features, targets)
    monkeypatch.setattr(module, "_EVALUATION_ROWS", 7)
    blocks = evaluate(model, parameters, features, targets)
    assert blocks.accuracy == whole.accuracy
    assert blocks.loss == pytest.approx(whole.loss, rel=1e-12)


def test_the_reference_graph_is_listed() -> None:
    names = operations(Model(4, (Dense(3, "relu"), Dense(2, "linear")), "softmax_cross_entropy"))
    assert names[:3] == ("dense_0/matmul", "dense_0/bias_add", "dense_0/relu")
    assert "dense_0/matmul/input_gradient" not in names


@pytest.mark.parametrize(
    ("layers", "loss", "message"),
    [
        ([16, 4], None, "the last layer has 4 units, the data 3 classes. End the list with 3"),
        ([Dense(3, "relu")], None, "applies softmax itself"),
        ([16, 3], "mean_squared_error", "does not fit the data's classification targets"),
    ],
)
def test_what_does_not_fit_the_data_is_refused(layers: list[int], loss: str | None, message: str) -> None:
    case = aner.Case("c", data=aner.iris(), layers=layers, batch=3, epochs=1, loss=loss)
    with pytest.raises(CaseError, match=message):
        make_model(case, features=4, outputs=3, task="classification")


# ---------------------------------------------------------------- gradients


def numeric(model: Model, parameters: np.ndarray, features: np.ndarray, targets: np.ndarray) -> np.ndarray:
    unused, estimate = np.empty(parameters.size), np.empty(parameters.size)
    for index in range(parameters.size):
        step = 1e-5 * max(1.0, abs(parameters[index]))
        ahead, behind = parameters.copy(), parameters.copy()
        ahead[index] += step
        behind[index] -= step
        high = gradient_sum(model, ahead, features, targets, unused)
        low = gradient_sum(model, behind, features, targets, unused)
        estimate[index] = (high - low) / (ahead[index] - behind[index])
    return estimate


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("hidden", [0, 1, 3])
def test_the_gradient_of_any_depth_is_the_slope(loss: str, activation: str, hidden: int) -> None:
    random = np.random.default_rng(hidden + 10)
    last = "linear" if loss == LOSSES[0] else activation
    layers = (*(Dense(5, activation) for _ in range(hidden)), Dense(3, last))  # type: ignore[arg-type]
    model = Model(4, layers, loss)  # type: ignore[arg-type]
    features = random.standard_normal((11, 4))
    targets = random.integers(0, 3, 11) if loss == LOSSES[0] else random.standard_normal((11, 3))
    parameters = 0.6 * random.standard_normal(model.layout.size)
    gradient = np.empty(parameters.size)
    gradient_sum(model, parameters, features, targets, gradient)
    estimate = numeric(model, parameters, features, targets)
    assert np.linalg.norm(gradient - estimate) < 1e-6 * np.linalg.norm(gradient)


def test_a_loss_and_its_gradient_by_hand() -> None:
    softmax = Model(1, (Dense(2, "linear"),), "softmax_cross_entropy")
    out = np.empty(4)
    # Logits 0 and log 3: shares 1/4 and 3/4.
    parameters = np.array([0.0, np.log(3.0), 0.0, 0.0])
    loss = gradient_sum(softmax, parameters, np.ones((2, 1)), np.array([0, 1]), out)
    assert loss == pytest.approx(np.log(4) + np.log(4 / 3), rel=1e-15)
    np.testing.assert_allclose(out, [-0.5, 0.5, -0.5, 0.5], rtol=1e-14)
    squares = Model(1, (Dense(2, "linear"),), "mean_squared_error")
    # Outputs 2 and 6, targets 1 and 9: (1 + 9) / 2, slopes 1 and -3.
    loss = gradient_sum(
        squares, np.array([1.0, 3.0, 0.0, 0.0]), np.array([[2.0]]), np.array([[1.0, 9.0]]), out
    )
    assert loss == 5.0
    assert out.tolist() == [2.0, -6.0, 1.0, -3.0]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_large_numbers_neither_overflow_nor_warn(activation: str) -> None:
    model = Model(2, (Dense(3, activation), Dense(2, "linear")), "softmax_cross_entropy")  # type: ignore[arg-type]
    for dtype in (np.float32, np.float64):
        parameters = np.full(model.layout.size, -30.0, dtype)
        features = np.array([[100.0, 100.0], [-100.0, -100.0], [1.0, 0.0]], dtype)
        out = np.full(model.layout.size, np.nan)
        loss = gradient_sum(model, parameters, features, np.array([0, 1, 0], np.int32), out)
        assert np.isfinite(loss)
        assert np.isfinite(out).all()


@pytest.mark.parametrize("loss", LOSSES)
def test_the_arithmetic_is_that_of_the_parameters_and_the_sum_is_float64(loss: str) -> None:
    model, parameters, features, targets = example(loss, "tanh")
    single, double = np.full(parameters.size, np.nan), np.empty(parameters.size)
    numbers = targets if loss == LOSSES[0] else targets.astype(np.float32)
    gradient_sum(model, parameters.astype(np.float32), features.astype(np.float32), numbers, single)
    gradient_sum(model, parameters, features, targets, double)
    np.testing.assert_array_equal(single, single.astype(np.float32))
    np.testing.assert_allclose(single, double, rtol=1e-4, atol=1e-4)
    assert single.tolist() != double.tolist()
    rows = forward(model, parameters.astype(np.float32), features.astype(np.float32))
    assert {output.dtype for output in rows} == {np.dtype(np.float32)}
    assert [output.shape for output in rows] == [(20, 6), (20, 5), (20, 4)]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_no_rows_give_zeros_everywhere(loss: str, activation: str) -> None:
    model, parameters, features, targets = example(loss, activation)
    out = np.full(parameters.size, np.nan)
    assert gradient_sum(model, parameters, features[:0], targets[:0], out) == 0.0
    assert out.tolist() == [0.0] * parameters.size


@settings(max_examples=50)
@given(st.lists(st.integers(0, 20), max_size=4), st.sampled_from(LOSSES))
def test_however_rows_are_cut_the_shards_add_up(cuts: list[int], loss: str) -> None:
    model, parameters, features, targets = example(loss, "sigmoid")
    whole, part, total = np.empty(parameters.size), np.empty(parameters.size), np.zeros(parameters.size)
    gradient_sum(model, parameters, features, targets, whole)
    places = [0, *sorted(cuts), 20]
    for start, stop in itertools.pairwise(places):
        gradient_sum(model, parameters, features[start:stop], targets[start:stop], part)
        total += part
    np.testing.assert_allclose(total, whole, rtol=1e-11, atol=1e-12)


def test_inputs_are_left_as_they_were() -> None:
    model, *inputs = example(LOSSES[1], "relu")
    before = [array.copy() for array in inputs]
    gradient_sum(model, *inputs, np.empty(inputs[0].size))
    evaluate(model, *inputs)
    for array, copy in zip(inputs, before, strict=True):
        np.testing.assert_array_equal(array, copy)


# ---------------------------------------------------------------- layout and initial values


def test_the_layout_is_weights_then_biases_layer_by_layer() -> None:
    layout = Model(4, (Dense(16, "relu"), Dense(3, "linear")), "softmax_cross_entropy").layout
    assert layout.shapes == ((4, 16), (16,), (16, 3), (3,))
    assert layout.sizes == (64, 16, 48, 3)
    assert layout.size == 131
    vector = np.arange(131.0)
    views = layout.views(vector)
    assert all(np.shares_memory(view, vector) for view in views)
    assert np.concatenate([view.reshape(-1) for view in views]).tolist() == vector.tolist()


def test_initial_weights_lie_within_their_limits_and_biases_are_zero() -> None:
    layers = (Dense(50, "relu", "he_uniform"), Dense(40, "tanh"), Dense(3, "linear", "zeros"))
    model = Model(30, layers, "softmax_cross_entropy")
    first, bias, second, other, third, last = model.layout.views(model.initial(5))
    assert not any(array.any() for array in (bias, other, third, last))
    for weights, limit in ((first, (6 / 30) ** 0.5), (second, (6 / 90) ** 0.5)):
        assert 0.98 * limit < np.abs(weights).max() <= limit
        assert abs(weights.mean()) < 0.05 * limit
        assert weights.std() == pytest.approx(limit / 3**0.5, rel=0.05)


def test_the_seed_and_the_layer_choose_the_values() -> None:
    model = Model(4, (Dense(4, "relu"), Dense(4, "linear")), "mean_squared_error")
    first, _, second, _ = model.layout.views(model.initial(0))
    assert first.tolist() != second.tolist()
    assert model.initial(0).tolist() == model.initial(0).tolist()
    assert model.initial(0).tolist() != model.initial(1).tolist()


# ---------------------------------------------------------------- evaluation


def test_an_evaluation_by_hand() -> None:
    model = Model(1, (Dense(2, "linear"),), "softmax_cross_entropy")
    found = evaluate(model, np.array([0.0, np.log(3.0), 0.0, 0.0]), np.ones((4, 1)), np.array([1, 1, 1, 0]))
    assert (found.rows, found.accuracy) == (4, 0.75)
    assert found.loss == pytest.approx((3 * np.log(4 / 3) + np.log(4)) / 4, rel=1e-15)


def test_of_equal_outputs_the_first_counts() -> None:
    model = Model(1, (Dense(3, "linear", "zeros"),), "softmax_cross_entropy")
    found = evaluate(model, model.initial(0), np.ones((3, 1)), np.array([0, 1, 2]))
    assert found.accuracy == pytest.approx(1 / 3)
    assert found.loss == pytest.approx(np.log(3), rel=1e-15)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("rows", [1, 4095, 4096, 4097, 9000])
def test_real_blocks_give_the_mean_over_all_rows(loss: str, rows: int) -> None:
    model, parameters, features, targets = example(loss, "tanh", rows)
    found = evaluate(model, parameters, features, targets)
    total = gradient_sum(model, parameters, features, targets, np.empty(parameters.size))
    assert found.rows == rows
    assert found.loss == pytest.approx(total / rows, rel=1e-12)
    if loss == LOSSES[1]:
        assert found.accuracy is None
    else:
        hits = forward(model, parameters, features)[-1].argmax(axis=1) == targets
        assert found.accuracy == hits.mean()


# ---------------------------------------------------------------- models of cases


@pytest.mark.parametrize(("task", "loss"), [("classification", LOSSES[0]), ("regression", LOSSES[1])])
@pytest.mark.parametrize("written", [True, False])
def test_the_loss_follows_the_data(task: str, loss: str, written: bool) -> None:
    case = aner.Case(
        "c",
        data=aner.iris(),
        layers=[16, 3],
        batch=3,
        epochs=1,
        loss=loss if written else None,  # type: ignore[arg-type]
    )
    model = make_model(case, features=4, outputs=3, task=task)
    assert model == Model(4, (Dense(16, "relu"), Dense(3, "linear")), loss)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("layers", "loss", "task", "message"),
    [
        (
            [16, 4],
            None,
            "regression",
            r"^case 'c': layers: the last layer has 4 units, the data 3 target columns\. End the list with 3\.$",
        ),
        (
            [16, 3],
            LOSSES[0],
            "regression",
            "case 'c': loss: softmax_cross_entropy does not fit the data's regression targets",
        ),
        ([16, 3], LOSSES[1], "classification", "Write softmax_cross_entropy, or leave the field out"),
        (
            [16, Dense(3, "sigmoid")],
            None,
            "classification",
            "layers: the last layer's activation is sigmoid, but the loss applies softmax itself. Leave the last activation out",
        ),
    ],
)
def test_each_model_that_does_not_fit_gets_its_sentence(
    layers: list[int], loss: str | None, task: str, message: str
) -> None:
    case = aner.Case("c", data=aner.iris(), layers=layers, batch=3, epochs=1, loss=loss)  # type: ignore[arg-type]
    with pytest.raises(CaseError, match=message):
        make_model(case, features=4, outputs=3, task=task)


def test_a_regression_may_end_with_an_activation() -> None:
    case = aner.Case("c", data=aner.iris(), layers=[Dense(3, "tanh")], batch=3, epochs=1)
    assert make_model(case, features=4, outputs=3, task="regression").layers == (Dense(3, "tanh"),)


def test_the_reference_graph_is_listed_whole() -> None:
    names = operations(Model(4, (Dense(3, "relu"), Dense(2, "linear")), "softmax_cross_entropy"))
    assert names == (
        "dense_0/matmul",
        "dense_0/bias_add",
        "dense_0/relu",
        "dense_1/matmul",
        "dense_1/bias_add",
        "softmax_cross_entropy",
        "softmax_cross_entropy/gradient",
        "dense_1/matmul/weights_gradient",
        "dense_1/bias_add/gradient",
        "dense_1/matmul/input_gradient",
        "dense_0/relu/gradient",
        "dense_0/matmul/weights_gradient",
        "dense_0/bias_add/gradient",
    )
