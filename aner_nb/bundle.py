"""The public bundle: what is published of a study, and nothing else.

Everything goes through `public_view`, which lets only declared fields pass. Machine facts pass an allow-list of their
own. A case is published whole, since its contract id is computed from it; a person's own data appears in it as shape,
type and digest.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from aner_nb.analysis import StudySummary
from aner_nb.case import canonical_json
from aner_nb.charts import study_charts, svg_png
from aner_nb.errors import AnerError
from aner_nb.facts import public_view
from aner_nb.inventory import is_opaque
from aner_nb.machine import EMULATED
from aner_nb.receipts import TrialReceipt
from aner_nb.report import render_report
from aner_nb.verification import CHECKSUMS

_CAPACITY: Final = ("system", "machine", "processor", "cores", "usable_cores", "memory_gib")
_GPU: Final = ("model", "memory_gib", "driver", "compute_capability")

_NO_TESTS: Final = "Emulated results are for tests: publish a study without them."


class BundleError(AnerError):
    """A study cannot be published as it is."""

    kind = "bundle_error"


def write_bundle(
    target: Path,
    *,
    summary: StudySummary,
    receipts: Sequence[TrialReceipt],
    configurations: Mapping[str, Any],
    suite: Mapping[str, Any],
) -> Path:
    """Write the public bundle of a study to the folder `target`; an older one is replaced when this is complete.

    Parameters
    ----------
    configurations
        Configuration id to platform and capacity facts, as the results folder keeps them.
    suite
        The suite's record: cases, seeds, counts.

    Raises
    ------
    BundleError
        If a trial ran on an emulated device, a machine's name is not an opaque one, the facts of a machine are
        damaged, or the target holds something else than a bundle.
    """
    _refuse(receipts, configurations)
    _refuse_to_replace(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=".bundle-", dir=target.parent))
    try:
        _write_files(fresh, summary, receipts, configurations, suite)
        fresh.chmod(0o755)
        if target.exists():
            shutil.rmtree(target)
        fresh.rename(target)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return target


def results_document(
    *,
    summary: StudySummary,
    receipts: Sequence[TrialReceipt],
    configurations: Mapping[str, Any],
    suite: Mapping[str, Any],
) -> bytes:
    """Return what is published of a study, without its trials, as one JSON document.

    Raises
    ------
    BundleError
        As `write_bundle`.
    """
    _refuse(receipts, configurations)
    return _document(
        {
            "suite": public_suite_record(suite),
            "summaries": public_view(summary),
            "configurations": public_configuration(configurations),
        }
    )


def _refuse(receipts: Sequence[TrialReceipt], configurations: Mapping[str, Any]) -> None:
    for receipt in receipts:
        if EMULATED in receipt.software or any(rank.proof.emulated for rank in receipt.ranks):
            raise BundleError("a trial ran on an emulated device.", where=receipt.case_name, remedy=_NO_TESTS)
    for facts in configurations.values():
        if not isinstance(facts, Mapping) or "platform" not in facts:
            raise BundleError(
                "the facts of a machine are damaged.",
                where="configurations.json",
                remedy="Run a trial into the folder again: they are written anew.",
            )
        if EMULATED in facts["capacity"]["packages"]:
            raise BundleError(
                "a machine emulates an accelerator.", where=str(facts["platform"]), remedy=_NO_TESTS
            )
        if not is_opaque(str(facts["platform"])):
            raise BundleError(
                f"{facts['platform']!r} is not an opaque machine name.",
                remedy="Name machines like Atlas-01 in the inventory.",
            )


def _refuse_to_replace(target: Path) -> None:
    """Refuse a target that is no bundle: publishing must not delete a person's other files."""
    if target.is_dir():
        others = sorted(path.name for path in target.iterdir())
        if others and CHECKSUMS not in others:
            raise BundleError(
                f"the folder holds {others[0]!r} and no bundle, and would be replaced.",
                where=str(target),
                remedy="Name a new folder for the bundle.",
            )
    elif target.exists():
        raise BundleError("a file is there.", where=str(target), remedy="Name a new folder for the bundle.")


def _write_files(
    folder: Path,
    summary: StudySummary,
    receipts: Sequence[TrialReceipt],
    configurations: Mapping[str, Any],
    suite: Mapping[str, Any],
) -> None:
    public_configurations = public_configuration(configurations)
    public_suite = public_suite_record(suite)
    ordered = sorted(receipts, key=lambda receipt: (receipt.round, receipt.position, receipt.case_name))
    measured = [receipt for receipt in ordered if receipt.role == "measured"]
    warm_ups = [receipt for receipt in ordered if receipt.role == "warm_up"]
    (folder / "trials.jsonl").write_bytes(_lines(measured))
    (folder / "warmups.jsonl").write_bytes(_lines(warm_ups))
    (folder / "summaries.json").write_bytes(_document(public_view(summary)))
    (folder / "configurations.json").write_bytes(_document(public_configurations))
    (folder / "suite.json").write_bytes(_document(public_suite))
    charts = study_charts(summary, ordered)
    (folder / "charts").mkdir()
    for name, svg in charts.items():
        (folder / "charts" / f"{name}.svg").write_text(svg, encoding="utf-8")
        (folder / "charts" / f"{name}.png").write_bytes(svg_png(svg))
    report = render_report(summary, charts, public_configurations, public_suite)
    (folder / "report.html").write_text(report, encoding="utf-8")
    written = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    sums = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}" for name in written]
    (folder / CHECKSUMS).write_text("\n".join(sums) + "\n")


def public_configuration(configurations: Mapping[str, Any]) -> dict[str, Any]:
    """Return each configuration's platform and its capacity facts that may be published."""
    return {
        identity: {
            "platform": facts["platform"],
            "capacity": {
                **{name: facts["capacity"][name] for name in _CAPACITY},
                "gpus": [{name: gpu[name] for name in _GPU} for gpu in facts["capacity"]["gpus"]],
                "packages": dict(facts["capacity"]["packages"]),
            },
        }
        for identity, facts in sorted(configurations.items())
    }


def public_suite_record(suite: Mapping[str, Any]) -> dict[str, Any]:
    """Return the suite's record: names, counts, seed and cases."""
    kept = ("name", "description", "placements", "warm_ups", "repetitions", "seed")
    return {
        **{name: suite[name] for name in kept},
        "cases": [dict(case) for case in suite["cases"]],
        **({"earlier": list(suite["earlier"])} if suite.get("earlier") else {}),
    }


def _lines(receipts: Sequence[TrialReceipt]) -> bytes:
    return b"".join(canonical_json(public_view(receipt)) + b"\n" for receipt in receipts)


def _document(value: object) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False).encode() + b"\n"
