"""Learning rates that change: functions of the update's number and of nothing else.

Since nothing is remembered, a run that goes on from a checkpoint has the rates of one that never stopped. To add one:
a frozen dataclass with `rate`, and its entry in `SCHEDULES`.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, cast

from aner_nb.errors import CaseError
from aner_nb.records import TINY, hold_numbers, hold_truth, of_kind

_WHERE: Final = "optimizer.learning_rate"


@dataclass(frozen=True, slots=True)
class ExponentialDecay:
    """As in Keras: ``initial_learning_rate * decay_rate ** (update / decay_steps)``.

    Examples
    --------
    >>> ExponentialDecay(0.1, decay_steps=100, decay_rate=0.5).rate(200)
    0.025
    """

    kind: ClassVar[str] = "exponential_decay"

    initial_learning_rate: float
    decay_steps: int
    """Updates after which the rate is multiplied by `decay_rate`."""
    decay_rate: float
    staircase: bool = False
    """Whether the rate falls in steps, after each `decay_steps` updates."""

    def __post_init__(self) -> None:
        hold_numbers(self, f"{_WHERE}.", initial_learning_rate=(TINY, math.inf), decay_rate=(TINY, math.inf))
        hold_truth(self, f"{_WHERE}.", "staircase")
        _hold_steps(self, "decay_steps", 1)

    def rate(self, update: int) -> float:
        """Return the learning rate of update number `update`, 0 for the first."""
        position = update // self.decay_steps if self.staircase else update / self.decay_steps
        return self.initial_learning_rate * self.decay_rate**position


@dataclass(frozen=True, slots=True)
class CosineDecay:
    """As in Keras: half a cosine from the initial rate to `alpha` times it, after a linear warm-up if there is one.

    Examples
    --------
    >>> schedule = CosineDecay(0.0, decay_steps=100, warmup_target=0.1, warmup_steps=10)
    >>> schedule.rate(5), schedule.rate(10), schedule.rate(110)
    (0.05, 0.1, 0.0)
    """

    kind: ClassVar[str] = "cosine_decay"

    initial_learning_rate: float
    """Of update 0; with a warm-up it may be 0."""
    decay_steps: int
    """Updates of the decay, those of the warm-up not counted."""
    alpha: float = 0.0
    """The last rate, as a share of the highest."""
    warmup_target: float | None = None
    """The rate at the warm-up's end, from which the decay begins; None: no warm-up."""
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        least = TINY if self.warmup_target is None else 0.0
        hold_numbers(self, f"{_WHERE}.", initial_learning_rate=(least, math.inf), alpha=(0.0, math.inf))
        if self.warmup_target is not None:
            hold_numbers(self, f"{_WHERE}.", warmup_target=(TINY, math.inf))
        _hold_steps(self, "decay_steps", 1)
        _hold_steps(self, "warmup_steps", 0)
        if (self.warmup_target is None) != (self.warmup_steps == 0):
            raise CaseError(
                "a warm-up needs both warmup_target and warmup_steps.",
                where=_WHERE,
                remedy="Give both, or neither.",
            )

    def rate(self, update: int) -> float:
        """Return the learning rate of update number `update`, 0 for the first."""
        highest = self.initial_learning_rate if self.warmup_target is None else self.warmup_target
        if update < self.warmup_steps:
            climb = highest - self.initial_learning_rate
            return climb * (update / self.warmup_steps) + self.initial_learning_rate
        done = min(update - self.warmup_steps, self.decay_steps) / self.decay_steps
        cosine = 0.5 * (1.0 + math.cos(math.pi * done))
        return highest * ((1 - self.alpha) * cosine + self.alpha)


@dataclass(frozen=True, slots=True)
class PiecewiseConstant:
    """As Keras's PiecewiseConstantDecay: ``values[i]`` up to and with update ``boundaries[i]``, then the next.

    Examples
    --------
    >>> schedule = PiecewiseConstant([100, 200], [0.1, 0.01, 0.001])
    >>> schedule.rate(100), schedule.rate(101), schedule.rate(1000)
    (0.1, 0.01, 0.001)
    """

    kind: ClassVar[str] = "piecewise_constant"

    boundaries: Sequence[int]
    """Numbers of updates, rising."""
    values: Sequence[float]
    """One more than there are boundaries."""

    def __post_init__(self) -> None:
        bounds, values = _items(self.boundaries), _items(self.values)
        rising = all(
            isinstance(item, int) and not isinstance(item, bool) and item > before
            for item, before in zip(bounds, (-1, *bounds), strict=False)
        )
        if not bounds or not rising or len(values) != len(bounds) + 1:
            raise CaseError(
                f"boundaries {self.boundaries!r} and values {self.values!r} don't fit each other.",
                where=_WHERE,
                remedy="Give rising numbers of updates, and one learning rate more than boundaries, "
                "such as [100, 200] and [0.1, 0.01, 0.001].",
            )
        for value in values:
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or not 0 <= value < sys.float_info.max
            ):
                raise CaseError(
                    f"{value!r} is no learning rate.",
                    where=f"{_WHERE}.values",
                    remedy="Give finite numbers of at least 0.",
                )
        object.__setattr__(self, "boundaries", tuple(bounds))
        object.__setattr__(self, "values", tuple(float(value) + 0.0 for value in values))

    def rate(self, update: int) -> float:
        """Return the learning rate of update number `update`, 0 for the first."""
        return self.values[sum(update > boundary for boundary in self.boundaries)]


Schedule = ExponentialDecay | CosineDecay | PiecewiseConstant
SCHEDULES: Final[Mapping[str, type[Schedule]]] = {
    chosen.kind: chosen for chosen in (ExponentialDecay, CosineDecay, PiecewiseConstant)
}

LearningRate = float | Schedule


def rate_of(learning_rate: LearningRate, update: int) -> float:
    """Return the learning rate of update number `update`, 0 for the first."""
    return learning_rate if isinstance(learning_rate, (float, int)) else learning_rate.rate(update)


def schedule_to_record(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule as plain JSON values."""
    values = dataclasses.asdict(schedule)
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    return {"kind": schedule.kind, **plain}


def schedule_from_record(record: object, where: str = _WHERE) -> Schedule:
    """Build a schedule from ``{"kind": name, …}``.

    Raises
    ------
    CaseError
        If the kind or one of its values is not known.
    """
    return of_kind(
        record,
        SCHEDULES,
        where=where,
        what="schedule",
        example="{kind: cosine_decay, initial_learning_rate: 0.1, decay_steps: 1000}",
    )


def _hold_steps(schedule: object, name: str, least: int) -> None:
    value: object = getattr(schedule, name)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**53:
        raise CaseError(
            f"{value!r} is not a whole number of at least {least}.",
            where=f"{_WHERE}.{name}",
            remedy="Give a number of updates.",
        )


def _items(value: object) -> tuple[Any, ...]:
    return tuple(cast("Sequence[Any]", value)) if isinstance(value, list | tuple) else ()
