"""What a large study costs: analysis, charts and report of 100 cases with 10 measured trials each.

The trials are real ones of small cases with inline ranks. Opening the folder, publishing its bundle and verifying
that are then timed in processes of their own.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec

import aner_nb as aner
from aner_nb import machine
from aner_nb.execution import run
from aner_nb.inventory import configuration_id

CHILD = """
import json, resource, sys, time
from pathlib import Path
began = time.perf_counter()
if sys.argv[1] == "publish":
    import aner_nb as aner
    aner.open_study(sys.argv[2]).publish()
else:
    from aner_nb.verification import verify
    assert verify(Path(sys.argv[2])) == []
seconds = time.perf_counter() - began
print(json.dumps({"seconds": seconds, "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""


def large_suite(cases: int, trials: int) -> aner.Suite:
    """Return cases of alternating kind: standalone, and a group of the same work."""
    made: list[aner.Case] = []
    for index in range(cases):
        case = aner.Case(
            f"case-{index:03}",
            data=aner.iris(),
            layers=[8, 3],
            dtype="float64",
            batch=30,
            epochs=3,
            seed=index // 2,
            ranks=["numpy"] * (1 + index % 2),
            channel="inline",
        )
        made.append(case)
    return aner.Suite("large", tuple(made), repetitions=trials)


@contextlib.contextmanager
def placed_on(platform: Any) -> Generator[None]:
    """Let inline ranks count as ranks of a platform, so that groups have a baseline."""

    def run_placed(case: aner.Case, host: Any, **options: Any) -> aner.Trial:
        trial = run(case, host, **options)
        ranks = tuple(
            msgspec.structs.replace(
                rank,
                placement=f"{platform.name}/{rank.placement}",
                configuration_id=platform.configuration_id,
            )
            for rank in trial.receipt.ranks
        )
        return dataclasses.replace(trial, receipt=msgspec.structs.replace(trial.receipt, ranks=ranks))

    with mock.patch("aner_nb.study.run", run_placed):
        yield


def measure(what: str, folder: Path) -> dict[str, float]:
    """Return seconds and peak memory of a fresh process that does it."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, what, str(folder)], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    facts = machine.capacity()
    platform = SimpleNamespace(name="Atlas-01", capacity=facts, configuration_id=configuration_id(facts))
    with tempfile.TemporaryDirectory() as name, placed_on(platform):
        folder = Path(name)
        aner.run_suite(
            large_suite(options.cases, options.trials), SimpleNamespace(platforms=(platform,)), out=folder
        )
        found = {what: measure(what, folder) for what in ("publish", "verify")}
        size = sum(path.stat().st_size for path in (folder / "public").rglob("*") if path.is_file())
    print(f"{options.cases} cases, {options.trials} measured trials each; bundle {size / 2**20:.1f} MiB")
    for what, figures in found.items():
        print(f"{what:<8} {figures['seconds']:7.2f} s {figures['peak_mib']:7.0f} MiB")
    if options.json:
        options.json.write_text(json.dumps({**vars(options), "json": None, "bundle_bytes": size, **found}))


if __name__ == "__main__":
    main()
