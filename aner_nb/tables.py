"""Text tables of a study, for the terminal."""

from __future__ import annotations

import statistics
from typing import Final

from rich.table import Table

from aner_nb.case import Case
from aner_nb.receipts import TrialReceipt
from aner_nb.study import Study

_NANOSECONDS: Final = 1e9


def study_text_table(study: Study) -> Table:
    """Return one row a case: median [min:max] of both clocks, accuracy, largest rank's memory."""
    table = Table(title=rf"{study.suite.name}: median \[min : max] of the measured trials")
    for column in (
        "case",
        "ranks",
        "native fit, s",
        "complete command, s",
        "test",
        "largest rank, MiB",
        "trials",
    ):
        table.add_column(column, justify="left" if column in ("case", "ranks") else "right")
    for case in study.suite.cases:
        table.add_row(case.name, _ranks(case), *_figures(study, case))
    return table


def _ranks(case: Case) -> str:
    equal = len(set(case.weights)) == 1
    return " + ".join(
        str(placement) if equal else f"{placement} x{weight}"
        for placement, weight in zip(case.placements, case.weights, strict=True)
    )


def _figures(study: Study, case: Case) -> tuple[str, ...]:
    trials = study.measured(case)
    if not trials:
        own = [receipt for receipt in study.receipts if receipt.case_name == case.name]
        reasons = [receipt.failure.reason for receipt in own if receipt.failure is not None]
        status = own[-1].status.replace("_", " ") if own else "not yet run"
        return (f"{status}: {reasons[-1]}" if reasons else status, "", "", "", "0")
    fits = [trial.clocks.native_fit_ns / _NANOSECONDS for trial in trials if trial.clocks]
    commands = [trial.clocks.complete_command_ns / _NANOSECONDS for trial in trials if trial.clocks]
    return (
        _spread(fits, 3),
        _spread(commands, 2),
        _test(trials[0]),
        f"{max(_largest(trial) for trial in trials) / 2**20:,.0f}",
        str(len(trials)),
    )


def _spread(values: list[float], digits: int) -> str:
    middle = statistics.median(values)
    return f"{middle:.{digits}f} [{min(values):.{digits}f} : {max(values):.{digits}f}]"


def _test(trial: TrialReceipt) -> str:
    if trial.test is None or trial.test.loss is None:
        return ""
    return f"{trial.test.loss:.4f}" if trial.test.accuracy is None else f"{trial.test.accuracy:.2%}"


def _largest(trial: TrialReceipt) -> int:
    return max(rank.memory.worker_rss_high_water_bytes for rank in trial.ranks)
