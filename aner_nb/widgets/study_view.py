"""A study: charts and a table that share one selection, and downloads."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import traitlets

from aner_nb.errors import CaseError
from aner_nb.front_ends import front_end
from aner_nb.study import Study
from aner_nb.tables import Row, csv_of, number_text
from aner_nb.widgets.panel import Command, Panel, one_line

if TYPE_CHECKING:
    from IPython.display import DisplayHandle

    from aner_nb.still import Shown

MOST_CASES: Final = 24
"""Most cases in one chart; as in `aner_nb.still`, which is loaded when there is something to show."""

_TYPES: Final = {
    "png": "image/png",
    "svg": "image/svg+xml",
    "csv": "text/csv",
    "json": "application/json",
}


class StudyView(Panel):
    """Charts and table of a study.

    A case that is selected in one chart, or in the table, stands out in all of them. Beyond `MOST_CASES` the charts
    show the first cases, or those that are drawn on request.

    Parameters
    ----------
    study
        None: `show` one later.

    Examples
    --------
    >>> view = StudyView()
    >>> view.chosen
    []
    """

    _esm, _css = front_end("study_view")

    summary = traitlets.Dict(help="What the study is, in words.").tag(sync=True)
    charts = traitlets.List(traitlets.Dict(), help="Charts as SVG.").tag(sync=True)
    table = traitlets.Dict(help="One row a case.").tag(sync=True)
    chosen = traitlets.List(traitlets.Unicode(), help="Names of the selected cases.").tag(sync=True)

    def __init__(self, study: Study | None = None) -> None:
        self.shown: Shown | None = None
        self._copies: list[DisplayHandle] = []
        super().__init__(summary={"head": "none yet", "words": "", "drawn": MOST_CASES})
        if study is None:
            return
        self._show_table(study)
        if len(study.suite.cases) <= MOST_CASES:
            self.draw()
        else:  # the table is there at once, the charts follow
            threading.Thread(target=self.guarded, args=(self.draw,), name="aner-draw", daemon=True).start()

    @property
    def study(self) -> Study | None:
        """The study that is shown."""
        return self.shown.study if self.shown is not None else None

    def show(self, study: Study) -> None:
        """Show a study in place of what is shown."""
        self._show_table(study)
        self.draw()

    def _show_table(self, study: Study) -> None:
        from aner_nb.still import show

        with self.lock:
            self.shown = shown = show(study)
            names = {row.case for row in shown.rows}
            with self.hold_sync():
                self.chosen = [name for name in self.chosen if name in names]
                self.table = _table(shown.rows)
                self._publish(shown)

    def draw(self, cases: Sequence[str] | None = None) -> None:
        """Draw the charts of these cases; None: of the first that were measured.

        Raises
        ------
        CaseError
            If there are too many for one chart.
        """
        from aner_nb.still import draw

        if cases is not None and not 0 < len(cases) <= MOST_CASES:
            raise CaseError(
                f"{len(cases)} cases cannot be told apart in one chart.", remedy=f"Select 1 to {MOST_CASES}."
            )
        with self.lock:
            if self.shown is None:
                return
            self.shown = draw(self.shown, cases)
            with self.hold_sync():
                self.error = ""
                self._publish(self.shown)
        for copy in self._copies:
            copy.update(self.still_copy(), raw=True)

    def commands(self) -> Mapping[str, Command]:
        return {
            "save": lambda content: self._save(content["file"], content.get("chart")),
            "draw": lambda _content: self.draw(self.chosen),
        }

    def _publish(self, shown: Shown) -> None:
        from aner_nb.still import headline

        drawn, count = len(shown.drawn), len(shown.rows)
        some = [f"The charts show {drawn} of {count:,} cases."] if 0 < drawn < count else []
        notes = [f"Note: {warning}." for warning in shown.summary.warnings[:5]]
        self.charts = [
            {"id": one.id, "title": one.title, "notes": list(one.notes), "svg": one.svg}
            for one in shown.pictures
        ]
        self.summary = {
            "head": f"{shown.study.suite.name}: {headline(shown.study, shown.rows)}",
            "words": " ".join([*some, *notes]),
            "drawn": MOST_CASES,
        }

    def _save(self, file: str, chart: str | None) -> None:
        content = self.file(file, chart)
        name = f"{self.study.suite.name if self.study else 'study'}{f'-{chart}' if chart else ''}.{file}"
        self.send({"do": "file", "name": name, "type": _TYPES[file]}, [content])

    def file(self, file: str, chart: str | None = None) -> bytes:
        """Return what a download holds.

        Parameters
        ----------
        file : {"png", "svg", "csv", "json"}
        chart
            Which chart, for PNG and SVG.

        Raises
        ------
        CaseError
            If there is no such chart or kind of file.
        """
        rows = self.shown.rows if self.shown is not None else []
        if file == "csv":
            return csv_of(rows).encode()
        if file == "json":
            return json.dumps([dataclasses.asdict(row) for row in rows], indent=2).encode()
        for picture in self.shown.pictures if self.shown is not None else ():
            if picture.id == chart and file in ("png", "svg"):
                return picture.png() if file == "png" else picture.whole_svg().encode()
        raise CaseError(f"there is no {file!r} of {chart!r}.")

    def still_copy(self) -> dict[str, str]:
        """Return the charts and the table as they are shown where there is no kernel, by MIME type."""
        shown = self.shown
        if shown is None:
            return {"text/html": "", "text/plain": ""}
        from aner_nb.still import shown_html

        html = f'<div class="aner-still">{shown_html(shown)}</div>'
        return {"text/html": html, "text/plain": repr(shown.study)}

    def display_still(self) -> None:
        """Put a still copy into the cell's output, which follows what is shown; it hides while the view is alive."""
        from IPython.display import display

        handle = display(self.still_copy(), raw=True, display_id=True)
        if handle is not None:
            self._copies.append(handle)

    def _ipython_display_(self) -> None:
        from IPython.display import display

        bundle = self._repr_mimebundle_()
        assert bundle is not None
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        display(data, metadata=metadata, raw=True)
        self.display_still()


def _table(rows: Sequence[Row]) -> dict[str, Any]:
    columns: list[tuple[str, list[str], list[float | None] | None]] = [
        ("Ranks", [row.ranks for row in rows], None),
        ("Fit, s", [number_text(row.native_fit, 3) for row in rows], [row.native_fit for row in rows]),
        (
            "Complete, s",
            [number_text(row.complete_command, 2) for row in rows],
            [row.complete_command for row in rows],
        ),
        ("Group", [f"{row.ratio:.2f}×" if row.ratio else "" for row in rows], [row.ratio for row in rows]),
        ("Test", [row.quality for row in rows], [row.test for row in rows]),
        ("Agrees", [row.agreement for row in rows], None),
        ("RSS, MiB", [number_text(row.largest_rank, 0) for row in rows], [row.largest_rank for row in rows]),
        ("Trials", [str(row.trials) for row in rows], [float(row.trials) for row in rows]),
        ("State", [row.status for row in rows], None),
    ]
    return {
        "names": "\n".join(one_line(row.case) for row in rows),
        "columns": [
            {
                "title": title,
                "texts": texts,
                "numbers": b"" if numbers is None else _floats(numbers),
                "right": numbers is not None,
                "wide": title not in ("Fit, s", "Group", "Test"),
            }
            for title, texts, numbers in columns
        ],
    }


def _floats(values: Sequence[float | None]) -> bytes:
    return np.asarray([np.nan if value is None else value for value in values], "<f4").tobytes()
