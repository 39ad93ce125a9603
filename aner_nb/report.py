"""The report: one HTML file that works from disk, without scripts and without the network."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from aner_nb.analysis import CaseSummary, StudySummary
from aner_nb.charts import darkened
from aner_nb.facts import public_view
from aner_nb.tables import ranks_text

_CONTRACT: Final = (
    "Each rank computed forward and backward in the backend that it declares; the executed graph shows it.",
    "One optimizer update a global batch. A group saw exactly the rows, in exactly the order, of the standalone run.",
    "The coordinator owned the float64 parameters and the optimizer. Ranks sent float64 sums, added in rank order.",
    "Splits came first, normalization used training rows only, validation followed each epoch, the test came once.",
    "One warm-up a case is kept and left out of the statistics. Trials of all cases were interleaved in seeded rounds.",
    "Statistics are the median and the observed minimum and maximum. They are not confidence intervals.",
    "Native fit: first update request to last update applied, with the epochs' validation. Complete command: from "
    "reading the data to the end of the ranks, process start and compilation included, writing of reports not.",
    "A group's ratio is the fastest standalone median of its own placements over the group's median, for each clock "
    "separately. Below 1 the group is slower.",
)
_LIMITS: Final = (
    "The figures hold for these machines, versions, data and models; another machine may rank the cases otherwise.",
    "With three repetitions, three against three separate by pure chance once in twenty times.",
    "Memory scopes overlap. Resident memory contains shared libraries, and on Metal the device's buffers.",
)
_DOWNLOADS: Final = (
    "trials.jsonl",
    "warmups.jsonl",
    "summaries.json",
    "configurations.json",
    "suite.json",
    "SHA256SUMS",
)

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #fff; --line: #ddd; --soft: #f4f4f4; --link: #0059a0; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --paper: #111; --line: #3a3a3a; --soft: #1c1c1c; --link: #7cc4f5; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 72rem; color: var(--ink); background: var(--paper);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; } h2 { margin-top: 2.5rem; font-size: 1.25rem; }
a { color: var(--link); }
.scroll { overflow-x: auto; } .scroll:focus-visible { outline: 2px solid var(--link); }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding: .25rem 0; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
td.number, th.number { text-align: right; white-space: nowrap; }
tbody th { font-weight: 600; white-space: nowrap; }
.charts { display: flex; flex-wrap: wrap; gap: 1.5rem; align-items: flex-start; }
figure { margin: 0; max-width: 100%; } figcaption { font-size: .875rem; max-width: 24rem; }
figure svg { max-width: 100%; height: auto; }
.dark { display: none; }
@media (prefers-color-scheme: dark) { .dark { display: block; } .light { display: none; } }
@media print { body { max-width: none; font-size: 10pt; } .dark { display: none; } .light { display: block; }
  figure, tr { break-inside: avoid; } .scroll { overflow: visible; } }
"""


def render_report(
    summary: StudySummary,
    charts: Mapping[str, str],
    configurations: Mapping[str, Any],
    suite: Mapping[str, Any],
) -> str:
    """Return the report of a study as one HTML text.

    Parameters
    ----------
    charts
        SVG by name, as `study_charts` gives it.
    configurations, suite
        As they are published.
    """
    title = f"Study {escape(str(suite['name']))}"
    figures = json.dumps(public_view(summary), ensure_ascii=False).replace("<", "\\u003c")
    body = [
        f"<header><h1>{title}</h1><p>{escape(str(suite['description']))}</p></header>",
        f"<main><section aria-labelledby='answer'><h2 id='answer'>The answer</h2>{_answer(summary)}</section>",
        _section("table", "All cases", _table(summary)),
        _section("charts", "Charts", _charts(charts)),
        _section("warnings", "How far to trust it", _list(summary.warnings or ("No warning was found.",))),
        _section("contract", "What every figure keeps to", _list(_CONTRACT)),
        _section("platforms", "Platforms", _platforms(configurations)),
        _section("limits", "Limits", _list(_LIMITS)),
        _section("files", "Files", _files(charts)),
        "</main>",
    ]
    return (
        f"<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><title>{title}</title>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + f'\n<script type="application/json" id="summaries">{figures}</script>\n</body></html>\n'
    )


def _section(identity: str, title: str, content: str) -> str:
    return f"<section aria-labelledby='{identity}'><h2 id='{identity}'>{title}</h2>{content}</section>"


def _list(items: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"


def _answer(summary: StudySummary) -> str:
    """Say how many groups won, which case of each work was fastest, and whether all learned the same."""
    compared = [case.fit_comparison for case in summary.cases if case.fit_comparison is not None]
    won = sum(comparison.ratio > 1 for comparison in compared)
    sentences = [f"{won} of {len(compared)} groups beat their fastest standalone placement in native fit."]
    judged = [case.agreement for case in summary.cases if case.agreement is not None]
    agreeing = sum(agreement.agrees for agreement in judged)
    sentences.append(f"{agreeing} of {len(judged)} cases agree with the reference of their work.")
    idle = [case.case for case in summary.cases if case.status != "passed"]
    if idle:
        sentences.append(f"Not measured: {', '.join(idle)}.")
    return f"<p>{escape(' '.join(sentences))}</p>{_fastest(summary)}"


def _fastest(summary: StudySummary) -> str:
    works: dict[str, list[CaseSummary]] = {}
    for case in summary.cases:
        if case.native_fit is not None:
            works.setdefault(case.work_id, []).append(case)
    lines = [
        f"{escape(own[0].case)}: fastest {escape(best.case)}, {best.native_fit.median_ns / 1e9:.3g} s"
        for own in works.values()
        if len(own) > 1
        for best in [min(own, key=lambda case: case.native_fit.median_ns if case.native_fit else 0)]
        if best.native_fit is not None
    ]
    return "<ul>" + "".join(f"<li>{line}</li>" for line in lines) + "</ul>"


def _table(summary: StudySummary) -> str:
    heads = (
        "case",
        "ranks",
        "native fit, s",
        "ratio",
        "complete command, s",
        "ratio",
        "test",
        "agreement",
        "trials",
    )
    head = "".join(f"<th scope='col'>{name}</th>" for name in heads)
    rows = "".join(_table_row(case) for case in summary.cases)
    return (
        "<div class='scroll' tabindex='0' role='region' aria-label='All cases'><table>"
        "<caption>Durations: median [observed minimum : maximum] of the measured trials. Agreement: largest "
        "difference of a parameter, relative.</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _table_row(case: CaseSummary) -> str:
    ranks = ranks_text(case.placements, case.weights)
    head = f"<tr><th scope='row'>{escape(case.case)}</th><td>{escape(ranks)}</td>"
    if case.status != "passed":
        reason = f"{case.status.replace('_', ' ')}: {case.reason}"
        return f"{head}<td colspan='6'>{escape(reason)}</td><td class='number'>0</td></tr>"
    cells = [
        _spread(case.native_fit),
        _ratio(case.fit_comparison, case),
        _spread(case.complete_command),
        _ratio(case.command_comparison, case),
        _test(case),
        _agreement(case),
        str(case.measured),
    ]
    return head + "".join(f"<td class='number'>{cell}</td>" for cell in cells) + "</tr>"


def _spread(spread: Any) -> str:
    low, middle, high = (value / 1e9 for value in (spread.minimum_ns, spread.median_ns, spread.maximum_ns))
    return f"{middle:.3f} [{low:.3f} : {high:.3f}]"


def _ratio(comparison: Any, case: CaseSummary) -> str:
    if comparison is None:
        return escape(case.no_baseline)
    return f"{comparison.ratio:.2f} of {escape(comparison.baseline)}"


def _test(case: CaseSummary) -> str:
    return f"{case.test_loss:.4f}" if case.test_accuracy is None else f"{case.test_accuracy:.2%}"


def _agreement(case: CaseSummary) -> str:
    if case.agreement is None:
        return "no reference"
    verdict = "agrees" if case.agreement.agrees else "DIFFERS"
    return f"{verdict}, {case.agreement.maximum_relative:.1e}"


_CHART_TEXTS: Final = {
    "duration": "Median and observed range of both clocks for each case.",
    "scaling": "Speed of each group over its fastest member alone.",
    "validation": "Validation loss after each epoch for each work.",
    "memory": "Largest memory of each case by scope; scopes overlap.",
}


def _charts(charts: Mapping[str, str]) -> str:
    figures = [_figure(charts[name], text) for name, text in _CHART_TEXTS.items() if name in charts]
    return f"<div class='charts'>{''.join(figures)}</div>"


def _figure(svg: str, text: str) -> str:
    """Return a chart for light and for dark, with its text; the table has the same figures."""
    label = f"role='img' aria-label='{escape(text, quote=True)}'"
    return (
        f"<figure><div class='light' {label}>{svg}</div><div class='dark' {label}>{darkened(svg)}</div>"
        f"<figcaption>{escape(text)} The figures are in the table and the files.</figcaption></figure>"
    )


def _platforms(configurations: Mapping[str, Any]) -> str:
    rows: list[str] = []
    for identity, facts in configurations.items():
        capacity = facts["capacity"]
        packages = ", ".join(f"{name} {version}" for name, version in sorted(capacity["packages"].items()))
        gpus = ", ".join(f"{gpu['model']}, {gpu['memory_gib']} GiB" for gpu in capacity["gpus"]) or "none"
        cells = (
            f"{capacity['processor']}, {capacity['usable_cores']} cores",
            f"{capacity['memory_gib']} GiB",
            gpus,
            f"{capacity['system']} {capacity['machine']}",
            packages,
            identity[:12],
        )
        rows.append(
            f"<tr><th scope='row'>{escape(str(facts['platform']))}</th>"
            + "".join(f"<td>{escape(str(cell))}</td>" for cell in cells)
            + "</tr>"
        )
    heads = ("platform", "processor", "memory", "GPU", "system", "software", "configuration")
    head = "".join(f"<th scope='col'>{name}</th>" for name in heads)
    return (
        "<div class='scroll' tabindex='0' role='region' aria-label='Platforms'><table>"
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _files(charts: Mapping[str, str]) -> str:
    links = "".join(f"<li><a href='{name}' download>{name}</a></li>" for name in _DOWNLOADS)
    drawn = "".join(
        f"<li><a href='charts/{name}.{kind}' download>{name}.{kind}</a></li>"
        for name in charts
        for kind in ("svg", "png")
    )
    return (
        f"<ul>{links}{drawn}</ul><p>Check them all with <code>aner-nb verify</code> and this folder; that "
        "recomputes checksums, ids, counts, medians, ratios and agreement from the trials.</p>"
    )
