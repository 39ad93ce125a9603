"""A study as pictures and figures: charts that need no script and no kernel, and one row of figures a case."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import msgspec

from aner_nb.analysis import StudySummary, summarise
from aner_nb.charts import (
    duration_chart,
    memory_chart,
    scaling_chart,
    scaling_rows,
    specification_svg,
    svg_png,
    validation_chart,
    validation_rows,
)
from aner_nb.published import PublicBundle
from aner_nb.receipts import TrialReceipt
from aner_nb.study import Study
from aner_nb.tables import HEAD, Row, number_text, rows_of
from aner_nb.views import counted, table, text

MOST_CASES: Final = 24
"""Most cases in one chart: more bars cannot be told apart."""

MOST_ROWS: Final = 500
"""Most rows of a still table."""

MOST_VECTORS: Final = 200
"""Most trials whose final parameters are read, to say whether they agree, each time that a study is shown."""


def summary_of(study: Study) -> StudySummary:
    """Return the summary of a study, without agreement where it has very many trials."""
    if len(study.receipts) <= MOST_VECTORS or isinstance(study.folder, PublicBundle):
        return study.summary()
    return summarise(study.receipts, [case.name for case in study.suite.cases])


@dataclass(frozen=True, slots=True)
class Picture:
    """A chart, and the words above it.

    The words stand apart, so that a page can break them into lines; a file of the chart has them inside.
    """

    id: str
    title: str
    notes: tuple[str, ...]

    svg: str
    """The chart without the words; each mark's label is its case's name."""

    specification: Mapping[str, Any] = field(repr=False)
    """The whole chart, as Vega-Lite."""

    def whole_svg(self) -> str:
        """Return the chart as an SVG file's text."""
        return specification_svg(self.specification)

    def png(self) -> bytes:
        """Return the chart as a PNG file's bytes."""
        return svg_png(self.whole_svg())


def pictures(
    summary: StudySummary, receipts: Sequence[TrialReceipt], cases: Collection[str]
) -> list[Picture]:
    """Return the charts of these cases that have something to show."""
    names = set(cases)
    chosen = tuple(case for case in summary.cases if case.case in names)
    if not chosen:
        return []
    some: StudySummary = msgspec.structs.replace(summary, cases=chosen)
    trials = [receipt for receipt in receipts if receipt.case_name in names]
    charts: list[tuple[str, Any]] = [("duration", duration_chart(some))]
    if scaling_rows(some):
        charts.append(("groups", scaling_chart(some)))
    if validation_rows(trials):
        charts.append(("validation", validation_chart(trials)))
    charts.append(("memory", memory_chart(some)))
    return [_picture(name, chart.to_dict(validate=False)) for name, chart in charts]


def _picture(name: str, specification: dict[str, Any]) -> Picture:
    """Return a chart with its marks labelled, for readers and for selection, and its words taken out."""
    _label(specification, frozenset())
    bare = {key: value for key, value in specification.items() if key != "title"}
    title = specification["title"]
    notes = title["subtitle"]
    return Picture(
        name,
        title["text"],
        (notes,) if isinstance(notes, str) else tuple(notes),
        specification_svg(bare),
        specification,
    )


def _label(view: dict[str, Any], fields: frozenset[str]) -> None:
    values = cast("list[dict[str, Any]]", view.get("data", {}).get("values", ()))
    if values:
        fields = frozenset(name for value in values for name in value)
    for key in ("layer", "hconcat", "vconcat", "concat"):
        for part in view.get(key, ()):
            _label(part, fields)
    field = "case" if "case" in fields else "label" if "label" in fields else ""
    if "mark" in view and field:
        view.setdefault("encoding", {})["description"] = {"field": field, "type": "nominal"}


@dataclass(frozen=True, slots=True)
class Shown:
    """What is shown of a study."""

    study: Study
    summary: StudySummary
    rows: list[Row]
    pictures: list[Picture]

    drawn: tuple[str, ...]
    """The cases in the pictures."""


def show(study: Study) -> Shown:
    """Return the rows of a study, without charts as yet."""
    summary = summary_of(study)
    return Shown(study, summary, rows_of(summary, study.suite.cases), [], ())


def draw(what: Shown, cases: Sequence[str] | None = None) -> Shown:
    """Return the same with charts of these cases; None: the first `MOST_CASES` that were measured."""
    if cases is None:
        cases = [row.case for row in what.rows if row.trials][:MOST_CASES]
    drawn = pictures(what.summary, what.study.receipts, cases)
    return dataclasses.replace(what, pictures=drawn, drawn=tuple(cases))


def study_html(study: Study) -> str:
    """Return a study as still HTML: charts as pictures, and the table."""
    return shown_html(draw(show(study)))


def study_text(study: Study) -> str:
    """Return a study as text: the table, of a very long one the beginning."""
    rows = rows_of(summary_of(study), study.suite.cases)
    cells = [HEAD, *(row.cells() for row in rows[:MOST_CASES])]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [f"{study.suite.name}: {headline(study, rows)}"]
    for line in cells:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        lines.append("  ".join(padded).rstrip())
    if len(rows) > MOST_CASES:
        lines.append(f"… and {counted(len(rows) - MOST_CASES, 'case')} more")
    return "\n".join(lines)


def shown_html(what: Shown) -> str:
    """Return the same of a study that is shown already; of a very long table, the beginning."""
    study, rows = what.study, what.rows[:MOST_ROWS]
    note = headline(study, what.rows)
    if len(rows) < len(what.rows):
        note += f"; the first {len(rows)} cases"
    lines = [
        (
            row.case,
            row.ranks,
            number_text(row.native_fit, 3),
            number_text(row.complete_command, 2),
            f"{row.ratio:.2f}×" if row.ratio else "",
            row.quality,
            row.agreement,
            number_text(row.largest_rank, 0),
            row.trials or row.status,
        )
        for row in rows
    ]
    head = (
        "case",
        "ranks",
        "native fit, s",
        "complete, s",
        "group",
        "test",
        "agrees",
        "memory, MiB",
        "trials",
    )
    warnings = "".join(f"<li>{text(warning)}</li>" for warning in what.summary.warnings)
    return (
        f'<div class="aner-view"><p><b>{text(study.suite.name)}</b> {text(note)}</p>'
        f"{''.join(map(_figure, what.pictures))}{table(head, lines)}{f'<ul>{warnings}</ul>' if warnings else ''}</div>"
    )


def headline(study: Study, rows: Sequence[Row]) -> str:
    """Return what there is of a study, in a few words."""
    complete = "" if study.complete else "; not complete: run it again to go on"
    trials = counted(sum(row.trials for row in rows), "measured trial")
    return f"{trials} of {counted(len(rows), 'case')}, medians{complete}"


def _figure(picture: Picture) -> str:
    source = base64.b64encode(picture.svg.encode()).decode()
    notes = "".join(f"<div><small>{text(note)}</small></div>" for note in picture.notes)
    return (
        '<div style="display:inline-block;vertical-align:top;max-width:350px;margin:0 16px 12px 0">'
        f"<div><b>{text(picture.title)}</b></div>{notes}"
        f'<img alt="{text(picture.title)}" style="max-width:100%" src="data:image/svg+xml;base64,{source}"></div>'
    )
