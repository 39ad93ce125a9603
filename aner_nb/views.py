"""Results as HTML for notebooks: tables of escaped text, readable with no kernel and no script."""

from __future__ import annotations

import html
import importlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

from aner_nb.records import in_words, told

_NANOSECONDS: Final = 1e9
_QUIET: Final = "opacity:.75"
_LEFT: Final = "text-align:left;vertical-align:top"


def text(value: object) -> str:
    """Return a value as HTML text: names from files never become markup."""
    return html.escape(str(value), quote=True)


def counted(count: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def table(head: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """Return an HTML table of plain values."""
    titles = "".join(f'<th scope="col" style="{_LEFT}">{text(title)}</th>' for title in head)
    lines = "".join(
        "<tr>" + "".join(f'<td style="{_LEFT}">{text(value)}</td>' for value in row) + "</tr>" for row in rows
    )
    above = f'<caption style="{_LEFT};{_QUIET}">{text(caption)}</caption>' if caption else ""
    return f"<table>{above}<thead><tr>{titles}</tr></thead><tbody>{lines}</tbody></table>"


def _facts(pairs: Iterable[tuple[str, object]]) -> str:
    lines = "".join(
        f'<tr><th scope="row" style="{_LEFT};font-weight:normal;{_QUIET}">{text(label)}</th>'
        f'<td style="{_LEFT}">{text(value)}</td></tr>'
        for label, value in pairs
    )
    return f"<table><tbody>{lines}</tbody></table>"


def _whole(title: str, note: str, *parts: str) -> str:
    quiet = f' <span style="{_QUIET}">{text(note)}</span>' if note else ""
    return f'<div class="aner-view"><p><b>{text(title)}</b>{quiet}</p>{"".join(parts)}</div>'


def case_html(case: Any) -> str:
    """Return a `Case`: what is computed, and who computes it."""
    record = case.to_record()
    source = dict(record["data"])
    name = source.pop("source", "data")
    options = ", ".join(f"{key} {value}" for key, value in source.items() if value is not None)
    pairs = [
        ("data", f"{name} ({options})" if options else name),
        ("layers", case.layers_text),
        ("dtype", case.dtype),
        ("batch, epochs", f"{case.batch} rows over all ranks, {case.epochs} epochs"),
        ("optimizer", in_words(record["optimizer"])),
        *((name.replace("_", " "), told(value)) for name, value in case.training_record().items()),
        ("seed", case.seed),
        ("contract id", case.contract_id[:16]),
    ]
    ranks = [
        (rank, placement, weight)
        for rank, (placement, weight) in enumerate(zip(case.placements, case.weights, strict=True))
    ]
    return _whole(
        case.name,
        "group" if case.is_group else "standalone",
        _facts(pairs),
        table(("rank", "placement", "weight"), ranks),
    )


def plan_html(plan: Any) -> str:
    """Return a `Plan`: its counts, and each rank's share of a batch."""
    first, *_ = plan.describe().splitlines()
    full = plan.batch_rows(0)
    shares = [
        (rank, weight, f"{len(plan.partition(rank)):,}", f"{weight / sum(plan.weights):.1%} of {full:,}")
        for rank, weight in enumerate(plan.weights)
    ]
    return _whole(
        "Plan",
        "",
        f"<p>{text(first)}</p>",
        table(("rank", "weight", "rows held", "share of a batch"), shares),
    )


def cluster_html(cluster: Any) -> str:
    """Return a `Cluster`: machines and what they offer."""
    rows: list[Sequence[object]] = []
    for platform in cluster.platforms:
        own = [offer for offer in cluster.offers if offer.placement.platform == platform.name]
        facts = platform.capacity
        rows.append(
            (
                platform.name,
                facts.get("processor", ""),
                facts.get("usable_cores", ""),
                f"{facts.get('memory_gib', '?')} GiB",
                ", ".join(str(offer.placement).split("/")[-1] for offer in own),
                ", ".join(sorted({offer.tensorflow or "none" for offer in own})),
                platform.configuration_id[:12],
            )
        )
    head = ("platform", "processor", "cores", "memory", "placements", "TensorFlow", "configuration")
    return _whole(
        "Cluster",
        f"{len(cluster.platforms)} platform(s), {len(cluster.offers)} placement(s)",
        table(head, rows),
    )


def trial_html(trial: Any) -> str:
    """Return a `Trial`: clocks, quality, ranks with their proof, and the contract's checks."""
    receipt = trial.receipt
    note = f"{receipt.role.replace('_', '-')} {receipt.repetition}: {receipt.status.replace('_', ' ')}"
    parts: list[str] = []
    if receipt.failure is not None:
        parts.append(f"<p>{text(trial.error or receipt.failure.reason)}</p>")
    if receipt.clocks is not None:
        parts.append(_facts(_outcome(receipt)))
    if receipt.ranks:
        parts.append(_ranks(receipt))
    broken = [check for check in receipt.checks if not check.passed]
    if receipt.checks:
        words = "; ".join(f"{check.name}: {check.detail}" for check in broken) or "all of them hold"
        parts.append(f'<p style="{_QUIET}">{len(receipt.checks)} checks of the contract: {text(words)}.</p>')
    return _whole(receipt.case_name, note, *parts)


def _outcome(receipt: Any) -> list[tuple[str, object]]:
    clocks = receipt.clocks
    pairs: list[tuple[str, object]] = [
        ("native fit", f"{clocks.native_fit_ns / _NANOSECONDS:.3f} s"),
        ("complete command", f"{clocks.complete_command_ns / _NANOSECONDS:.2f} s"),
    ]
    if receipt.test is not None and receipt.test.loss is not None:
        pairs.append(("test loss", f"{receipt.test.loss:.4f}"))
        if receipt.test.accuracy is not None:
            pairs.append(("test accuracy", f"{receipt.test.accuracy:.2%}"))
    if receipt.counts is not None:
        counts = receipt.counts
        pairs.append(
            ("updates", f"{counts.updates:,} over {counts.rows:,} rows; {counts.parameters:,} parameters")
        )
    if receipt.stopping is not None:
        ended = "stopped early after" if receipt.stopping.stopped else "all"
        best = f"the best was epoch {receipt.stopping.best_epoch + 1}"
        pairs.append(("epochs", f"{ended} {receipt.stopping.epochs:,}; {best}"))
    if receipt.fingerprints is not None:
        pairs.append(("final parameters", receipt.fingerprints.final_parameters[:16]))
    return pairs


def _ranks(receipt: Any) -> str:
    rows = [
        (
            rank,
            one.placement,
            one.weight,
            f"{one.rows:,}",
            ", ".join(one.proof.produced_on) + (" (emulated)" if one.proof.emulated else ""),
            _milliseconds(one.phases.get("rank_compute")),
            f"{one.memory.worker_rss_high_water_bytes / 2**20:,.0f} MiB",
        )
        for rank, one in enumerate(receipt.ranks)
    ]
    head = ("rank", "placement", "weight", "rows", "gradients made on", "median compute", "RSS high water")
    return table(head, rows)


def _milliseconds(phase: Any) -> str:
    return "" if phase is None else f"{phase.median_ns / 1e6:.3f} ms"


def fitted_html(fitted: Any) -> str:
    """Return a `Fitted`: its layers and its trial."""
    layers = fitted.work.case.layers_text
    head = _whole("Trained model", f"{fitted.work.model.features} features → {layers}")
    return head + trial_html(fitted.trial)


def study_html(study: Any) -> str:
    """Return a `Study`: charts as still pictures, and its table."""
    # The charts are above studies in the order of modules; they are looked up when somebody looks.
    return str(importlib.import_module("aner_nb.still").study_html(study))


def study_text(study: Any) -> str:
    """Return a `Study` where there is no HTML: its table."""
    return str(importlib.import_module("aner_nb.still").study_text(study))
