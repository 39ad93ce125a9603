"""Before any long run: what an update will take on every choice of ranks, and where the limit lies."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from aner_nb.balance import (
    CoordinatorCost,
    Prediction,
    RankCost,
    break_even_rows,
    predict,
    rank_choices,
    weights_for,
)
from aner_nb.calibration import Calibration, calibrate
from aner_nb.case import Case, Placement
from aner_nb.errors import CaseError
from aner_nb.ranks import RankHost

_MAX_PLACEMENTS = 8


@dataclass(frozen=True, slots=True)
class Advice:
    """What to expect of a case on some placements."""

    case: str
    calibration: Calibration
    predictions: tuple[Prediction, ...]
    """Every standalone and every group, quickest first."""
    break_even_rows: int | None
    """Smallest batch from which all ranks together beat the fastest alone, as far down as was measured; None: none in
    reach."""
    break_even_parameters: int | None
    """The same as a size of model, at the case's batch; None: none in reach."""

    @property
    def best(self) -> Prediction:
        """The quickest choice."""
        return self.predictions[0]

    @property
    def best_alone(self) -> Prediction:
        """The quickest standalone placement."""
        return next(found for found in self.predictions if len(found.ranks) == 1)

    def weights(self, prediction: Prediction) -> tuple[int, ...]:
        """Return the weights of a prediction's shares, for a case's ranks."""
        return weights_for(prediction.shares)

    def native_fit_s(self, prediction: Prediction) -> float:
        """Return the predicted native fit: all updates, and a validation after each epoch."""
        found = self.calibration
        return found.updates * prediction.update_s + found.epochs * found.validation_s

    def rows(self) -> list[dict[str, object]]:
        """Return the predictions as a table's rows."""
        names = self.calibration.placements
        return [
            {
                "ranks": " + ".join(names[rank] for rank in found.ranks),
                "shares": " : ".join(map(str, found.shares)),
                "update_ms": found.update_s * 1e3,
                "error_ms": found.error_s * 1e3,
                "native_fit_s": self.native_fit_s(found),
                "speed": self.best_alone.update_s / found.update_s,
                "bottleneck": found.bottleneck,
            }
            for found in self.predictions
        ]

    def __str__(self) -> str:
        lines = [f"{self.case}: predicted update of {self.calibration.rows:,} rows"]
        lines.append(
            f"{'ranks':<40} {'shares':>14} {'ms':>9} {'+-':>7} {'fit, s':>8} {'speed':>6}  bottleneck"
        )
        lines += [
            f"{row['ranks']!s:<40} {row['shares']!s:>14} {row['update_ms']:>9.3f} {row['error_ms']:>7.3f} "
            f"{row['native_fit_s']:>8.3f} {row['speed']:>6.2f}  {row['bottleneck']}"
            for row in self.rows()
        ]
        return "\n".join([*lines, self.verdict()])

    def verdict(self) -> str:
        """Return the advice in a sentence or two."""
        speed = self.best_alone.update_s / self.best.update_s
        names = self.calibration.placements
        if len(self.best.ranks) > 1:
            together = " + ".join(names[rank] for rank in self.best.ranks)
            head = f"Use {together} together: {speed:.2f} times the speed of the fastest alone."
        else:
            head = f"Use {names[min(self.best.ranks)]} alone: no group is quicker."
        if len(names) == 1:
            return head
        rows = self.break_even_rows
        batch = "at no batch up to 4,194,304 rows" if rows is None else f"from a batch of {rows:,} rows on"
        if rows == self.calibration.least_rows:
            batch += " (smaller ones were not measured)"
        size = self.break_even_parameters
        model = "no size of model" if size is None else f"about {size:,} parameters on"
        prefix = "" if size is None else "from "
        return (
            f"{head} All {len(names)} ranks together pay {batch}; at a batch of "
            f"{self.calibration.rows:,}, {prefix}{model}."
        )


def advise(case: Case, host: RankHost, placements: Sequence[str | Placement] | None = None) -> Advice:
    """Measure for a few seconds and predict an update on every choice of the placements.

    Parameters
    ----------
    case
        What is to be trained; its weights play no part.
    placements
        Up to 8; None: the case's ranks.

    Raises
    ------
    CaseError
        If there are more than 8 placements.
    AnerError
        If the placements cannot be hosted.
    """
    chosen = tuple(placements) if placements is not None else case.placements
    if len(chosen) > _MAX_PLACEMENTS:
        raise CaseError(
            f"{len(chosen)} placements make too many groups.",
            where="placements",
            remedy=f"Name the {_MAX_PLACEMENTS} that matter.",
        )
    calibration = calibrate(dataclasses.replace(case, ranks=chosen), host)
    return advise_from(case.name, calibration)


def advise_from(name: str, calibration: Calibration) -> Advice:
    """Return the advice that follows from a calibration; pure."""
    predictions = [_predict(calibration, choice) for choice in rank_choices(len(calibration.placements))]
    predictions.sort(key=lambda found: (found.update_s, len(found.ranks)))
    return Advice(
        name,
        calibration,
        tuple(predictions),
        break_even_rows(
            calibration.alone,
            calibration.coordinator,
            together=calibration.together,
            least=calibration.least_rows,
        ),
        _break_even_parameters(calibration),
    )


def _predict(calibration: Calibration, choice: Sequence[int]) -> Prediction:
    costs = calibration.alone if len(choice) == 1 else calibration.together
    return predict(costs, calibration.coordinator, calibration.rows, choice)


def _break_even_parameters(calibration: Calibration) -> int | None:
    """Scale what is proportional to the parameters until the group of all pays.

    A Dense row costs in proportion to the parameters, and so do the coordinator's pass and the exchange; the fixed
    cost of a request does not. The parameters nearly cancel, so there may be no such size.
    """
    everyone = tuple(range(len(calibration.placements)))
    for step in range(-40, 41):
        factor = 2.0 ** (step / 4)
        coordinator = CoordinatorCost(
            calibration.coordinator.apply_s * factor, calibration.coordinator.exchange_s * factor
        )
        alone = [_scaled(cost, factor) for cost in calibration.alone]
        together = [_scaled(cost, factor) for cost in calibration.together]
        group = predict(together, coordinator, calibration.rows, everyone).update_s
        single = min(predict(alone, coordinator, calibration.rows, (rank,)).update_s for rank in everyone)
        if group < single:
            return max(1, round(calibration.parameters * factor))
    return None


def _scaled(cost: RankCost, factor: float) -> RankCost:
    return RankCost(cost.overhead_s, cost.row_s * factor, cost.error_s)
