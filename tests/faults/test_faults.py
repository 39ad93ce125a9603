"""Losses are seen, named and bounded, and nothing is left over."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import aner_nb as aner
from aner_nb.events import StageEntered

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def pair() -> Iterator[aner.Cluster]:
    """A cluster whose workers may be hurt."""
    with aner.local_cluster(["cpu:1", "cpu:1"]) as started:
        yield started


def long_case(**changes: Any) -> aner.Case:
    fields: dict[str, Any] = {"batch": 3, "epochs": 100, "ranks": ["numpy", "numpy"], "dtype": "float64"}
    return aner.Case("long", data=aner.iris(), layers=[16, 3], **{**fields, **changes})


def workers() -> list[psutil.Process]:
    """Return our worker processes, the latest last."""
    found = [
        process
        for process in psutil.Process().children(recursive=True)
        if "spawn_main" in " ".join(process.cmdline())
    ]
    return sorted(found, key=lambda process: process.create_time())


def hurting(number: signal.Signals) -> Callable[[object], None]:
    """Send a signal to one of the ranks soon after the training began."""
    done = threading.Event()

    def send() -> None:
        time.sleep(0.3)
        os.kill(workers()[-1].pid, number)

    def see(event: object) -> None:
        if isinstance(event, StageEntered) and event.stage == "training" and not done.is_set():
            done.set()
            threading.Thread(target=send).start()

    return see


def test_a_killed_rank_is_named_within_seconds(pair: aner.Cluster) -> None:
    began = time.monotonic()
    trial = aner.run(long_case(epochs=2000), pair, subscribers=[hurting(signal.SIGKILL)])
    assert time.monotonic() - began < 15
    assert trial.receipt.status == "failed"
    assert trial.receipt.failure is not None
    assert trial.receipt.failure.kind == "rank_lost"
    assert trial.receipt.failure.where in ("rank 0", "rank 1")
    assert "update" in trial.receipt.failure.what
    assert trial.receipt.counts is not None
    assert 0 < trial.receipt.counts.updates < trial.receipt.counts.planned_updates


def test_a_frozen_rank_passes_the_deadline_and_the_next_trial_runs(pair: aner.Cluster) -> None:
    trial = aner.run(long_case(epochs=2000), pair, subscribers=[hurting(signal.SIGSTOP)], deadline_seconds=2)
    assert trial.receipt.failure is not None
    assert trial.receipt.failure.kind == "deadline_exceeded"
    assert "no reply in update" in trial.receipt.failure.what
    assert aner.run(long_case(epochs=1), pair).receipt.status == "passed"


def test_training_goes_on_after_a_loss_and_ends_with_the_same_bits(pair: aner.Cluster) -> None:
    whole = aner.run(long_case(channel="inline")).parameters
    trial = aner.run(
        long_case(),
        pair,
        subscribers=[hurting(signal.SIGKILL)],
        durability=aner.Durability(on_loss="restart"),
    )
    assert trial.receipt.status == "passed"
    (restart,) = trial.receipt.restarts
    assert restart.kind == "rank_lost"
    assert restart.placements == ("numpy", "numpy")
    np.testing.assert_array_equal(trial.parameters, whole)


def start_cli(folder: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    case = folder / "case.yaml"
    case.write_text(
        "name: long\ndata: iris\nlayers: [16, 3]\nbatch: 3\nepochs: 20\ndtype: float64\nranks: [numpy, numpy]\n"
    )
    command = [sys.executable, "-m", "aner_nb.cli", "run", str(case), "--out", str(folder / "out")]
    return subprocess.Popen(command, env={**os.environ, **environment}, start_new_session=True)


def wait_for_receipts(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 60
    while len(list(folder.glob("out/receipts/*/*.json"))) < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def left_over(session: int) -> list[int]:
    return [process.pid for process in psutil.process_iter() if _session(process) == session]


def _session(process: psutil.Process) -> int:
    try:
        alive = process.status() != psutil.STATUS_ZOMBIE
        return os.getsid(process.pid) if alive else -1
    except (ProcessLookupError, psutil.Error):
        return -1


def test_ctrl_c_ends_cleanly_and_the_same_command_goes_on(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    process = start_cli(tmp_path, {"TMPDIR": str(temporary)})
    wait_for_receipts(tmp_path, 1)
    time.sleep(0.5)
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(10) == 130
    assert time.monotonic() - began < 5  # 0.4 to 1.5 s on a quiet machine
    time.sleep(0.5)
    assert left_over(process.pid) == []
    assert not list(temporary.glob("aner-*"))
    kept = {path.name for path in tmp_path.glob("out/receipts/*/*.json")}
    assert start_cli(tmp_path, {}).wait(120) == 0
    after = {path.name for path in tmp_path.glob("out/receipts/*/*.json")}
    assert kept <= after
    assert {"warmup-1.json", "trial-1.json", "trial-2.json", "trial-3.json"} <= after


def test_a_killed_run_loses_no_finished_trial_and_leaves_no_process(tmp_path: Path) -> None:
    process = start_cli(tmp_path, {})
    wait_for_receipts(tmp_path, 2)
    before = {path: path.read_bytes() for path in tmp_path.glob("out/receipts/*/*.json")}
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while left_over(process.pid):
        assert time.monotonic() < deadline, "workers outlive a killed coordinator"
        time.sleep(0.2)
    assert start_cli(tmp_path, {}).wait(120) == 0
    assert all(path.read_bytes() == content for path, content in before.items())
    assert len(aner.open_study(tmp_path / "out").receipts) == 4


def test_shared_memory_has_no_name_to_leave_behind() -> None:
    assert not [path for path in Path("/dev/shm").glob("*aner*")]
    assert not list(Path(tempfile.gettempdir()).glob("aner-*/coordinator"))


def test_a_worker_that_leaves_before_its_rank_begins_is_noticed_within_seconds(
    pair: aner.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dask keeps the task of an address that has left and says nothing: we ask."""
    found = pair._addresses
    monkeypatch.setattr(pair, "_addresses", lambda offers: [found(offers)[0], "tcp://127.0.0.1:1"])
    monkeypatch.setattr(pair, "_freshen", lambda offers: None)
    began = time.monotonic()
    trial = aner.run(long_case(), pair)
    assert time.monotonic() - began < 5
    assert trial.receipt.failure is not None
    assert (trial.receipt.failure.kind, trial.receipt.failure.where) == ("rank_lost", "rank 1")
    monkeypatch.undo()
    assert aner.run(long_case(epochs=1), pair).receipt.status == "passed"


def test_a_failed_trial_that_is_kept_holds_no_shared_memory(pair: aner.Cluster) -> None:
    def held() -> int:
        gc.collect()
        links = [entry for entry in Path("/proc/self/fd").iterdir() if entry.exists() or entry.is_symlink()]
        return sum("aner_nb (deleted)" in os.readlink(link) for link in links if link.is_symlink())

    trial = aner.run(long_case(epochs=2000), pair, subscribers=[hurting(signal.SIGKILL)])
    assert trial.receipt.status == "failed"
    assert held() == 0
