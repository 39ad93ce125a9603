"""Charts of a study. Rows come from pure functions; a chart only draws its rows.

Sized for one column of a paper: about 330 px wide is 85 mm with text of 8 points. Colours are those of Okabe and Ito,
which colour-blind readers tell apart.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import altair as alt
from numpy.typing import NDArray

from aner_nb.analysis import CaseSummary, StudySummary
from aner_nb.receipts import TrialReceipt
from aner_nb.timeline import typical_bars

Row = dict[str, Any]

BLUE: Final = "#0072B2"
ORANGE: Final = "#E69F00"
GREEN: Final = "#009E73"
RED: Final = "#D55E00"
PURPLE: Final = "#CC79A7"
SKY: Final = "#56B4E9"
GREY: Final = "#767676"
PALETTE: Final = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY)

_PLOT: Final = 190
_STEP: Final = 15
_MOST_PANELS: Final = 24
"""Panels of the chart of validation losses; more of them nobody can read on a page."""

_LOG_FROM: Final = 12.0
"""Largest over smallest duration from which the scale is logarithmic."""

_CLOCKS: Final = {"native_fit": "Native fit", "complete_command": "Complete command"}
_SCOPES: Final = {
    "coordinator_rss_bytes": "coordinator RSS",
    "worker_rss_bytes": "largest rank's RSS",
    "device_bytes": "tracked device",
    "process_vram_bytes": "process VRAM",
}


def duration_rows(summary: StudySummary) -> list[Row]:
    """Return one row a case and clock: seconds, and the ratio of groups; cases without trials have a reason."""
    rows: list[Row] = []
    for case in summary.cases:
        for clock, title in _CLOCKS.items():
            spread = getattr(case, clock)
            comparison = case.fit_comparison if clock == "native_fit" else case.command_comparison
            row: Row = {"case": case.case, "kind": _kind(case), "clock": title, "label": ""}
            if spread is None:
                row["label"] = _why_not(case)
            else:
                row |= {
                    "median_s": spread.median_ns / 1e9,
                    "minimum_s": spread.minimum_ns / 1e9,
                    "maximum_s": spread.maximum_ns / 1e9,
                    "label": f"{comparison.ratio:.2f}×" if comparison else "",
                }
            rows.append(row)
    return rows


def _why_not(case: CaseSummary) -> str:
    return f"{case.status.replace('_', ' ')}: {case.reason}"[:60]


def _kind(case: CaseSummary) -> str:
    return "groups" if len(case.placements) > 1 else "standalone"


def duration_chart(summary: StudySummary, *, dark: bool = False) -> Any:
    """Draw median (tick) and observed minimum to maximum (bar) of both clocks, standalone and groups apart."""
    rows = duration_rows(summary)
    parts: list[Any] = []
    for clock in _CLOCKS.values():
        of_clock = [row for row in rows if row["clock"] == clock]
        scale = _seconds_scale(of_clock)
        for kind in ("standalone", "groups"):
            own = [row for row in of_clock if row["kind"] == kind]
            if own:
                parts.append(_duration_panel(own, clock, kind, scale))
    title = alt.Title(
        "How long each case takes",
        subtitle="tick: median, bar: observed min to max; ×: speed of a group over its fastest member",
    )
    return _themed(alt.vconcat(*parts, spacing=6).properties(title=title), dark=dark)


def _seconds_scale(rows: Sequence[Row]) -> Any:
    """Return one scale for all panels of a clock: standalone and groups are to be compared by eye."""
    values = [row[key] for row in rows if "median_s" in row for key in ("minimum_s", "maximum_s")]
    if not values:
        return alt.Scale(zero=True)
    if max(values) > _LOG_FROM * min(values):
        return alt.Scale(type="log", nice=False, padding=8, domain=[min(values), max(values)])
    return alt.Scale(domain=[0, max(values)])


def _duration_panel(rows: Sequence[Row], clock: str, kind: str, scale: Any) -> Any:
    measured = [row for row in rows if "median_s" in row]
    idle = [row for row in rows if "median_s" not in row]
    logarithmic = scale.type == "log"
    order = [row["case"] for row in rows]
    y = alt.Y("case:N", sort=order, title=kind, axis=alt.Axis(labelLimit=140))
    axis = alt.Axis(title=f"{clock}, seconds{' (log)' if logarithmic else ''}", tickCount=5, format="~g")
    colour = BLUE if kind == "standalone" else RED
    bars = alt.Chart(alt.Data(values=measured)).encode(y=y)
    layers = [
        bars.mark_bar(height=5, opacity=0.35, color=colour).encode(
            x=alt.X("minimum_s:Q", scale=scale, axis=axis), x2="maximum_s:Q"
        ),
        bars.mark_tick(thickness=2.5, size=12, color=colour).encode(x=alt.X("median_s:Q", scale=scale)),
        bars.mark_text(align="left", dx=6, fontSize=9).encode(
            x=alt.X("maximum_s:Q", scale=scale), text="label:N"
        ),
    ]
    if idle:
        layers.append(_idle_labels(idle, y))
    return alt.layer(*layers).properties(width=_PLOT, height=alt.Step(_STEP))


def _idle_labels(rows: Sequence[Row], y: Any) -> Any:
    """Draw why there is no bar, where the bar would be."""
    base = alt.Chart(alt.Data(values=rows)).encode(y=y, x=alt.value(4), text="label:N")
    return base.mark_text(align="left", fontSize=8, fontStyle="italic", color=GREY)


def validation_rows(trials: Sequence[TrialReceipt]) -> list[Row]:
    """Return one row a case and epoch, of each case's first measured trial; `place` counts cases of one work."""
    rows: list[Row] = []
    first: dict[str, TrialReceipt] = {}
    for trial in sorted(trials, key=lambda trial: trial.repetition):
        if trial.status == "passed" and trial.role == "measured":
            first.setdefault(trial.case_name, trial)
    works: dict[str, list[TrialReceipt]] = {}
    for trial in sorted(first.values(), key=lambda trial: (len(trial.ranks), trial.case_name)):
        works.setdefault(trial.work_id, []).append(trial)
    for own in works.values():
        panel = f"{own[0].case_name} ({own[0].case['dtype']})"
        for place, trial in enumerate(own):
            rows += [
                {
                    "panel": panel,
                    "case": trial.case_name,
                    "place": place,
                    "of": len(own),
                    "epoch": record.epoch + 1,
                    "loss": record.loss,
                    "accuracy": record.accuracy,
                }
                for record in trial.validation
            ]
    return rows


def validation_chart(trials: Sequence[TrialReceipt], *, dark: bool = False) -> Any:
    """Draw the validation loss after each epoch, one panel a work; lines that coincide lie as stripes in one band."""
    rows = validation_rows(trials)
    panels = list(dict.fromkeys(row["panel"] for row in rows))
    shown = panels[:_MOST_PANELS]
    drawn = [_validation_panel([row for row in rows if row["panel"] == panel], panel) for panel in shown]
    subtitle = ["validation loss after each epoch; equal results lie on top of each other, wide below narrow"]
    if len(panels) > len(shown):
        subtitle.append(f"the first {len(shown)} of {len(panels)} works; the trials' records have all")
    idle = {trial.case_name for trial in trials if trial.status == "not_run"}
    if idle:
        subtitle.append(f"{len(idle)} case(s) not run: the chart of durations says why")
    title = alt.Title("What each case learns", subtitle=subtitle)
    return _themed(alt.concat(*drawn, columns=2, spacing=8).properties(title=title), dark=dark)


def _validation_panel(rows: Sequence[Row], panel: str) -> Any:
    losses = [row["loss"] for row in rows]
    low, high = min(losses), max(losses)
    span = (high - low) or max(abs(high), 1.0)
    count = rows[0]["of"]
    domain = [low - 0.05 * span, high + span * 0.14 * count]
    x = alt.X("epoch:Q", title="epoch", axis=alt.Axis(tickMinStep=1, tickCount=4, format="d"))
    y = alt.Y("loss:Q", title="loss", scale=alt.Scale(domain=domain, nice=False), axis=alt.Axis(tickCount=4))
    layers: list[Any] = []
    for place in range(count):
        own = [row for row in rows if row["place"] == place]
        colour = PALETTE[place % len(PALETTE)]
        line = alt.Chart(alt.Data(values=own)).encode(x=x, y=y)
        width = 1.5 + 3.0 * (count - 1 - place)
        layers.append(line.mark_line(strokeWidth=width, color=colour, point=len(own) < 2))
        label = {"label": own[0]["case"], "loss": domain[1] - span * 0.13 * (place + 0.6)}
        layers.append(
            alt.Chart(alt.Data(values=[label]))
            .mark_text(align="right", fontSize=8, color=colour, fontWeight="bold")
            .encode(y=alt.Y("loss:Q"), x=alt.value(132), text="label:N")
        )
    return alt.layer(*layers).properties(
        width=134, height=100, title=alt.Title(panel, fontSize=9, fontWeight="normal")
    )


def memory_rows(summary: StudySummary) -> list[Row]:
    """Return one row a case and scope, in MiB; without a figure, with the reason."""
    rows: list[Row] = []
    for case in summary.cases:
        for field, scope in _SCOPES.items():
            if case.memory is None:
                row = {"case": case.case, "scope": scope, "mib": None, "label": "", "reason": ""}
                rows.append(row | {"label": _why_not(case) if field == "worker_rss_bytes" else ""})
                continue
            value = getattr(case.memory, field)
            reason = case.memory.process_vram_reason if field == "process_vram_bytes" else "not tracked here"
            rows.append(
                {
                    "case": case.case,
                    "scope": scope,
                    "mib": None if value is None else value / 2**20,
                    "label": "N/A" if value is None else "",
                    "reason": reason if value is None else "",
                }
            )
    return rows


def memory_chart(summary: StudySummary, *, dark: bool = False) -> Any:
    """Draw the largest memory of each case by scope, side by side: scopes overlap and must not be added up."""
    rows = memory_rows(summary)
    order = list(dict.fromkeys(row["case"] for row in rows))
    scopes = list(_SCOPES.values())
    reasons = dict.fromkeys(f"{row['scope']}: {row['reason']}" for row in rows if row["reason"])
    title = alt.Title(
        "What each case costs in memory",
        subtitle=["scopes overlap: never add them up", *(f"N/A {reason}" for reason in reasons)],
    )
    base = alt.Chart(alt.Data(values=rows)).encode(
        y=alt.Y("case:N", sort=order, title=None, axis=alt.Axis(labelLimit=140)),
        yOffset=alt.YOffset("scope:N", sort=scopes),
        color=alt.Color(
            "scope:N",
            sort=scopes,
            scale=alt.Scale(domain=scopes, range=list(PALETTE[:4])),
            legend=alt.Legend(orient="top", columns=2, title=None),
        ),
    )
    bars = base.mark_bar().encode(x=alt.X("mib:Q", title="largest observed, MiB", axis=alt.Axis(tickCount=5)))
    missing = base.mark_text(align="left", fontSize=6).encode(x=alt.value(2), text="label:N")
    return _themed(
        alt.layer(bars, missing).properties(width=_PLOT, height=alt.Step(6), title=title), dark=dark
    )


def scaling_rows(summary: StudySummary) -> list[Row]:
    """Return one row a group: its speed over its fastest member, and what its members would add up to.

    A group without a comparison has the reason.
    """
    rows: list[Row] = []
    for case in summary.cases:
        compared = case.fit_comparison
        if compared is not None:
            label = f"{compared.ratio:.2f}×"
            rows.append(
                {"case": case.case, "ratio": compared.ratio, "ideal": compared.ideal_ratio, "label": label}
            )
        elif len(case.placements) > 1:
            label = case.no_baseline or _why_not(case)
            rows.append({"case": case.case, "ratio": None, "ideal": None, "label": label})
    return rows


def scaling_chart(summary: StudySummary, *, dark: bool = False) -> Any:
    """Draw each group's speed (bar) beside the speed without any overhead (tick); left of 1 it does not pay."""
    rows = scaling_rows(summary)
    y = alt.Y("case:N", sort=[row["case"] for row in rows], title=None, axis=alt.Axis(labelLimit=140))
    base = alt.Chart(alt.Data(values=[row for row in rows if row["ratio"] is not None])).encode(y=y)
    x = alt.X("ratio:Q", title="native fit: speed over the fastest member alone", scale=alt.Scale(zero=True))
    one = alt.Chart(alt.Data(values=[{"one": 1}])).mark_rule(strokeDash=[3, 2], color=GREY).encode(x="one:Q")
    layers = [
        base.mark_bar(height=8, color=RED).encode(x=x),
        base.mark_tick(thickness=2, size=14, color=BLUE).encode(x="ideal:Q"),
        one,
        base.mark_text(align="left", dx=4, fontSize=9).encode(x=x, text="label:N"),
    ]
    idle = [row for row in rows if row["ratio"] is None]
    if idle:
        layers.append(_idle_labels(idle, y))
    title = alt.Title("Do groups pay?", subtitle="bar: measured; tick: no overhead at all; dashed: no gain")
    return _themed(alt.layer(*layers).properties(width=_PLOT, height=alt.Step(_STEP), title=title), dark=dark)


def timeline_rows(steps: Mapping[str, NDArray[Any]]) -> list[Row]:
    """Return the phases of a typical update, in milliseconds."""
    return [
        {
            "actor": bar.actor,
            "phase": bar.phase,
            "start_ms": bar.start / 1e6,
            "end_ms": (bar.start + bar.length) / 1e6,
        }
        for bar in typical_bars(steps)
    ]


def timeline_chart(steps: Mapping[str, NDArray[Any]], case: str, *, dark: bool = False) -> Any:
    """Draw where the time of a typical update goes, on the coordinator and on each rank."""
    rows = timeline_rows(steps)
    phases = ["exchange", "apply", "request", "upload", "compute", "readback"]
    colours = [GREY, RED, PURPLE, ORANGE, BLUE, GREEN]
    chart = (
        alt.Chart(alt.Data(values=rows))
        .mark_bar(height=10)
        .encode(
            y=alt.Y("actor:N", title=None, sort=list(dict.fromkeys(row["actor"] for row in rows))),
            x=alt.X("start_ms:Q", title="milliseconds of a typical update"),
            x2="end_ms:Q",
            color=alt.Color(
                "phase:N",
                sort=phases,
                scale=alt.Scale(domain=phases, range=colours),
                legend=alt.Legend(orient="top", columns=3, title=None),
            ),
        )
        .properties(width=240, height=alt.Step(18), title=f"Where an update of {case} goes")
    )
    return _themed(chart, dark=dark)


def advice_chart(rows: Sequence[Row], *, dark: bool = False) -> Any:
    """Draw predicted updates with their errors; rows as of `Advice.rows`, with `measured_ms` where known."""
    order = [row["ranks"] for row in rows]
    base = alt.Chart(alt.Data(values=[_with_bounds(row) for row in rows])).encode(
        y=alt.Y("ranks:N", sort=order, title=None, axis=alt.Axis(labelLimit=180))
    )
    x = alt.X("update_ms:Q", title="one update, milliseconds", scale=alt.Scale(zero=True))
    layers = [
        base.mark_bar(height=6, opacity=0.35, color=BLUE).encode(x=alt.X("low:Q"), x2="high:Q"),
        base.mark_tick(thickness=2.5, size=12, color=BLUE).encode(x=x),
        base.mark_point(shape="diamond", filled=True, color=RED, size=40).encode(x="measured_ms:Q"),
    ]
    title = alt.Title("Predicted update", subtitle="tick: predicted, bar: its error; diamond: measured")
    return _themed(alt.layer(*layers).properties(width=_PLOT, height=alt.Step(_STEP), title=title), dark=dark)


def _with_bounds(row: Row) -> Row:
    return {**row, "low": row["update_ms"] - row["error_ms"], "high": row["update_ms"] + row["error_ms"]}


_FONT: Final = "Liberation Sans, Arial, Helvetica, DejaVu Sans Condensed, sans-serif"
"""Of one width, so that text measured here fits in a browser, whose own sans-serif may be wider."""

_INK: Final = ("#1A1A1A", "#E8E8E8")
_PAPER: Final = ("#FFFFFF", "#111111")
_GRID: Final = ("#DDDDDD", "#3A3A3A")


def _themed(chart: Any, *, dark: bool) -> Any:
    ink, paper, grid = _INK[dark], _PAPER[dark], _GRID[dark]
    axis = {"labelColor": ink, "titleColor": ink, "gridColor": grid, "domainColor": grid, "tickColor": grid}
    return (
        chart.configure(background=paper, padding=6, font=_FONT)
        .configure_axis(labelFontSize=9, titleFontSize=9, titleFontWeight="normal", labelSeparation=3, **axis)
        .configure_title(fontSize=12, subtitleFontSize=9, anchor="start", color=ink, subtitleColor=ink)
        .configure_legend(labelFontSize=9, labelColor=ink, titleColor=ink, symbolSize=50)
        .configure_text(color=ink)
        .configure_view(stroke=grid)
    )


def study_charts(summary: StudySummary, trials: Sequence[TrialReceipt]) -> dict[str, str]:
    """Return the SVG of each chart of a study that has something to show, by name."""
    drawn = {"duration": duration_chart(summary), "memory": memory_chart(summary)}
    if any(trial.validation for trial in trials):
        drawn["validation"] = validation_chart(trials)
    if scaling_rows(summary):
        drawn["scaling"] = scaling_chart(summary)
    return {name: chart_svg(chart) for name, chart in drawn.items()}


def chart_svg(chart: Any) -> str:
    """Return a chart as SVG text, rendered without a browser."""
    return specification_svg(chart.to_dict(validate=False))


def specification_svg(specification: Mapping[str, Any]) -> str:
    """Return a Vega-Lite specification as SVG text, rendered without a browser."""
    import vl_convert

    return str(vl_convert.vegalite_to_svg(dict(specification)))


def darkened(svg: str) -> str:
    """Return a light chart's SVG in the dark theme's ink, paper and grid."""
    for light, dark in (_INK, _PAPER, _GRID):
        svg = svg.replace(light, dark).replace(light.lower(), dark.lower())
    return svg.replace('"white"', f'"{_PAPER[1]}"')


def svg_png(svg: str) -> bytes:
    """Return an SVG as PNG, three pixels to a point, compressed well and without metadata."""
    import vl_convert

    drawn = bytes(vl_convert.svg_to_png(svg, scale=3))
    chunks: list[tuple[bytes, bytes]] = []
    position = 8
    while position < len(drawn):
        length, kind = struct.unpack(">I4s", drawn[position : position + 8])
        chunks.append((kind, drawn[position + 8 : position + 8 + length]))
        position += 12 + length
    pixels = zlib.decompress(b"".join(body for kind, body in chunks if kind == b"IDAT"))
    header = next(body for kind, body in chunks if kind == b"IHDR")
    kept = [(b"IHDR", header), (b"IDAT", zlib.compress(pixels, 6)), (b"IEND", b"")]
    return drawn[:8] + b"".join(_png_chunk(kind, body) for kind, body in kept)


def _png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def save_chart(chart: Any, path: Path) -> None:
    """Write a chart as ``.svg`` or ``.png``, without a browser."""
    svg = chart_svg(chart)
    if path.suffix == ".svg":
        path.write_text(svg, encoding="utf-8")
    else:
        path.write_bytes(svg_png(svg))
