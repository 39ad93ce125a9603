"""Optimizers: hand-computed steps, Keras's own on the same gradients, block by block."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from aner_nb.errors import CaseError
from aner_nb.optimizers import SGD, Adam, AdamW, OptimizerSpec, RMSprop, optimizer_from_record
from aner_nb.schedules import CosineDecay, ExponentialDecay, PiecewiseConstant

KINDS = {
    "sgd": SGD(0.1),
    "momentum": SGD(0.1, momentum=0.9),
    "nesterov": SGD(0.1, momentum=0.9, nesterov=True),
    "adam": Adam(0.05),
    "adamw": AdamW(0.05, weight_decay=0.1),
    "rmsprop": RMSprop(0.05),
    "rmsprop momentum": RMSprop(0.05, momentum=0.5),
    "rmsprop centered": RMSprop(0.05, centered=True),
    "rmsprop centered momentum": RMSprop(0.05, rho=0.5, momentum=0.5, centered=True),
}


def of_keras(spec: OptimizerSpec) -> Any:
    """Return Keras's optimizer of the same kind and settings."""
    import keras

    values = spec.to_record()
    name = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "rmsprop": "RMSprop"}[values.pop("kind")]
    return getattr(keras.optimizers, name)(**values)


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
    theirs = of_keras(spec)
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


EXACT = [
    SGD(0.1),
    SGD(0.1, momentum=0.875),
    SGD(0.1, momentum=0.875, nesterov=True),
    Adam(0.05, 0.875, 1 - 2**-10, 2**-23),
    Adam(0.05, 0.5, 0.75, 0.25),
    AdamW(0.05, 0.25, 0.875, 1 - 2**-10, 2**-23),
    AdamW(0.05, 0.0, 0.5, 0.75, 0.25),
    RMSprop(0.05, 0.875, 0.0, 2**-23),
    RMSprop(0.05, 0.875, 0.75, 2**-23),
    RMSprop(0.05, 0.875, 0.0, 2**-10, centered=True),
    RMSprop(0.05, 0.5, 0.75, 0.25, centered=True),
]
"""Keras takes its rates through float32, so these are numbers that float32 has: only rounding is left."""


@pytest.mark.tensorflow
@pytest.mark.parametrize("spec", EXACT, ids=str)
def test_every_step_is_that_of_keras_in_float64(spec: OptimizerSpec) -> None:
    import keras

    before = keras.config.floatx()
    keras.config.set_floatx("float64")  # the learning rate as well
    try:
        theirs = of_keras(spec)
        random = np.random.default_rng(2)
        parameters = random.standard_normal(9)
        variable = keras.Variable(parameters, dtype="float64")
        state = spec.init(9)
        for _ in range(20):
            gradient = random.standard_normal(9)
            theirs.apply([keras.ops.convert_to_tensor(gradient, "float64")], [variable])
            state.count += 1
            spec.update(parameters, gradient, state)
            np.testing.assert_allclose(parameters, np.asarray(variable), rtol=1e-12, atol=1e-13)
    finally:
        keras.config.set_floatx(before)


def test_two_steps_of_adam_by_hand() -> None:
    # Rates of 1/2 make every value exact but the roots: m = 1, v = 2; then m = 2.5, v = 9.
    spec = Adam(1.0, 0.5, 0.5, epsilon=0.25)
    parameters, state = np.array([3.0]), spec.init(1)
    state.count = 1
    spec.update(parameters, np.array([2.0]), state)
    assert [slot.tolist() for slot in state.slots] == [[1.0], [2.0]]
    first = 3 - (0.5**0.5 / 0.5) * 1.0 / (2.0**0.5 + 0.25)
    np.testing.assert_allclose(parameters, [first], rtol=1e-15)
    state.count = 2
    spec.update(parameters, np.array([4.0]), state)
    assert [slot.tolist() for slot in state.slots] == [[2.5], [9.0]]
    second = first - (0.75**0.5 / 0.75) * 2.5 / (3.0 + 0.25)
    np.testing.assert_allclose(parameters, [second], rtol=1e-15)


def test_the_first_step_of_adam_is_the_learning_rate() -> None:
    spec = Adam(0.125, epsilon=1e-30)
    parameters, state = np.zeros(3), spec.init(3)
    state.count = 1
    spec.update(parameters, np.array([1e-6, 1.0, -1e6]), state)
    np.testing.assert_allclose(parameters, [-0.125, -0.125, 0.125], rtol=1e-12)


@pytest.mark.parametrize(
    ("spec", "slots"),
    [
        (SGD(), 0),
        (SGD(momentum=0.5), 1),
        (Adam(), 2),
        (AdamW(), 2),
        (RMSprop(), 1),
        (RMSprop(momentum=0.5), 2),
        (RMSprop(centered=True), 2),
        (RMSprop(momentum=0.5, centered=True), 3),
    ],
)
def test_what_is_kept_between_steps_begins_at_zero(spec: OptimizerSpec, slots: int) -> None:
    state = spec.init(4)
    assert state.count == 0
    assert [slot.tolist() for slot in state.slots] == [[0.0] * 4] * slots


def test_a_block_of_the_state_shares_its_memory() -> None:
    state = Adam().init(6)
    part = state.block(slice(2, 4))
    part.slots[1][:] = 7.0
    assert state.slots[1].tolist() == [0.0, 0.0, 7.0, 7.0, 0.0, 0.0]
    assert np.shares_memory(part.scratch, state.scratch)


def test_the_gradient_is_left_as_it_was() -> None:
    for spec in KINDS.values():
        gradient, state = np.array([1.0, -2.0]), spec.init(2)
        state.count = 1
        spec.update(np.zeros(2), gradient, state)
        assert gradient.tolist() == [1.0, -2.0]


@pytest.mark.parametrize(
    "spec",
    [
        *KINDS.values(),
        Adam(0.01, 0.0, 0.5, 1.0),
        AdamW(ExponentialDecay(0.1, 100, 0.5, staircase=True)),
        SGD(CosineDecay(0.0, 100, 0.1, 0.2, 10), momentum=0.5),
        RMSprop(PiecewiseConstant([5, 9], [0.1, 0.01, 0.0])),
    ],
    ids=str,
)
def test_an_optimizer_survives_its_record(spec: OptimizerSpec) -> None:
    record = json.loads(json.dumps(spec.to_record()))
    assert optimizer_from_record(record) == spec


def test_a_name_alone_gives_the_defaults() -> None:
    assert optimizer_from_record("sgd") == SGD(0.01, 0.0, nesterov=False)
    assert optimizer_from_record("adam") == Adam(0.001, 0.9, 0.999, 1e-7)
    assert optimizer_from_record("adamw") == AdamW(0.001, 0.004, 0.9, 0.999, 1e-7)
    assert optimizer_from_record("rmsprop") == RMSprop(0.001, 0.9, 0.0, 1e-7, centered=False)


def test_whole_numbers_are_the_floats_that_they_equal() -> None:
    whole, real = SGD(1, momentum=0), SGD(1.0, momentum=0.0)
    assert json.dumps(whole.to_record()) == json.dumps(real.to_record())


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        ("lion", r"optimizer: {'kind': 'lion'} names no optimizer\. Give 'kind' as one of sgd, adam, adamw"),
        (None, "None names no optimizer"),
        ([], r"\[\] names no optimizer"),
        ({}, "{} names no optimizer"),
        ({"kind": ["sgd"]}, "names no optimizer"),
        (
            {"kind": "sgd", "rate": 1},
            r"optimizer: sgd has no 'rate'\. It takes learning_rate, momentum, nesterov",
        ),
        ({"kind": "adam", 1: 2, "a": 3}, "adam has no '1'"),
        (
            {"kind": "adam", "momentum": 0.9},
            "adam has no 'momentum'. It takes learning_rate, beta_1, beta_2, epsilon",
        ),
        (
            {"kind": "sgd", "learning_rate": 0},
            r"optimizer\.learning_rate: 0 is out of range\. Give a finite number above 0\.",
        ),
        ({"kind": "sgd", "learning_rate": "0.1"}, "learning_rate: '0.1' is out of range"),
        ({"kind": "sgd", "learning_rate": True}, "learning_rate: True is out of range"),
        ({"kind": "sgd", "learning_rate": math.inf}, "learning_rate: inf is out of range"),
        ({"kind": "sgd", "learning_rate": 10**400}, "learning_rate: 10+ is out of range"),
        (
            {"kind": "sgd", "momentum": 1},
            r"momentum: 1 is out of range\. Give a finite number of at least 0 and below 1\.",
        ),
        ({"kind": "sgd", "momentum": -0.1}, "momentum: -0.1 is out of range"),
        (
            {"kind": "sgd", "nesterov": "no"},
            "optimizer.nesterov: 'no' is neither true nor false. Write true or false",
        ),
        ({"kind": "sgd", "nesterov": 1}, "nesterov: 1 is neither"),
        ({"kind": "adam", "beta_1": 1.0}, "beta_1: 1.0 is out of range"),
        ({"kind": "adam", "beta_2": math.nan}, "beta_2: nan is out of range"),
        ({"kind": "rmsprop", "centered": 1}, "optimizer.centered: 1 is neither"),
        ({"kind": "adamw", "weight_decay": -1}, "weight_decay: -1 is out of range"),
        ({"kind": "adam", "epsilon": 0.0}, "epsilon: 0.0 is out of range. Give a finite number above 0"),
    ],
)
def test_what_is_no_optimizer_is_refused(record: object, sentence: str) -> None:
    with pytest.raises(CaseError, match=sentence):
        optimizer_from_record(record)


def test_a_negative_zero_is_zero() -> None:
    assert str(SGD(momentum=-0.0).momentum) == "0.0"


def test_a_schedule_is_asked_for_the_rate_of_the_update() -> None:
    spec = SGD(PiecewiseConstant([0, 1], [1.0, 0.5, 0.25]))
    parameters, state = np.zeros(1), spec.init(1)
    for expected in (-1.0, -1.5, -1.75, -2.0):
        state.count += 1
        spec.update(parameters, np.ones(1), state)
        assert parameters.tolist() == [expected]


def test_weights_decay_by_the_rate_of_the_update() -> None:
    spec = AdamW(PiecewiseConstant([0], [0.5, 0.25]), weight_decay=0.5)
    parameters, state = np.array([16.0]), spec.init(1)
    for expected in (12.0, 10.5):  # 16 - 16/2/2; 12 - 12/2/4
        state.count += 1
        spec.update(parameters, np.zeros(1), state)
        assert parameters.tolist() == [expected]
