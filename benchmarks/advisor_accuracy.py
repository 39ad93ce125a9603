"""How near the advisor comes: its predictions before the run beside the medians of a study's finished run.

    aner-nb run cpu --out results
    python benchmarks/advisor_accuracy.py results [--json FILE]

Each case of the study is calibrated for a few seconds on this machine, which must be the one that the study ran on.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path

import aner_nb as aner
from aner_nb.analysis import CaseSummary
from aner_nb.balance import Prediction, predict
from aner_nb.case import Case
from aner_nb.plan import make_plan
from aner_nb.work import make_work


@dataclass(frozen=True, slots=True)
class Row:
    """One case: seconds of native fit, and of a group whether it wins."""

    case: str
    predicted_s: float
    measured_s: float
    predicted_ratio: float | None
    """Speed over the fastest of its ranks alone; None: a standalone case."""
    measured_ratio: float | None

    @property
    def error(self) -> float:
        """The prediction's relative error."""
        return self.predicted_s / self.measured_s - 1

    @property
    def right_winner(self) -> bool | None:
        """Whether the predicted winner of group and standalone is the measured one."""
        if self.predicted_ratio is None or self.measured_ratio is None:
            return None
        return (self.predicted_ratio > 1) == (self.measured_ratio > 1)


def prediction_for(case: Case, advice: aner.Advice) -> Prediction:
    """Return the prediction for a case's own ranks and weights."""
    calibration = advice.calibration
    everyone = tuple(range(len(case.placements)))
    costs = calibration.together if case.is_group else calibration.alone
    plan = make_plan(case, make_work(case)[0].plan.train_rows)
    first = next(plan.updates(0))
    shares = [stop - start for start, stop in first.shards]
    return predict(costs, calibration.coordinator, calibration.rows, everyone, shares)


def compare(case: Case, summary: CaseSummary, cluster: aner.Cluster) -> Row:
    """Calibrate a case and set what follows beside what was measured."""
    assert summary.native_fit is not None
    advice = aner.advise(case, cluster)
    own = advice.native_fit_s(prediction_for(case, advice))
    measured = summary.fit_comparison.ratio if summary.fit_comparison else None
    ratio = advice.native_fit_s(advice.best_alone) / own if measured is not None else None
    return Row(case.name, own, summary.native_fit.median_ns / 1e9, ratio, measured)


def main() -> None:
    """Print a table and the two figures that matter."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    study = aner.open_study(arguments.study)
    summaries = {summary.case: summary for summary in study.summary().cases if summary.native_fit}
    cases = [case for case in study.suite.cases if case.name in summaries]
    rows: list[Row] = []
    for case in cases:
        with aner.local_cluster([str(placement) for placement in case.placements]) as cluster:
            rows.append(compare(case, summaries[case.name], cluster))
        row = rows[-1]
        ratios = (
            "" if row.predicted_ratio is None else f"{row.predicted_ratio:6.2f} {row.measured_ratio:6.2f}"
        )
        print(
            f"{row.case:<24} predicted {row.predicted_s:7.3f} s  measured {row.measured_s:7.3f} s  "
            f"{row.error:+6.1%}  {ratios}",
            flush=True,
        )
    errors = statistics.median(abs(row.error) for row in rows)
    pairs = [row.right_winner for row in rows if row.right_winner is not None]
    print(
        f"median error {errors:.1%} of {len(rows)} cases; right winner in {sum(pairs)} of {len(pairs)} pairs"
    )
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
