"""Optimizers: hand-computed steps, Keras's own on the same gradients, block by block."""

from __future__ import annotations

import numpy as np
import pytest

from aner_nb.errors import CaseError
from aner_nb.optimizers import SGD, Adam, OptimizerSpec

KINDS = {
    "sgd": SGD(0.1),
    "momentum": SGD(0.1, momentum=0.9),
    "nesterov": SGD(0.1, momentum=0.9, nesterov=True),
    "adam": Adam(0.05),
}


def run(spec: OptimizerSpec, steps: int = 5, block: int = 0) -> np.ndarray:
    random = np.random.default_rng(1)
    parameters = random.standard_normal(7)
    state = spec.init(7)
    for _ in range(steps):
        gradient = random.standard_normal(7)
        state.count += 1
        if block:
            for start in range(0, 7, block):
                part = slice(start, start + block)
                spec.update(parameters[part], gradient[part], state.block(part))
        else:
            spec.update(parameters, gradient, state)
    return parameters


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (SGD(0.5), [0.5, -1.0]),
        (SGD(0.5, momentum=0.5), [0.375, -1.25]),
        (SGD(0.5, momentum=0.5, nesterov=True), [0.1875, -1.625]),
    ],
)
def test_two_steps_by_hand(spec: SGD, expected: list[float]) -> None:
    parameters = np.array([1.0, 0.0])
    state = spec.init(2)
    for _ in range(2):
        state.count += 1
        spec.update(parameters, np.array([0.5, 1.0]), state)
    np.testing.assert_allclose(parameters, expected, rtol=1e-15)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", [1, 3])
def test_blocks_give_the_bits_of_the_whole(kind: str, block: int) -> None:
    np.testing.assert_array_equal(run(KINDS[kind], block=block), run(KINDS[kind]))


@pytest.mark.tensorflow
@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_those_of_keras(kind: str) -> None:
    import keras

    spec = KINDS[kind]
    if isinstance(spec, Adam):
        theirs = keras.optimizers.Adam(spec.learning_rate)
    else:
        theirs = keras.optimizers.SGD(spec.learning_rate, momentum=spec.momentum, nesterov=spec.nesterov)
    random = np.random.default_rng(1)
    variable = keras.Variable(random.standard_normal(7), dtype="float64")
    for _ in range(5):
        theirs.apply([keras.ops.convert_to_tensor(random.standard_normal(7), "float64")], [variable])
    # Keras keeps learning rate and decay rates in float32.
    np.testing.assert_allclose(run(spec), np.asarray(variable), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("bad", [{"learning_rate": 0}, {"learning_rate": float("nan")}, {"momentum": 1.0}])
def test_values_out_of_range_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(CaseError, match="out of range"):
        SGD(**bad)
