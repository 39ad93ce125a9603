"""A study as pictures and figures: SVG charts that need no script, and one row of figures a case."""

from __future__ import annotations

import base64
import copy
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import vl_convert

from aner_nb.case import Case
from aner_nb.receipts import TrialReceipt
from aner_nb.study import Study
from aner_nb.views import table, text

MOST_CASES: Final = 24
"""Most cases in one chart: more bars cannot be told apart."""

_NANOSECONDS: Final = 1e9


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of one case."""

    case: Case
    ranks: str
    native_fit: float | None
    """Median of the measured trials, seconds."""
    complete_command: float | None
    """The same."""
    test: float | None
    """Accuracy, or loss for numbers."""
    classifies: bool
    largest_rank: float | None
    """Largest worker memory, MiB."""
    trials: int
    status: str
    """``passed``, or why there are no figures."""


def rows_of(study: Study) -> list[Row]:
    """Return one row for each case of the suite, in its order; linear in the number of trials."""
    own: dict[str, list[TrialReceipt]] = {}
    for receipt in study.receipts:
        own.setdefault(receipt.case_name, []).append(receipt)
    return [_row(case, own.get(case.name, [])) for case in study.suite.cases]


def _row(case: Case, receipts: Sequence[TrialReceipt]) -> Row:
    passed = [one for one in receipts if one.role == "measured" and one.status == "passed" and one.clocks]
    passed.sort(key=lambda receipt: receipt.repetition)
    tests = [one.test for one in passed if one.test is not None]
    test = tests[0] if tests else None
    classifies = test is not None and test.accuracy is not None
    sizes = [rank.memory.worker_rss_high_water_bytes / 2**20 for one in passed for rank in one.ranks]
    return Row(
        case=case,
        ranks=_ranks(case),
        native_fit=_median([one.clocks.native_fit_ns for one in passed if one.clocks]),
        complete_command=_median([one.clocks.complete_command_ns for one in passed if one.clocks]),
        test=None if test is None else test.accuracy if classifies else test.loss,
        classifies=classifies,
        largest_rank=max(sizes, default=None),
        trials=len(passed),
        status=_status(receipts, passed),
    )


def _status(receipts: Sequence[TrialReceipt], passed: Sequence[TrialReceipt]) -> str:
    if passed:
        return "passed"
    if not receipts:
        return "not yet run"
    last = receipts[-1]
    reason = last.failure.reason if last.failure is not None else ""
    return f"{last.status.replace('_', ' ')}: {reason}" if reason else last.status.replace("_", " ")


def _median(nanoseconds: Sequence[int]) -> float | None:
    return statistics.median(nanoseconds) / _NANOSECONDS if nanoseconds else None


def _ranks(case: Case) -> str:
    equal = len(set(case.weights)) == 1
    return " + ".join(
        str(placement) if equal else f"{placement} ×{weight}"
        for placement, weight in zip(case.placements, case.weights, strict=True)
    )


def shown(value: float | None, digits: int) -> str:
    """Return a figure as text; nothing where there is none."""
    return "" if value is None else f"{value:,.{digits}f}"


def quality_text(row: Row) -> str:
    """Return how well the model does on the test rows, as text."""
    if row.test is None:
        return ""
    return f"{row.test:.2%}" if row.classifies else f"loss {row.test:.4f}"


@dataclass(frozen=True, slots=True)
class Picture:
    """A chart, as a Vega-Lite specification."""

    id: str
    title: str
    spec: Mapping[str, Any]

    def svg(self) -> str:
        """Return the chart as SVG text."""
        return vl_convert.vegalite_to_svg(dict(self.spec))

    def png(self, scale: float = 2.0) -> bytes:
        """Return the chart as a PNG file's bytes."""
        return vl_convert.vegalite_to_png(dict(self.spec), scale=scale)


def pictures(study: Study, cases: Sequence[str]) -> list[Picture]:
    """Return the charts of these cases; each mark's label is its case's name."""
    return []


def labelled(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a Vega-Lite specification whose marks carry their case's name, for readers and for selection."""
    result = copy.deepcopy(dict(spec))
    _label(result)
    return result


def _label(view: dict[str, Any]) -> None:
    for key in ("layer", "hconcat", "vconcat", "concat"):
        for part in view.get(key, ()):
            _label(part)
    if isinstance(view.get("spec"), dict):
        _label(view["spec"])
    if "mark" in view:
        view.setdefault("encoding", {}).setdefault("description", {"field": "case", "type": "nominal"})


def study_html(study: Study) -> str:
    """Return a study as still HTML: charts as pictures, and the table."""
    rows = rows_of(study)
    charts = pictures(study, [row.case.name for row in rows if row.trials][:MOST_CASES])
    figures = "".join(_figure(picture) for picture in charts)
    passed = sum(row.trials for row in rows)
    note = f"{passed} measured trials of {len(rows)} cases; medians" + (
        "" if study.complete else "; not complete"
    )
    lines = [
        (
            row.case.name,
            row.ranks,
            shown(row.native_fit, 3),
            shown(row.complete_command, 2),
            quality_text(row),
            shown(row.largest_rank, 0),
            row.trials or row.status,
        )
        for row in rows
    ]
    head = ("case", "ranks", "native fit, s", "complete command, s", "test", "largest rank, MiB", "trials")
    return (
        f'<div class="aner-view"><p><b>{text(study.suite.name)}</b> {text(note)}</p>'
        f"{figures}{table(head, lines)}</div>"
    )


def _figure(picture: Picture) -> str:
    source = base64.b64encode(picture.svg().encode()).decode()
    return (
        f'<img alt="{text(picture.title)}" style="max-width:100%;background:#fff" '
        f'src="data:image/svg+xml;base64,{source}">'
    )
