"""Optimizers on the flat master vector: a frozen description, an explicit state, an update in place.

To add one: a frozen dataclass with `init` and `update`, and its entry in `OPTIMIZERS`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from aner_nb.records import TINY, hold_numbers, hold_truth, of_kind
from aner_nb.schedules import LearningRate, Schedule, rate_of, schedule_from_record, schedule_to_record

Vector = NDArray[np.float64]
"""A flat float64 vector, shape (parameters,)."""


@dataclass(slots=True)
class OptimizerState:
    """What an optimizer remembers between updates; owned by the coordinator."""

    count: int
    """Updates begun so far: 1 in the first."""
    slots: tuple[Vector, ...]
    """Vectors of the parameters' shape: velocity, moments."""
    scratch: Vector
    """Working memory, not part of the state."""

    def block(self, block: slice) -> OptimizerState:
        """Return the state of a block of the parameters, as views."""
        return OptimizerState(self.count, tuple(slot[block] for slot in self.slots), self.scratch[block])


class _Optimizer:
    """What all optimizers share: how they are written down."""

    __slots__ = ()

    kind: ClassVar[str]

    def to_record(self) -> dict[str, Any]:
        """Return the description as plain JSON values."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        rate: LearningRate = values["learning_rate"]
        return {
            "kind": self.kind,
            **values,
            "learning_rate": schedule_to_record(rate) if isinstance(rate, Schedule) else rate,
        }


@dataclass(frozen=True, slots=True)
class SGD(_Optimizer):
    """Gradient descent, with optional momentum as in Keras: v = m·v - r·g; p = p + v.

    With ``nesterov``: p = p + m·v - r·g, after v was renewed.
    """

    kind: ClassVar[str] = "sgd"

    learning_rate: LearningRate = 0.01
    """A number, or a schedule from `schedules`."""
    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        _hold(self, momentum=(0.0, 1.0))
        hold_truth(self, "optimizer.", "nesterov")

    def init(self, size: int) -> OptimizerState:
        """Return the state before the first update of `size` parameters."""
        slots = (np.zeros(size),) if self.momentum else ()
        return OptimizerState(0, slots, np.empty(size))

    def update(self, parameters: Vector, gradient: Vector, state: OptimizerState) -> None:
        """Apply update number ``state.count`` in place; `gradient` is the mean over the global batch.

        Elementwise: a block of the parameters, with `OptimizerState.block`, gives the block of the result.
        """
        step = np.multiply(gradient, rate_of(self.learning_rate, state.count - 1), out=state.scratch)
        if not state.slots:
            parameters -= step
            return
        (velocity,) = state.slots
        velocity *= self.momentum
        velocity -= step
        if self.nesterov:
            parameters -= step
            parameters += np.multiply(velocity, self.momentum, out=state.scratch)
        else:
            parameters += velocity


@dataclass(frozen=True, slots=True)
class Adam(_Optimizer):
    """Adam (Kingma and Ba, 2015, algorithm 1, in the folded form of its section 2, as Keras has it)."""

    kind: ClassVar[str] = "adam"

    learning_rate: LearningRate = 0.001
    """A number, or a schedule from `schedules`."""
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7

    def __post_init__(self) -> None:
        _hold(self, beta_1=(0.0, 1.0), beta_2=(0.0, 1.0), epsilon=(TINY, math.inf))

    def init(self, size: int) -> OptimizerState:
        """Return the state before the first update of `size` parameters."""
        return OptimizerState(0, (np.zeros(size), np.zeros(size)), np.empty(size))

    def update(self, parameters: Vector, gradient: Vector, state: OptimizerState) -> None:
        """Apply update number ``state.count`` in place; `gradient` is the mean over the global batch.

        Elementwise: a block of the parameters, with `OptimizerState.block`, gives the block of the result.
        """
        first, second = state.slots
        work = state.scratch
        first *= self.beta_1
        first += np.multiply(gradient, 1 - self.beta_1, out=work)
        second *= self.beta_2
        np.multiply(gradient, gradient, out=work)
        work *= 1 - self.beta_2
        second += work
        correction = math.sqrt(1 - self.beta_2**state.count) / (1 - self.beta_1**state.count)
        np.sqrt(second, out=work)
        work += self.epsilon
        np.divide(first, work, out=work)
        work *= rate_of(self.learning_rate, state.count - 1) * correction
        parameters -= work


@dataclass(frozen=True, slots=True)
class AdamW(_Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019), as Keras has it.

    Before Adam's step, p = p - p·w·r: with the rate of the update, and all parameters, biases too.
    """

    kind: ClassVar[str] = "adamw"

    learning_rate: LearningRate = 0.001
    """A number, or a schedule from `schedules`."""
    weight_decay: float = 0.004
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7

    def __post_init__(self) -> None:
        _hold(
            self,
            weight_decay=(0.0, math.inf),
            beta_1=(0.0, 1.0),
            beta_2=(0.0, 1.0),
            epsilon=(TINY, math.inf),
        )

    def init(self, size: int) -> OptimizerState:
        """Return the state before the first update of `size` parameters."""
        return self._adam.init(size)

    def update(self, parameters: Vector, gradient: Vector, state: OptimizerState) -> None:
        """Apply update number ``state.count`` in place; `gradient` is the mean over the global batch.

        Elementwise: a block of the parameters, with `OptimizerState.block`, gives the block of the result.
        """
        decay = np.multiply(parameters, self.weight_decay, out=state.scratch)
        decay *= rate_of(self.learning_rate, state.count - 1)
        parameters -= decay
        self._adam.update(parameters, gradient, state)

    @property
    def _adam(self) -> Adam:
        return Adam(self.learning_rate, self.beta_1, self.beta_2, self.epsilon)


@dataclass(frozen=True, slots=True)
class RMSprop(_Optimizer):
    """RMSprop (Hinton, 2012), plain, with momentum, or centered, as Keras has it.

    s = ρ·s + (1-ρ)·g²; step = r·g / √(s + ε), where ``centered`` takes a² off s, a being g averaged alike. With
    momentum: v = m·v + step; p = p - v.
    """

    kind: ClassVar[str] = "rmsprop"

    learning_rate: LearningRate = 0.001
    """A number, or a schedule from `schedules`."""
    rho: float = 0.9
    momentum: float = 0.0
    epsilon: float = 1e-7
    centered: bool = False

    def __post_init__(self) -> None:
        _hold(self, rho=(0.0, 1.0), momentum=(0.0, 1.0), epsilon=(TINY, math.inf))
        hold_truth(self, "optimizer.", "centered")

    def init(self, size: int) -> OptimizerState:
        """Return the state before the first update of `size` parameters."""
        slots = 1 + (self.momentum > 0) + self.centered
        return OptimizerState(0, tuple(np.zeros(size) for _ in range(slots)), np.empty(size))

    def update(self, parameters: Vector, gradient: Vector, state: OptimizerState) -> None:
        """Apply update number ``state.count`` in place; `gradient` is the mean over the global batch.

        Elementwise: a block of the parameters, with `OptimizerState.block`, gives the block of the result.
        """
        square, *others = state.slots
        work = np.multiply(gradient, gradient, out=state.scratch)
        work *= 1 - self.rho
        square *= self.rho
        square += work
        if self.centered:
            average = others[-1]
            average *= self.rho
            average += np.multiply(gradient, 1 - self.rho, out=work)
            np.multiply(average, average, out=work)
            np.subtract(square, work, out=work)
            work += self.epsilon
        else:
            np.add(square, self.epsilon, out=work)
        np.sqrt(work, out=work)
        np.divide(gradient, work, out=work)
        work *= rate_of(self.learning_rate, state.count - 1)
        if self.momentum:
            velocity = others[0]
            velocity *= self.momentum
            velocity += work
            parameters -= velocity
        else:
            parameters -= work


OptimizerSpec = SGD | Adam | AdamW | RMSprop
OPTIMIZERS: Final[Mapping[str, type[OptimizerSpec]]] = {
    chosen.kind: chosen for chosen in (SGD, Adam, AdamW, RMSprop)
}


def optimizer_from_record(record: object, where: str = "optimizer") -> OptimizerSpec:
    """Build an optimizer from a name or from ``{"kind": name, …}``.

    Raises
    ------
    CaseError
        If the kind or one of its values is not known.
    """
    if isinstance(record, str):
        record = {"kind": record}
    if isinstance(record, Mapping) and isinstance(record.get("learning_rate"), Mapping):
        schedule = schedule_from_record(record["learning_rate"], f"{where}.learning_rate")
        record = {**record, "learning_rate": schedule}
    return of_kind(
        record, OPTIMIZERS, where=where, what="optimizer", example="{kind: sgd, learning_rate: 0.05}"
    )


def _hold(optimizer: OptimizerSpec, **bounds: tuple[float, float]) -> None:
    if not isinstance(optimizer.learning_rate, Schedule):
        bounds["learning_rate"] = (TINY, math.inf)
    hold_numbers(optimizer, "optimizer.", **bounds)
