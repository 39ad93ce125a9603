"""Hurt running trials at random moments, in every way that a machine can fail, and look at what comes of it.

``python -m tests.faults.injections --count 40 --seed 1 --append faults.jsonl`` adds one line an injection;
``--table faults.jsonl`` prints what all lines come to. Kinds that this machine does not permit are said to be left out.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import gc
import json
import os
import random
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import psutil

import aner_nb as aner
from aner_nb.errors import AnerError
from aner_nb.events import StageEntered
from aner_nb.store import ResultsFolder
from tests.faults.suite_kills import SUITE, finished_files
from tests.hosts.network import HOSTS, Hosts, end, hosts, why_not

DEADLINE_SECONDS = 2.0
HANG_SECONDS = 90.0
UNHURT_SECONDS = 10.0
"""A trial that still trains so long after the fault has not noticed it."""
KINDS = {
    "rank killed": "rank_lost",
    "rank frozen": "deadline_exceeded",
    "out of memory": "rank_failed",
    "worker leaves during placement": "rank_lost",
    "scheduler killed": "cluster_error",
    "coordinator killed": "",
    "network cut": "rank_lost",
}
"""Each kind of fault, with the failure that its trial mostly ends with."""


@dataclass(frozen=True, slots=True)
class Injection:
    """What came of one fault."""

    kind: str
    status: str
    """Of the trial that was hurt; ``killed`` where the coordinator itself was, ``unhurt`` where the fault struck a
    worker that was being replaced anyway and the trial trained on."""
    failure: str
    named: bool
    """Whether the receipt names the rank or the worker, or there was nothing to name."""
    seconds: float
    """From the fault to the end of the trial; of a killed coordinator, to the end of its workers."""
    hung: bool
    lost: int
    """Files of finished trials that changed or went away."""
    wrong: int
    """Passed trials whose final parameters are not those of an undisturbed run."""
    left_over: int
    """Processes, listening ports, descriptors of shared memory, and folders that should be gone."""


def case(**changes: Any) -> aner.Case:
    fields: dict[str, Any] = {
        "layers": [32, 10],
        "dtype": "float64",
        "batch": 30,
        "epochs": 2,
        "ranks": ["numpy"] * 2,
    }
    return aner.Case("hurt", data=aner.digits(), **{**fields, **changes})


def descendants() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def rank_processes(root: psutil.Process) -> list[psutil.Process]:
    """Return the worker processes below a process that nannies started, the latest last."""
    found: list[psutil.Process] = []
    for process in root.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "spawn_main" in " ".join(process.cmdline()):
                found.append(process)
    return sorted(found, key=lambda process: process.create_time())


def traces() -> collections.Counter[str]:
    """Count what a trial must not leave behind in this process and the temporary folder."""
    gc.collect()
    own = psutil.Process()
    links = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            links.append(os.readlink(entry))
    ports = sum(one.status == psutil.CONN_LISTEN for one in own.net_connections("tcp"))
    return collections.Counter(
        memory=sum("aner_nb" in link for link in links),
        folders=len(
            [path for path in Path(tempfile.gettempdir()).glob("aner-*") if (path / "coordinator").exists()]
        ),
        ports=ports,
    )


class At:
    """Act once, on a thread, some time after a trial has entered a stage."""

    def __init__(self, stage: str, delay: float, act: Callable[[], None]) -> None:
        self._stage, self._delay, self._act = stage, delay, act
        self._begun = False
        self.moment: float | None = None

    def see(self, event: object) -> None:
        if isinstance(event, StageEntered) and event.stage == self._stage and not self._begun:
            self._begun = True
            threading.Thread(target=self._go, daemon=True).start()

    def _go(self) -> None:
        time.sleep(self._delay)
        self.moment = time.monotonic()
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            self._act()


def hurt(
    kind: str, cluster: aner.Cluster, at: At, folder: ResultsFolder, expected: np.ndarray, **changes: Any
) -> Injection:
    """Run a trial into which a fault strikes, then a sound one, and compare."""
    before, tracks = finished_files(folder.path), traces()
    trials: list[aner.Trial] = []
    long = case(**{"epochs": 5000, **changes})

    def unhurt() -> bool:
        return at.moment is not None and time.monotonic() > at.moment + UNHURT_SECONDS

    def run() -> None:
        options = {"subscribers": [at.see], "deadline_seconds": DEADLINE_SECONDS, "stop": unhurt}
        trials.append(aner.run(long, cluster, **options))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(HANG_SECONDS)
    ended = time.monotonic()
    if not trials:
        return Injection(kind, "hung", "", False, HANG_SECONDS, True, 0, 0, 0)
    trial = trials[0]
    with folder.writing():
        folder.save(trial)
    after = finished_files(folder.path)
    lost = sum(after.get(name) != digest for name, digest in before.items())
    failure = trial.receipt.failure
    status = "unhurt" if trial.receipt.status == "cancelled" else trial.receipt.status
    passed = status == "passed"
    time.sleep(0.2)
    left = sum((traces() - tracks).values())
    return Injection(
        kind,
        status,
        failure.kind if failure and status != "unhurt" else "",
        status == "unhurt"
        or bool(
            failure and (failure.where.startswith("rank") or re.search("worker|scheduler", failure.what))
        ),
        0.0 if status == "unhurt" else ended - (at.moment or ended),
        hung=status == "unhurt" and kind != "worker leaves during placement",
        lost=lost,
        wrong=int(passed),  # 5000 epochs take minutes: nothing of that case can pass within seconds
        left_over=left,
    )


def sound(
    cluster: aner.Cluster, folder: ResultsFolder, expected: np.ndarray, number: int, **changes: Any
) -> int:
    """Run an undisturbed trial, save it, and return 1 if its bits are wrong; waits for lost workers to return."""
    deadline = time.monotonic() + HANG_SECONDS
    while True:
        cluster.available([aner.Placement("numpy")] * len(case(**changes).ranks))
        trial = aner.run(case(**changes), cluster, repetition=number)
        if trial.receipt.status == "passed":
            break
        if time.monotonic() > deadline:
            raise RuntimeError(f"no sound trial after a fault: {trial.error}")
        time.sleep(0.5)
    with folder.writing():
        folder.save(trial)
    return int(not np.array_equal(trial.parameters, expected))


def local_faults(kinds: list[str], chance: random.Random, folder: Path) -> Iterator[Injection]:
    """Faults of ranks on this host."""
    expected = aner.run(case(channel="inline")).parameters
    assert expected is not None
    results = ResultsFolder(folder / "local")
    with aner.local_cluster(["numpy:1", "numpy:1"]) as cluster:
        for number, kind in enumerate(kinds, 1):
            channel = chance.choice(("shared_memory", "socket"))
            layers = [chance.choice((32, 600)), 10]  # 2 and 45 thousand parameters
            choice = chance.randrange(2)

            def process(choice: int = choice) -> psutil.Process:
                return rank_processes(psutil.Process())[-2:][choice]

            if kind == "out of memory":
                # What a rank may take is less than its rows and parameters need: its next allocation fails.
                cluster._used.clear()  # a worker that is started anew would be free of the limit
                worker, layers = process(), [200_000, 10]
                limit = worker.memory_info().vms + chance.randrange(2**22)
                worker.rlimit(resource.RLIMIT_AS, (limit, limit))

            at = {
                "rank killed": At(
                    "training", chance.uniform(0, 1), lambda: process().send_signal(signal.SIGKILL)
                ),
                "rank frozen": At(
                    "training", chance.uniform(0, 1), lambda: process().send_signal(signal.SIGSTOP)
                ),
                "out of memory": At("placing ranks", 0.0, lambda: None),
                "worker leaves during placement": At(
                    "placing ranks", chance.uniform(0, 0.3), lambda: process().send_signal(signal.SIGKILL)
                ),
            }[kind]
            found = hurt(kind, cluster, at, results, expected, channel=channel, layers=layers)
            wrong = sound(cluster, results, expected, number)
            yield Injection(**{**asdict(found), "wrong": found.wrong + wrong})


def scheduler_faults(count: int, chance: random.Random, folder: Path) -> Iterator[Injection]:
    """Kill the scheduler of a cluster whose workers are processes of their own."""
    expected = aner.run(case(channel="inline")).parameters
    assert expected is not None
    results = ResultsFolder(folder / "scheduler")
    environment = {**os.environ, "ANER_NB_PLACEMENT": "numpy:1"}
    for number in range(1, count + 1):
        file = folder / f"scheduler-{number}.json"

        def start(*command: str) -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                [sys.executable, "-m", *command, "--no-dashboard"],
                env=environment, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip

        common = ("--scheduler-file", str(file), "--host", "127.0.0.1")
        scheduler = start("distributed.cli.dask_scheduler", *common, "--port", "0")
        worker = (
            "--nworkers",
            "1",
            "--nthreads",
            "1",
            "--memory-limit",
            "0",
            "--death-timeout",
            "10",
            "--local-directory",
            str(folder),
        )
        workers = [start("distributed.cli.dask_worker", *common, *worker) for _ in range(2)]
        family: list[psutil.Process] = []
        try:
            cluster = connected(file)
            wrong = sound(cluster, results, expected, number)
            for process in workers:
                family += [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            at = At("training", chance.uniform(0, 1), scheduler.kill)
            found = hurt("scheduler killed", cluster, at, results, expected)
            cluster.close()
            _, alive = psutil.wait_procs(family, timeout=30)
            yield Injection(
                **{**asdict(found), "wrong": found.wrong + wrong, "left_over": found.left_over + len(alive)}
            )
        finally:
            end([scheduler, *workers])


def connected(file: Path) -> aner.Cluster:
    deadline = time.monotonic() + 60
    while True:
        with contextlib.suppress(AnerError, OSError, ValueError):
            cluster = aner.connect(json.loads(file.read_text())["address"])
            if len(cluster.offers) == 2:
                return cluster
            cluster.close()
        if time.monotonic() > deadline:
            raise RuntimeError("the cluster did not start")
        time.sleep(0.3)


def coordinator_faults(count: int, chance: random.Random, folder: Path) -> Iterator[Injection]:
    """Kill the whole run of a suite; the same command must go on, and the last one verifies."""
    suite, out = folder / "kills.yaml", folder / "suite"
    suite.write_text(SUITE.format(repetitions=max(4, count)))
    command = [sys.executable, "-m", "aner_nb.cli", "run", str(suite), "--out", str(out)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    for _ in range(count):
        before = finished_files(out)
        process = subprocess.Popen(command, **quiet)
        time.sleep(chance.uniform(1.5, 5.0))
        family = psutil.Process(process.pid).children(recursive=True)
        kept = {**before, **finished_files(out)}
        moment = time.monotonic()
        process.kill()
        process.wait()
        _, alive = psutil.wait_procs(family, timeout=10)
        seconds = time.monotonic() - moment
        after = finished_files(out)
        lost = sum(after.get(name) != digest for name, digest in kept.items())
        yield Injection("coordinator killed", "killed", "", True, seconds, bool(alive), lost, 0, len(alive))
    kept = finished_files(out)
    assert subprocess.run(command, check=False, timeout=250, **quiet).returncode == 0
    after = finished_files(out)
    assert all(after.get(name) == digest for name, digest in kept.items()), (
        "a later run changed finished trials"
    )
    checked = subprocess.run([*command[:3], "verify", str(out)], check=False, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def network_faults(count: int, chance: random.Random, folder: Path) -> Iterator[Injection]:
    """Take the cable out of one of three hosts."""
    ranks = {"ranks": ["numpy"] * HOSTS, "channel": "socket"}
    expected = aner.run(case(**{**ranks, "channel": "inline"})).parameters
    assert expected is not None
    results = ResultsFolder(folder / "hosts")
    with hosts(folder) as network, far(network) as cluster:
        for number in range(1, count + 1):
            host = chance.randrange(1, HOSTS)  # the first has the scheduler
            at = At("training", chance.uniform(0, 1), lambda host=host: network.cut(host))
            found = hurt("network cut", cluster, at, results, expected, **ranks)
            network.mend(host)
            wrong = sound(cluster, results, expected, number, **ranks)
            yield Injection(**{**asdict(found), "wrong": found.wrong + wrong})


def far(network: Hosts) -> aner.Cluster:
    deadline = time.monotonic() + 60
    while True:
        with contextlib.suppress(AnerError):
            cluster = aner.connect(network.scheduler, network.security)
            if len(cluster.offers) == HOSTS:
                return cluster
            cluster.close()
        if time.monotonic() > deadline:
            raise RuntimeError("the hosts did not start")
        time.sleep(0.5)


def inject(count: int, seed: int, only: list[str], seconds: float) -> Iterator[Injection]:
    """Inject faults of the chosen kinds, evenly, in a seeded order; stops after so many seconds."""
    chance = random.Random(seed)
    began = time.monotonic()
    others = set(descendants())
    kinds = [(only or list(KINDS))[index % len(only or KINDS)] for index in range(count)]
    if "network cut" in kinds and why_not():
        print(f"network cut: left out, {why_not()}", file=sys.stderr)
        kinds = [kind for kind in kinds if kind != "network cut"]
    chance.shuffle(kinds)
    apart = {
        "scheduler killed": scheduler_faults,
        "coordinator killed": coordinator_faults,
        "network cut": network_faults,
    }
    local = [kind for kind in kinds if kind not in apart]
    with tempfile.TemporaryDirectory(prefix="faults-") as name, contextlib.ExitStack() as stack:
        # What others leave in the common folder is not ours.
        stack.enter_context(mock.patch.dict(os.environ, {"TMPDIR": name}))
        stack.enter_context(mock.patch.object(tempfile, "tempdir", name))
        groups: list[Iterator[Injection]] = [local_faults(local, chance, Path(name))] if local else []
        groups += [act(kinds.count(kind), chance, Path(name)) for kind, act in apart.items() if kind in kinds]
        for group in groups:
            for found in group:
                yield found
                if time.monotonic() - began > seconds:
                    return
    _, alive = psutil.wait_procs([one for one in descendants() if one not in others], timeout=10)
    left = [one for one in alive if "resource_tracker" not in " ".join(one.cmdline())]
    assert not left, f"processes are left over: {left}"


def table(lines: list[str]) -> str:
    """Return what the lines come to."""
    found = [Injection(**json.loads(line)) for line in lines]
    rows = [
        "| fault | injected | hangs | finished trials lost | wrong results passing | left over | cause named | detected, median | detected, max | ended as |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for kind in [*KINDS, "all"]:
        own = [one for one in found if kind in (one.kind, "all")]
        if own:
            ways = collections.Counter(one.failure or one.status for one in own)
            times = [one.seconds for one in own if one.status != "unhurt"] or [0.0]
            said = "" if kind == "all" else ", ".join(f"{way} {times}" for way, times in ways.most_common())
            rows.append(
                f"| {kind} | {len(own)} | {sum(one.hung for one in own)} | {sum(one.lost for one in own)} "
                f"| {sum(one.wrong for one in own)} | {sum(one.left_over for one in own)} "
                f"| {sum(one.named for one in own)} | {statistics.median(times):.2f} s | {max(times):.2f} s | {said} |"
            )
    return "\n".join(rows)


def main() -> None:
    """Inject, or print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--count", type=int, default=14)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--only", choices=list(KINDS), action="append", default=[])
    options.add_argument(
        "--seconds", type=float, default=1e9, help="stop beginning new faults after that time"
    )
    options.add_argument("--append", type=Path, help="add one JSON line an injection to this file")
    options.add_argument("--table", type=Path, help="inject nothing; print the table of this file")
    chosen = options.parse_args()
    if chosen.table:
        print(table(chosen.table.read_text().splitlines()))
        return
    lines = []
    for found in inject(chosen.count, chosen.seed, chosen.only, chosen.seconds):
        lines.append(json.dumps(asdict(found)))
        print(lines[-1], file=sys.stderr, flush=True)
        if chosen.append:
            with chosen.append.open("a") as file:
                file.write(lines[-1] + "\n")
    print(table(lines))


if __name__ == "__main__":
    main()
