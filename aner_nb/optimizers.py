"""Optimizers on the flat master vector: a frozen description, an explicit state, an update in place.

To add one: a frozen dataclass with `init` and `update`, and its entry in `OPTIMIZERS`.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from aner_nb.errors import CaseError

Vector = NDArray[np.float64]
"""A flat float64 vector, shape (parameters,)."""


_TINY: Final = 5e-324
"""The least number above 0."""


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


@dataclass(frozen=True, slots=True)
class SGD:
    """Gradient descent, with optional momentum as in Keras: v = m·v - r·g; p = p + v.

    With ``nesterov``: p = p + m·v - r·g, after v was renewed.
    """

    learning_rate: float = 0.01
    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        _check(self, learning_rate=(_TINY, math.inf), momentum=(0.0, 1.0))
        if not isinstance(self.nesterov, bool):
            raise CaseError(
                f"{self.nesterov!r} is neither true nor false.",
                where="optimizer.nesterov",
                remedy="Write true or false, without quotation marks.",
            )

    def to_record(self) -> dict[str, Any]:
        """Return the description as plain JSON values."""
        return {"kind": "sgd", **dataclasses.asdict(self)}

    def init(self, size: int) -> OptimizerState:
        """Return the state before the first update of `size` parameters."""
        slots = (np.zeros(size),) if self.momentum else ()
        return OptimizerState(0, slots, np.empty(size))

    def update(self, parameters: Vector, gradient: Vector, state: OptimizerState) -> None:
        """Apply update number ``state.count`` in place; `gradient` is the mean over the global batch.

        Elementwise: a block of the parameters, with `OptimizerState.block`, gives the block of the result.
        """
        step = np.multiply(gradient, self.learning_rate, out=state.scratch)
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
class Adam:
    """Adam (Kingma and Ba, 2015, algorithm 1, in the folded form of its section 2, as Keras has it)."""

    learning_rate: float = 0.001
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7

    def __post_init__(self) -> None:
        _check(
            self,
            learning_rate=(_TINY, math.inf),
            beta_1=(0.0, 1.0),
            beta_2=(0.0, 1.0),
            epsilon=(_TINY, math.inf),
        )

    def to_record(self) -> dict[str, Any]:
        """Return the description as plain JSON values."""
        return {"kind": "adam", **dataclasses.asdict(self)}

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
        work *= self.learning_rate * correction
        parameters -= work


OptimizerSpec = SGD | Adam
OPTIMIZERS: Final[Mapping[str, type[SGD | Adam]]] = {"sgd": SGD, "adam": Adam}


def optimizer_from_record(record: object, where: str = "optimizer") -> OptimizerSpec:
    """Build an optimizer from a name or from ``{"kind": name, …}``.

    Raises
    ------
    CaseError
        If the kind or one of its values is not known.
    """
    if isinstance(record, str):
        record = {"kind": record}
    values = dict(cast("Mapping[str, Any]", record)) if isinstance(record, Mapping) else {}
    kind = values.pop("kind", None)
    if not isinstance(kind, str) or kind not in OPTIMIZERS:
        raise CaseError(
            f"{record!r} names no optimizer.",
            where=where,
            remedy=f"Give 'kind' as one of {', '.join(OPTIMIZERS)}, for example "
            "{kind: sgd, learning_rate: 0.05}.",
        )
    chosen = OPTIMIZERS[kind]
    known = [field.name for field in dataclasses.fields(chosen)]
    unknown = sorted(set(map(str, values)) - set(known))
    if unknown:
        raise CaseError(f"{kind} has no {unknown[0]!r}.", where=where, remedy=f"It takes {', '.join(known)}.")
    return chosen(**values)


def _check(optimizer: SGD | Adam, **bounds: tuple[float, float]) -> None:
    """Hold the fields to ``low <= value < high``; whole numbers become floats: equal values have one record."""
    for name, (low, high) in bounds.items():
        value: object = getattr(optimizer, name)
        number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
        if not low <= number < min(high, sys.float_info.max):
            raise CaseError(
                f"{value!r} is out of range.",
                where=f"optimizer.{name}",
                remedy=("Give a finite number above 0" if low else "Give a finite number of at least 0")
                + (f" and below {high:g}." if math.isfinite(high) else "."),
            )
        object.__setattr__(optimizer, name, float(number) + 0.0)  # of -0.0 it makes 0.0
