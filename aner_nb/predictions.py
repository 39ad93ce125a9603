"""What the advisor says of a suite's cases before they run, kept beside what was then measured."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aner_nb.advisor import Advice, advise
from aner_nb.analysis import CaseSummary
from aner_nb.balance import Prediction, predict
from aner_nb.case import Case
from aner_nb.charts import advice_chart
from aner_nb.errors import AnerError
from aner_nb.plan import make_plan
from aner_nb.ranks import RankHost
from aner_nb.receipts import TrialReceipt
from aner_nb.store import ResultsFolder
from aner_nb.study import PlatformHost, Study, hosting, open_study
from aner_nb.suites import Suite, suite

_DOCUMENT = "predictions"


@dataclass(frozen=True, slots=True)
class CasePrediction:
    """What was expected of a case, with its own ranks and weights."""

    contract_id: str
    case: str
    update_s: float
    error_s: float
    """Of an update, from the calibration's own spread."""
    native_fit_s: float
    ratio: float | None
    """A group's speed in native fit over the fastest of its ranks alone; None: a standalone case."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A prediction, and what was measured of it since; None: not measured."""

    predicted: CasePrediction
    update_s: float | None
    native_fit_s: float | None
    ratio: float | None

    @property
    def error(self) -> float | None:
        """The prediction's relative error in native fit."""
        return None if self.native_fit_s is None else self.predicted.native_fit_s / self.native_fit_s - 1

    @property
    def right_winner(self) -> bool | None:
        """Whether the predicted winner of group and standalone is the measured one."""
        if self.predicted.ratio is None or self.ratio is None:
            return None
        return (self.predicted.ratio > 1) == (self.ratio > 1)


@dataclass(frozen=True, slots=True)
class Predictions:
    """The predictions of a suite's cases, in the suite's order."""

    cases: tuple[Comparison, ...]

    @property
    def median_error(self) -> float | None:
        """Median of the relative errors in native fit, without their signs; None: nothing is measured yet."""
        errors = [abs(found.error) for found in self.cases if found.error is not None]
        return statistics.median(errors) if errors else None

    @property
    def winners(self) -> tuple[int, int]:
        """Groups whose winner was named rightly, and groups that were measured."""
        known = [found.right_winner for found in self.cases if found.right_winner is not None]
        return sum(known), len(known)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row a case; milliseconds an update, seconds of native fit."""
        return [
            {
                "ranks": found.predicted.case,
                "update_ms": found.predicted.update_s * 1e3,
                "error_ms": found.predicted.error_s * 1e3,
                "measured_ms": None if found.update_s is None else found.update_s * 1e3,
                "native_fit_s": found.predicted.native_fit_s,
                "measured_fit_s": found.native_fit_s,
                "ratio": found.predicted.ratio,
                "measured_ratio": found.ratio,
            }
            for found in self.cases
        ]

    def chart(self, *, dark: bool = False) -> Any:
        """Draw the predicted update of each case with its error, and the measured one where there is one."""
        return advice_chart(self.rows(), dark=dark)

    def __str__(self) -> str:
        lines = [
            f"{'case':<28} {'predicted':>10} {'measured':>10} {'error':>7}   {'ratio':>5} {'measured':>8}"
        ]
        for found in self.cases:
            error = "" if found.error is None else f"{found.error:+.1%}"
            own = found.predicted
            lines.append(
                f"{own.case:<28} {own.native_fit_s:>8.3f} s {_text(found.native_fit_s, 's'):>10} "
                f"{error:>7}   {_text(own.ratio):>5} {_text(found.ratio):>8}"
            )
        if self.median_error is not None:
            right, pairs = self.winners
            lines.append(f"median error {self.median_error:.1%}; right winner in {right} of {pairs} groups")
        return "\n".join(lines)


def _text(value: float | None, unit: str = "") -> str:
    return "-" if value is None else f"{value:.3f} {unit}" if unit else f"{value:.2f}"


def predict_suite(
    which: str | Path | Suite, cluster: PlatformHost | None = None, *, out: str | Path
) -> Predictions:
    """Predict the cases of a suite, a few seconds each, and keep what was predicted in a results folder.

    Called before `run_suite` it says what to expect; called again afterwards, it calibrates nothing and sets what was
    measured beside it. What is predicted stays in the folder and is not published.

    Parameters
    ----------
    which
        Name of a suite of the package, path of a YAML file, or a `Suite`.
    cluster
        None: a local cluster with the suite's placements is started if something is left to predict.
    out
        The results folder; made if missing.

    Raises
    ------
    CaseError
        If the suite is wrong.
    StoreError
        If the folder cannot be used, or another run writes to it.
    AnerError
        If a case cannot be hosted.
    """
    chosen = which if isinstance(which, Suite) else suite(which)
    folder = ResultsFolder(Path(out))
    with folder.writing():
        kept = _kept(folder)
        left = [case for case in chosen.cases if case.contract_id not in kept]
        if left:
            with hosting(chosen, cluster) as host:
                for case in left:
                    kept[case.contract_id] = predict_case(case, host)
                    folder.save_document(_DOCUMENT, {"cases": [asdict(found) for found in kept.values()]})
        ran = folder.document("suite") is not None
    cases = [kept[case.contract_id] for case in chosen.cases]
    return compared(cases, open_study(out) if ran else None)


def compared(predicted: Sequence[CasePrediction], study: Study | None) -> Predictions:
    """Set what a study measured beside predictions of its cases."""
    summaries = {found.contract_id: found for found in study.summary().cases} if study else {}
    receipts = study.receipts if study else ()
    return Predictions(
        tuple(_compared(found, summaries.get(found.contract_id), receipts) for found in predicted)
    )


def predict_case(case: Case, host: RankHost) -> CasePrediction:
    """Calibrate a case for a few seconds and predict it with its own ranks and weights."""
    advice = advise(case, host)
    own = _own(case, advice)
    fit = advice.native_fit_s(own)
    ratio = advice.native_fit_s(advice.best_alone) / fit if case.is_group else None
    return CasePrediction(case.contract_id, case.name, own.update_s, own.error_s, fit, ratio)


def _own(case: Case, advice: Advice) -> Prediction:
    """Return the prediction for a case's own shares; where they are to be measured, for the best ones."""
    calibration = advice.calibration
    everyone = tuple(range(len(case.placements)))
    if case.balance == "auto":
        return next(found for found in advice.predictions if len(found.ranks) == len(everyone))
    costs = calibration.together if case.is_group else calibration.alone
    plan = make_plan(case, calibration.rows)
    shares = [stop - start for start, stop in next(plan.updates(0)).shards]
    return predict(costs, calibration.coordinator, calibration.rows, everyone, shares)


def _kept(folder: ResultsFolder) -> dict[str, CasePrediction]:
    record = folder.document(_DOCUMENT)
    try:
        found = [CasePrediction(**case) for case in record["cases"]] if record is not None else []
    except (KeyError, TypeError) as error:
        raise AnerError(
            "the predictions kept there cannot be read.",
            where=str(folder.path / f"{_DOCUMENT}.json"),
            remedy="Move the file away: they are measured afresh.",
        ) from error
    return {prediction.contract_id: prediction for prediction in found}


def _compared(
    predicted: CasePrediction, summary: CaseSummary | None, receipts: Sequence[TrialReceipt]
) -> Comparison:
    if summary is None or summary.native_fit is None:
        return Comparison(predicted, None, None, None)
    updates = [
        receipt.coordinator_phases["total"].median_ns
        for receipt in receipts
        if (receipt.contract_id, receipt.role, receipt.status)
        == (predicted.contract_id, "measured", "passed")
    ]
    ratio = summary.fit_comparison.ratio if summary.fit_comparison else None
    return Comparison(predicted, statistics.median(updates) / 1e9, summary.native_fit.median_ns / 1e9, ratio)
