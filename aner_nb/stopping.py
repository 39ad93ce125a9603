"""When training stops before its last epoch: decided on validation losses alone."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from aner_nb.errors import CaseError
from aner_nb.records import from_fields, hold_numbers, hold_truth


@dataclass(frozen=True, slots=True)
class EarlyStopping:
    """Stop when the validation loss has not fallen for some epochs, as Keras's callback on ``val_loss``.

    Examples
    --------
    >>> rule = EarlyStopping(patience=2)
    >>> rule.end([3.0, 2.0, 2.5]), rule.end([3.0, 2.0, 2.5, 2.1]), rule.best([3.0, 2.0, 2.5, 2.1])
    (None, 4, 1)
    """

    patience: int
    """Epochs in a row without a better loss after which training stops; at least 1."""
    min_delta: float = 0.0
    """A loss is better only if it is lower than the best one by more than this."""
    restore_best: bool = False
    """Whether the final parameters are those after the best epoch."""

    def __post_init__(self) -> None:
        if isinstance(self.patience, bool) or not isinstance(self.patience, int) or self.patience < 1:
            raise CaseError(
                f"{self.patience!r} is not a whole number of at least 1.",
                where="stop_early.patience",
                remedy="Give a number of epochs.",
            )
        hold_numbers(self, "stop_early.", min_delta=(0.0, math.inf))
        hold_truth(self, "stop_early.", "restore_best")

    def to_record(self) -> dict[str, Any]:
        """Return the rule as plain JSON values."""
        return dataclasses.asdict(self)

    def better(self, loss: float, best: float) -> bool:
        """Return whether a loss is better than the best one; a loss that is not a number never is."""
        return loss < best - self.min_delta or (math.isnan(best) and not math.isnan(loss))

    def best(self, losses: Sequence[float]) -> int:
        """Return the epoch, 0 for the first, whose loss is the best."""
        best = 0
        for epoch, loss in enumerate(losses):
            if self.better(loss, losses[best]):
                best = epoch
        return best

    def end(self, losses: Sequence[float]) -> int | None:
        """Return the number of epochs after which training stops; None: it does not."""
        best = 0
        for epoch, loss in enumerate(losses):
            if self.better(loss, losses[best]):
                best = epoch
            elif epoch - best >= self.patience:
                return epoch + 1
        return None


def early_stopping_from_record(record: object, where: str) -> EarlyStopping:
    """Build the rule from its fields.

    Raises
    ------
    CaseError
        If a field is unknown, missing or wrong.
    """
    if not isinstance(record, Mapping):
        raise CaseError(
            f"{record!r} is no rule.",
            where=where,
            remedy="Write {patience: 5}, with min_delta and restore_best if wanted.",
        )
    return from_fields(cast("Mapping[str, Any]", record), EarlyStopping, name="stop_early", where=where)


@dataclass(slots=True)
class StopWatch:
    """The losses seen so far and, if they will be restored, the best parameters."""

    rule: EarlyStopping | None
    losses: list[float] = field(default_factory=list)
    best_epoch: int = 0
    """0 for the first."""
    best: NDArray[np.float64] | None = None

    def go_on_from(self, losses: Sequence[float], best: NDArray[np.float64] | None) -> None:
        """Take over what a checkpoint has."""
        self.losses, self.best = list(losses), best
        self.best_epoch = self.rule.best(self.losses) if self.rule is not None else 0

    def validated(self, loss: float, parameters: NDArray[np.float64]) -> None:
        """Take in an epoch's validation loss."""
        if self.rule is None:
            return
        self.losses.append(loss)
        if len(self.losses) == 1 or self.rule.better(loss, self.losses[self.best_epoch]):
            self.best_epoch = len(self.losses) - 1
            if self.rule.restore_best:
                self.best = parameters.copy()

    def over(self) -> bool:
        """Return whether training ends here."""
        return self.rule is not None and len(self.losses) - 1 - self.best_epoch >= self.rule.patience

    def restore_best(self, parameters: NDArray[np.float64]) -> None:
        """Write the best parameters over the last ones, if the rule says so."""
        if self.best is not None:
            parameters[:] = self.best
