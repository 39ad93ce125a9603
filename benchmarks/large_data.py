"""Train on Parquet that is larger than what any process may hold, and print each process's largest memory.

Makes the rows (a folder of Parquet files), describes them, and trains one epoch over two ranks on this host. Every
process of the run is watched ten times a second: its resident memory's high water, as the kernel counts it. Exits
with 1 if one was above the limit.

    python benchmarks/large_data.py --folder /tmp/large --rows 20000000 --json large.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil

FILES = 16
GROUP = 125_000


def make(folder: Path, rows: int, features: int) -> None:
    """Write the rows: normal numbers, and a class that depends on some of them."""
    import pyarrow
    from pyarrow import parquet

    folder.mkdir(parents=True)
    bounds = np.linspace(0, rows, FILES + 1).astype(int)
    names = [f"x{index}" for index in range(features)]
    schema = pyarrow.schema([*((name, pyarrow.float32()) for name in names), ("y", pyarrow.bool_())])
    for number, (start, stop) in enumerate(itertools.pairwise(bounds.tolist())):
        generator = np.random.default_rng(number)
        with parquet.ParquetWriter(
            folder / f"part-{number:02}.parquet", schema, compression="none", use_dictionary=False
        ) as file:
            for first in range(start, stop, GROUP):
                values = generator.standard_normal((min(GROUP, stop - first), features), np.float32)
                label = values[:, 0] * values[:, 1] + values[:, 2] > 0
                columns = [
                    *(pyarrow.array(values[:, index]) for index in range(features)),
                    pyarrow.array(label),
                ]
                file.write_table(pyarrow.Table.from_arrays(columns, schema=schema))


class Watch(threading.Thread):
    """Keeps the largest memory of this process and all below it."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.found: dict[int, dict] = {}
        self.over = threading.Event()

    def run(self) -> None:
        own = psutil.Process()
        while not self.over.wait(0.1):
            for process in [own, *own.children(recursive=True)]:
                try:
                    status = Path(f"/proc/{process.pid}/status").read_text()
                    fields = dict(line.split(":", 1) for line in status.splitlines())
                    kept = self.found.setdefault(process.pid, {"bytes": 0, "what": what(process, own)})
                    kept["bytes"] = max(kept["bytes"], int(fields["VmHWM"].split()[0]) * 1024)
                except (psutil.Error, OSError, KeyError):
                    continue


def what(process: psutil.Process, own: psutil.Process) -> str:
    if process.pid == own.pid:
        return "client and coordinator"
    line = " ".join(process.cmdline())
    if "--make" in line:
        return "generator of the rows"
    for mark, name in (
        ("spawn_main", "Dask process (nanny, scheduler or rank)"),
        ("resource_tracker", "tracker"),
    ):
        if mark in line:
            return name
    return Path(process.cmdline()[0]).name if process.cmdline() else "process"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="removed at the end if this made it")
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--features", type=int, default=32)
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--backend", default="cpu:1")
    parser.add_argument("--limit-gib", type=float, default=2.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--make", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    source = given.folder / "rows.parquet"
    if given.make:
        make(source, given.rows, given.features)
        return 0
    free = shutil.disk_usage(given.folder.parent).free
    needed = given.rows * given.features * 16
    if free < needed:
        print(f"{free / 2**30:.1f} GiB are free; {needed / 2**30:.1f} GiB are needed.")
        return 2
    watch = Watch()
    watch.start()
    try:
        result = measure(given, source)
    finally:
        watch.over.set()
        if not given.keep:
            shutil.rmtree(given.folder, ignore_errors=True)
    watch.join()
    processes = sorted(watch.found.values(), key=lambda kept: -kept["bytes"])
    result |= {"limit_gib": given.limit_gib, "processes": processes}
    for name, value in result.items():
        if name != "processes":
            print(f"{name:24} {value}")
    for kept in processes:
        print(f"{kept['bytes'] / 2**20:9,.0f} MiB  {kept['what']}")
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")
    return int(processes[0]["bytes"] > given.limit_gib * 2**30)


def measure(given: argparse.Namespace, source: Path) -> dict:
    import aner_nb as aner

    seconds = {}
    began = time.perf_counter()

    def lap(name: str) -> None:
        nonlocal began
        seconds[f"{name}_s"] = round(time.perf_counter() - began, 1)
        began = time.perf_counter()

    if not source.exists():
        subprocess.run([sys.executable, __file__, *sys.argv[1:], "--make"], check=True)
    lap("generate")
    data = aner.stored(source, target="y", budget_bytes=256 * 2**20)
    lap("describe")
    with aner.local_cluster([given.backend] * 2) as cluster:
        case = aner.Case(
            "large",
            data=data,
            layers=[32, 2],
            batch=given.batch,
            epochs=1,
            optimizer=aner.Adam(0.003),
            ranks=[given.backend] * 2,
        )
        trial = aner.run(case, cluster).raise_unless_passed()
    lap("trial")
    receipt = trial.receipt
    return {
        "rows": given.rows,
        "features": given.features,
        "parquet_gib": round(sum(file.stat().st_size for file in source.iterdir()) / 2**30, 2),
        **seconds,
        "prepare_s": round(receipt.clocks.source_ns / 1e9, 1),
        "native_fit_s": round(receipt.clocks.native_fit_ns / 1e9, 1),
        "updates": receipt.counts.updates,
        "train_rows": receipt.counts.train_rows,
        "test_accuracy": receipt.test.accuracy,
        "staging": [rank.staging for rank in receipt.ranks],
        "row_budget_bytes": [rank.row_budget_bytes for rank in receipt.ranks],
        "partition_bytes": [rank.memory.partition_bytes for rank in receipt.ranks],
        "rank_rss_high_water_bytes": [rank.memory.worker_rss_high_water_bytes for rank in receipt.ranks],
    }


if __name__ == "__main__":
    sys.exit(main())
