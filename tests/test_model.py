"""The reference model: gradients against finite differences, sums, initial values, evaluation."""

from __future__ import annotations

import numpy as np
import pytest

import aner_nb as aner
from aner_nb import model as module
from aner_nb.case import Dense
from aner_nb.errors import CaseError
from aner_nb.model import Model, evaluate, gradient_sum, make_model, operations
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
