"""The table of a study: one row of figures a case, as values, text, DataFrame, CSV, Markdown and LaTeX."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aner_nb.analysis import CaseSummary, Comparison, Spread, StudySummary
from aner_nb.case import Case
from aner_nb.errors import CaseError

if TYPE_CHECKING:
    import pandas
    from rich.table import Table

_MIB: Final = 2**20

HEAD: Final = (
    "case",
    "ranks",
    "native fit, s",
    "complete command, s",
    "ratio",
    "test",
    "agrees",
    "largest rank, MiB",
    "trials",
)
"""Titles of the columns of `Row.cells`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The figures of one case; None where there is none. Durations in seconds, memory in MiB."""

    case: str
    ranks: str
    dtype: str
    native_fit: float | None = None
    """Median of the measured trials."""
    native_fit_minimum: float | None = None
    native_fit_maximum: float | None = None
    complete_command: float | None = None
    """Median of the measured trials."""
    complete_command_minimum: float | None = None
    complete_command_maximum: float | None = None
    ratio: float | None = None
    """Groups: native fit of the fastest member alone over the group's."""
    baseline: str = ""
    """Groups: the case of that member."""
    command_ratio: float | None = None
    """The same, of the complete command."""
    command_baseline: str = ""
    test: float | None = None
    """Accuracy, or loss where there are no classes."""
    classifies: bool = False
    agrees: bool | None = None
    """Whether the final parameters agree with those of the work's reference."""
    difference: float | None = None
    """Largest difference of a parameter to the reference's, relative."""
    coordinator: float | None = None
    """Resident high water of the coordinator's process."""
    largest_rank: float | None = None
    """Largest resident high water of a rank's process."""
    device: float | None = None
    """Most tracked device memory of a rank."""
    process_vram: float | None = None
    trials: int = 0
    """Measured ones that passed."""
    epochs: str = ""
    """After which epochs the trials ended; empty where a case always runs all."""
    status: str
    """``passed``, or why there are no figures."""

    @property
    def quality(self) -> str:
        """How well the model does on the test rows, as text."""
        if self.test is None:
            return ""
        return f"{self.test:.2%}" if self.classifies else f"loss {self.test:.4f}"

    @property
    def agreement(self) -> str:
        """Whether the final parameters agree, and how far they are off, as text."""
        if self.agrees is None:
            return ""
        return f"{'yes' if self.agrees else 'NO'}, {self.difference:.1e}"

    def cells(self) -> tuple[str, ...]:
        """Return the row as texts under `HEAD`; durations as median [minimum : maximum]."""
        return (
            self.case,
            self.ranks,
            _spread_text(self.native_fit, self.native_fit_minimum, self.native_fit_maximum, 3),
            _spread_text(
                self.complete_command, self.complete_command_minimum, self.complete_command_maximum, 2
            ),
            f"{self.ratio:.2f}×" if self.ratio else "",
            self.quality,
            self.agreement,
            number_text(self.largest_rank, 0),
            str(self.trials) + (f", after {self.epochs} epochs" if self.epochs else "")
            if self.trials
            else self.status,
        )


def rows_of(summary: StudySummary, cases: Iterable[Case]) -> list[Row]:
    """Return one row for each of the cases, in their order."""
    known = {case.case: case for case in summary.cases}
    return [
        _row(known[case.name])
        if case.name in known
        else Row(
            case=case.name,
            ranks=ranks_text(case.placements, case.weights),
            dtype=case.dtype,
            status="not yet run",
        )
        for case in cases
    ]


def _row(case: CaseSummary) -> Row:
    status = case.status.replace("_", " ")
    memory, agreement = case.memory, case.agreement
    return Row(
        case=case.case,
        ranks=ranks_text(case.placements, case.weights),
        dtype=case.dtype,
        **_durations("native_fit", case.native_fit),
        **_durations("complete_command", case.complete_command),
        **_comparison("ratio", "baseline", case.fit_comparison),
        **_comparison("command_ratio", "command_baseline", case.command_comparison),
        test=case.test_loss if case.test_accuracy is None else case.test_accuracy,
        classifies=case.test_accuracy is not None,
        agrees=agreement.agrees if agreement else None,
        difference=agreement.maximum_relative if agreement else None,
        coordinator=_mebibytes(memory.coordinator_rss_bytes) if memory else None,
        largest_rank=_mebibytes(memory.worker_rss_bytes) if memory else None,
        device=_mebibytes(memory.device_bytes) if memory else None,
        process_vram=_mebibytes(memory.process_vram_bytes) if memory else None,
        trials=case.measured,
        epochs=" and ".join(map(str, case.epochs)),
        status=f"{status}: {case.reason}" if case.reason else status,
    )


def _durations(field: str, spread: Spread | None) -> dict[str, Any]:
    if spread is None:
        return {}
    return {
        field: spread.median_ns / 1e9,
        f"{field}_minimum": spread.minimum_ns / 1e9,
        f"{field}_maximum": spread.maximum_ns / 1e9,
    }


def _comparison(ratio: str, baseline: str, comparison: Comparison | None) -> dict[str, Any]:
    return {} if comparison is None else {ratio: comparison.ratio, baseline: comparison.baseline}


def _mebibytes(size: int | None) -> float | None:
    return None if size is None else size / _MIB


def ranks_text(placements: Iterable[object], weights: Sequence[int]) -> str:
    """Return who computes, with the weights where they differ."""
    equal = len(set(weights)) == 1
    return " + ".join(
        str(placement) if equal else f"{placement} ×{weight}"
        for placement, weight in zip(placements, weights, strict=True)
    )


def number_text(value: float | None, digits: int) -> str:
    """Return a figure as text; nothing where there is none."""
    return "" if value is None else f"{value:,.{digits}f}"


def _spread_text(middle: float | None, low: float | None, high: float | None, digits: int) -> str:
    if middle is None:
        return ""
    return f"{middle:.{digits}f} [{low:.{digits}f} : {high:.{digits}f}]"


_UNITS: Final = {
    "native_fit": "s",
    "native_fit_minimum": "s",
    "native_fit_maximum": "s",
    "complete_command": "s",
    "complete_command_minimum": "s",
    "complete_command_maximum": "s",
    "coordinator": "rss_mib",
    "largest_rank": "rss_mib",
    "device": "mib",
    "process_vram": "mib",
}


def frame_of(rows: Sequence[Row]) -> pandas.DataFrame:
    """Return the rows as a DataFrame indexed by case; the unit of a column ends its name."""
    import pandas

    table = pandas.DataFrame([dataclasses.asdict(row) for row in rows])
    return table.rename(columns={name: f"{name}_{unit}" for name, unit in _UNITS.items()}).set_index("case")


def csv_of(rows: Sequence[Row]) -> str:
    """Return the rows as CSV, all figures in full."""
    return frame_of(rows).to_csv(lineterminator="\n")


def markdown_of(rows: Sequence[Row]) -> str:
    """Return the rows as a Markdown table of texts."""
    rule = ["---" if title in ("case", "ranks", "trials") else "---:" for title in HEAD]
    lines = [HEAD, rule, *(tuple(map(_markdown_text, row.cells())) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _markdown_text(text: str) -> str:
    """Escape what Markdown, or the HTML within it, would read as more than text."""
    for mark in "\\`*_[]<>|&~":
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())


def latex_of(rows: Sequence[Row]) -> str:
    """Return the rows as a LaTeX table of texts, for the package booktabs."""
    import pandas

    table = pandas.DataFrame([[" ".join(cell.split()) for cell in row.cells()] for row in rows], columns=HEAD)
    text = table.map(_latex_text).to_latex(index=False, escape=False, column_format="llrrrrrrl")
    return text.replace("largest rank, MiB", "rank, MiB")


_LATEX: Final = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "×": r"$\times$",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        **{mark: f"\\{mark}" for mark in "&%$#_{}"},
    }
)


def _latex_text(text: str) -> str:
    return text.translate(_LATEX)


def table_text(rows: Sequence[Row], suffix: str) -> str:
    """Return the rows in the format of a file's suffix: ``.csv``, ``.md`` or ``.tex``.

    Raises
    ------
    CaseError
        If there is no such format.
    """
    formats = {".csv": csv_of, ".md": markdown_of, ".tex": latex_of}
    if suffix not in formats:
        raise CaseError(
            f"there is no table format {suffix!r}.", remedy=f"End the name in {', '.join(formats)}."
        )
    return formats[suffix](rows)


_WIDE_ONLY: Final = ("complete command, s", "largest rank, MiB")

_ALL_COLUMNS_FROM: Final = 132
"""Characters of a line from which the terminal's table has all columns."""


def rich_table(title: str, rows: Sequence[Row], width: int) -> Table:
    """Return the rows as a table for a terminal of so many characters a line; cells are broken, never cut off."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    shown = HEAD if width >= _ALL_COLUMNS_FROM else tuple(name for name in HEAD if name not in _WIDE_ONLY)
    table = Table(title=escape(f"{title}: median [min : max] of the measured trials"), box=box.SIMPLE_HEAD)
    for name in shown:
        left = name in ("case", "ranks", "trials")
        table.add_column(name, justify="left" if left else "right", overflow="fold", no_wrap=name == "case")
    for row in rows:
        cells: dict[str, str] = dict(zip(HEAD, row.cells(), strict=True))
        table.add_row(*(escape(cells[name].replace(" [", "\n[")) for name in shown))
    if shown != HEAD:
        table.caption = f"A wider terminal also shows: {', '.join(_WIDE_ONLY)}; the report has all."
    return table
