"""Learning-rate schedules: Keras's values, records, refusals."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aner_nb.errors import CaseError
from aner_nb.schedules import (
    CosineDecay,
    ExponentialDecay,
    PiecewiseConstant,
    Schedule,
    rate_of,
    schedule_from_record,
    schedule_to_record,
)

ALL: list[Schedule] = [
    ExponentialDecay(0.125, 7, 0.75),
    ExponentialDecay(0.125, 7, 0.75, staircase=True),
    CosineDecay(0.125, 40),
    CosineDecay(0.125, 40, alpha=0.25),
    CosineDecay(0.0, 40, warmup_target=0.5, warmup_steps=8),
    CosineDecay(0.25, 40, alpha=0.125, warmup_target=0.5, warmup_steps=1),
    PiecewiseConstant([3, 9, 30], [0.5, 0.25, 0.125, 0.0625]),
]


def of_keras(schedule: Schedule) -> Any:
    """Return Keras's schedule of the same kind and settings."""
    import keras

    values = schedule_to_record(schedule)
    names = {
        "exponential_decay": "ExponentialDecay",
        "cosine_decay": "CosineDecay",
        "piecewise_constant": "PiecewiseConstantDecay",
    }
    return getattr(keras.optimizers.schedules, names[values.pop("kind")])(**values)


@pytest.mark.tensorflow
@pytest.mark.parametrize("schedule", ALL, ids=str)
def test_rates_are_those_of_keras(schedule: Schedule) -> None:
    theirs = of_keras(schedule)
    for update in range(60):
        # Keras computes schedules in float32.
        assert schedule.rate(update) == pytest.approx(float(theirs(update)), rel=3e-6, abs=2e-8)


@pytest.mark.parametrize("schedule", ALL, ids=str)
def test_a_schedule_survives_its_record(schedule: Schedule) -> None:
    assert schedule_from_record(schedule_to_record(schedule)) == schedule


def test_a_number_is_the_rate_of_every_update() -> None:
    assert [rate_of(0.5, update) for update in (0, 1, 10**9)] == [0.5, 0.5, 0.5]


@given(st.integers(0, 10**9), st.integers(1, 1000), st.integers(1, 1000), st.floats(0, 1))
def test_a_cosine_stays_between_its_ends(update: int, steps: int, warm_up: int, alpha: float) -> None:
    schedule = CosineDecay(0.0, steps, alpha, warmup_target=1.0, warmup_steps=warm_up)
    rate = schedule.rate(update)
    assert (0.0 if update < warm_up else alpha * (1 - 1e-12)) <= rate <= 1.0 + 1e-12
    assert update < warm_up + steps or rate == alpha


@given(
    st.lists(st.integers(0, 100), min_size=1, unique=True).map(sorted),
    st.integers(0, 120),
)
def test_pieces_change_after_their_boundary(boundaries: list[int], update: int) -> None:
    values = [float(index) for index in range(len(boundaries) + 1)]
    rate = PiecewiseConstant(boundaries, values).rate(update)
    expected = next((index for index, last in enumerate(boundaries) if update <= last), len(boundaries))
    assert rate == expected


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        ({"kind": "linear"}, r"names no schedule\. Give 'kind' as one of exponential_decay, cosine_decay"),
        ({"kind": "cosine_decay"}, "cosine_decay needs 'initial_learning_rate'"),
        (
            {"kind": "cosine_decay", "initial_learning_rate": 0.1, "decay_steps": 0},
            r"learning_rate\.decay_steps: 0 is not a whole number of at least 1",
        ),
        (
            {"kind": "cosine_decay", "initial_learning_rate": 0, "decay_steps": 5},
            r"learning_rate\.initial_learning_rate: 0 is out of range",
        ),
        (
            {"kind": "cosine_decay", "initial_learning_rate": 0.1, "decay_steps": 5, "warmup_steps": 3},
            "a warm-up needs both",
        ),
        (
            {"kind": "exponential_decay", "initial_learning_rate": 0.1, "decay_steps": 5, "decay_rate": -1},
            "decay_rate: -1 is out of range",
        ),
        (
            {
                "kind": "exponential_decay",
                "initial_learning_rate": 1,
                "decay_steps": 5,
                "decay_rate": 1,
                "staircase": "no",
            },
            "staircase: 'no' is neither true nor false",
        ),
        ({"kind": "piecewise_constant", "boundaries": [2, 1], "values": [1, 2, 3]}, "don't fit each other"),
        ({"kind": "piecewise_constant", "boundaries": [], "values": [1]}, "don't fit each other"),
        ({"kind": "piecewise_constant", "boundaries": [2], "values": [1, 2, 3]}, "don't fit each other"),
        ({"kind": "piecewise_constant", "boundaries": 2, "values": 3}, "don't fit each other"),
        (
            {"kind": "piecewise_constant", "boundaries": [2], "values": [1, "fast"]},
            "'fast' is no learning rate",
        ),
        ({"kind": "piecewise_constant", "boundaries": [2], "values": [1, 10**400]}, "is no learning rate"),
        ({"kind": "piecewise_constant", "boundaries": [2], "values": [1, -0.5]}, "-0.5 is no learning rate"),
    ],
)
def test_what_is_no_schedule_is_refused(record: object, sentence: str) -> None:
    with pytest.raises(CaseError, match=sentence):
        schedule_from_record(record)
