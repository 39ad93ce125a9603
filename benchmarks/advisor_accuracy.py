"""How near the advisor comes: its predictions beside the medians of a study's finished run.

    python benchmarks/advisor_accuracy.py STUDY [--json FILE]

STUDY is a results folder or a public bundle. Each of its cases is calibrated for a few seconds on this machine, which
must be the one that the study ran on.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import aner_nb as aner
from aner_nb.predictions import CasePrediction, compared, predict_case


def main() -> None:
    """Print a table and the two figures that matter."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    study = aner.open_study(arguments.study)
    measured = {summary.case for summary in study.summary().cases if summary.native_fit}
    predicted: list[CasePrediction] = []
    for case in study.suite.cases:
        if case.name in measured:
            with aner.local_cluster([str(placement) for placement in case.placements]) as cluster:
                predicted.append(predict_case(case, cluster))
    found = compared(predicted, study)
    print(found)
    if arguments.json:
        arguments.json.write_text(json.dumps(found.rows(), indent=1))


if __name__ == "__main__":
    main()
