"""What a public bundle shows of a machine's backends, as a short text for an issue."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aner_nb.analysis import CaseSummary, StudySummary
from aner_nb.published import PublicBundle
from aner_nb.receipts import RankRecord, TrialReceipt
from aner_nb.verification import verify


def hardware_report(folder: Path) -> str:
    """Return Markdown: the machines, where each backend computed, agreement, what was not run, what `verify` says.

    It holds nothing that the public bundle does not hold.

    Raises
    ------
    AnerError
        If the folder holds no bundle.
    """
    bundle = PublicBundle(folder)
    summary, receipts = bundle.summary(), bundle.receipts()
    findings = verify(folder)
    configurations = bundle.document("configurations").values()
    sections = [
        "## Machines",
        *(_machine(configuration) for configuration in configurations),
        "",
        "## Where gradients were computed",
        *_proofs(receipts),
        "",
        "## Cases",
        *_cases(summary),
        "",
        "## Verification",
        *(map(str, findings) if findings else ["nothing found: the bundle is what its files say"]),
    ]
    return "\n".join([f"# Hardware: suite {bundle.document('suite')['name']}", "", *sections, ""])


def _machine(configuration: Any) -> str:
    capacity = configuration["capacity"]
    packages = ", ".join(f"{name} {version}" for name, version in sorted(capacity["packages"].items()))
    devices = "; ".join(", ".join(f"{key} {value}" for key, value in gpu.items()) for gpu in capacity["gpus"])
    return (
        f"- {configuration['platform']}: {capacity['system']} {capacity['machine']}, {capacity['processor']}, "
        f"{capacity['usable_cores']} cores, {capacity['memory_gib']} GiB; devices: {devices or 'none'}; {packages}"
    )


def _proofs(receipts: Sequence[TrialReceipt]) -> list[str]:
    """Return one line for each backend and device that was seen, with what its trials proved."""
    found: dict[str, list[RankRecord]] = {}
    for receipt in receipts:
        for rank in receipt.ranks:
            label = " (emulated)" if rank.proof.emulated else ""
            key = f"{rank.placement.partition('/')[2]} with {rank.proof.framework}{label}"
            found.setdefault(key, []).append(rank)
    return [
        f"- {key}: {len(ranks)} rank(s); produced on {_set(ranks, 'produced_on')}, executed graph on "
        f"{_set(ranks, 'operations_on')}"
        for key, ranks in sorted(found.items())
    ]


def _set(ranks: Sequence[RankRecord], field: str) -> str:
    return ", ".join(sorted({device for rank in ranks for device in getattr(rank.proof, field)}))


def _cases(summary: StudySummary) -> list[str]:
    lines = ["| case | ranks | native fit, s | agrees | |", "|---|---|---|---|---|"]
    return lines + [_case(case) for case in summary.cases]


def _case(case: CaseSummary) -> str:
    fit = f"{case.native_fit.median_ns / 1e9:.3f}" if case.native_fit else ""
    agrees = ""
    if case.agreement is not None:
        agrees = f"{'yes' if case.agreement.agrees else 'NO'}, {case.agreement.maximum_relative:.1e}"
    reason = "" if case.status == "passed" else ": " + case.reason.replace("|", "/")
    status = case.status.replace("_", " ")
    return f"| {case.case} | {' + '.join(case.placements)} | {fit} | {agrees} | {status}{reason} |"
