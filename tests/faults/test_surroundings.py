"""A full disk, a folder that may not be written, a clock that jumps back, two runs into one folder, strangers."""

from __future__ import annotations

import datetime
import itertools
import os
import resource
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import aner_nb as aner
from aner_nb.channels.socket import Listener
from aner_nb.events import StageEntered
from aner_nb.store import ResultsFolder, StoreError
from tests.faults.suite_kills import run_command

CASE = "name: tiny\ndata: iris\nlayers: [3]\nbatch: 45\nepochs: 2\nranks: [numpy]\n"


def case(**changes: Any) -> aner.Case:
    fields: dict[str, Any] = {
        "layers": [3],
        "batch": 45,
        "epochs": 2,
        "ranks": ["numpy"],
        "channel": "inline",
    }
    return aner.Case("tiny", data=aner.iris(), **{**fields, **changes})


def mount(folder: Path, options: str) -> Iterator[Path]:
    folder.mkdir()
    tried = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=False, capture_output=True
    )
    if tried.returncode:
        pytest.skip(f"a file system may not be mounted here: {tried.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    yield from mount(tmp_path / "disk", "size=64k")


def test_a_disk_that_is_full_keeps_every_earlier_result(small_disk: Path) -> None:
    folder = ResultsFolder(small_disk)
    (small_disk / "something else").write_bytes(bytes(24_000))
    saved: list[aner.Trial] = []

    def fill() -> None:
        for repetition in range(1, 50):
            trial = aner.run(case(), repetition=repetition)
            folder.save(trial)
            saved.append(trial)

    with folder.writing():
        with pytest.raises(
            StoreError, match=r"results cannot be written \(No space left on device\)\. Free space"
        ):
            fill()
        assert saved
        kept = {receipt.repetition: receipt for receipt in folder.receipts()}
        assert kept == {trial.receipt.repetition: trial.receipt for trial in saved}
        assert not list(small_disk.glob("receipts/*/.*"))
        (small_disk / "something else").unlink()
        folder.save(aner.run(case(), repetition=50))  # with space again, the same call goes on


def test_a_file_may_not_grow_beyond_the_limit(tmp_path: Path) -> None:
    """As `ulimit -f` sets; where a file system cannot be mounted this is the full disk."""
    trial = aner.run(case())
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    folder = ResultsFolder(tmp_path)
    with folder.writing():
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, before[1]))
        try:
            with pytest.raises(StoreError, match=r"results cannot be written \(File too large\)"):
                folder.save(trial)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, handler)
        assert folder.receipts() == []
        folder.save(trial)
    assert folder.receipts() == [trial.receipt]


def test_a_read_only_folder_is_a_sentence_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "case.yaml").write_text(CASE)
    for folder in mount(tmp_path / "disk", "ro,size=64k"):
        command = run_command(tmp_path / "case.yaml", folder)
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == 1
        assert "Read-only file system" in " ".join(done.stderr.split())
        assert "Traceback" not in done.stderr


def test_a_clock_that_jumps_back_changes_no_duration(monkeypatch: pytest.MonkeyPatch) -> None:
    class Jumping(datetime.datetime):
        calls = 0

        @classmethod
        def now(cls, tz: Any = None) -> datetime.datetime:
            cls.calls += 1
            return datetime.datetime(2030, 1, 1, tzinfo=tz) - datetime.timedelta(days=cls.calls)

    hours = iter(range(10**6, 0, -1))
    monkeypatch.setattr(datetime, "datetime", Jumping)
    monkeypatch.setattr(time, "time", lambda: next(hours) * 3600.0)
    monkeypatch.setattr(time, "time_ns", lambda: next(hours) * 3600 * 10**9)
    began = time.perf_counter_ns()
    receipt = aner.run(case()).raise_unless_passed().receipt
    passed = time.perf_counter_ns() - began
    assert receipt.clocks is not None
    durations = {name: getattr(receipt.clocks, name) for name in receipt.clocks.__struct_fields__}
    assert all(0 <= value <= passed for value in durations.values()), durations
    assert durations["native_fit_ns"] > 0
    assert all(
        later.elapsed_ns > earlier.elapsed_ns for earlier, later in itertools.pairwise(receipt.validation)
    )
    assert receipt.started.startswith("2029-")


@pytest.mark.cluster
def test_a_second_run_into_the_folder_is_refused_and_the_holder_named(tmp_path: Path) -> None:
    (tmp_path / "case.yaml").write_text(CASE.replace("epochs: 2", "epochs: 4000"))
    command = run_command(tmp_path / "case.yaml", tmp_path / "out")
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "out" / "suite.json").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
        second = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
        assert second.returncode == 1
        assert f"another run writes here (process {first.pid})" in " ".join(second.stderr.split())
        assert all(path.read_bytes() == content for path, content in before.items())
    finally:
        first.send_signal(signal.SIGINT)
        first.wait(30)


# ---------------------------------------------------------------- strangers


@pytest.mark.parametrize("host", ["", "127.0.0.1", "::1"])
def test_a_listener_is_bound_to_its_address_alone(host: str) -> None:
    listener = Listener(7, unix=True, host=host)
    try:
        bound = [
            one.laddr.ip
            for one in psutil.Process().net_connections("inet")
            if one.status == psutil.CONN_LISTEN
        ]
        assert "0.0.0.0" not in bound and "::" not in bound
        assert host == "" or host in bound
    finally:
        listener.close()


@pytest.mark.cluster
def test_strangers_during_a_trial_change_nothing(cluster: aner.Cluster) -> None:
    """Somebody knocks on every port of ours, and talks, while the ranks connect and train."""
    stop = threading.Event()
    knocks = [0]

    def knock() -> None:
        while not stop.is_set():
            for one in psutil.Process().net_connections("tcp"):
                if one.status == psutil.CONN_LISTEN and one.laddr.ip == "127.0.0.1":
                    try:
                        with socket.create_connection(one.laddr, timeout=0.5) as stranger:
                            stranger.sendall(os.urandom(200))
                            knocks[0] += 1
                    except OSError:
                        pass
            time.sleep(0.01)

    def see(event: object) -> None:
        if isinstance(event, StageEntered) and event.stage == "placing ranks":
            threading.Thread(target=knock, daemon=True).start()

    fields: dict[str, Any] = {"layers": [8, 3], "dtype": "float64", "batch": 10, "epochs": 20}
    whole = aner.run(case(**fields, ranks=["numpy", "numpy"]))
    trial = aner.run(case(**fields, ranks=["numpy", "numpy"], channel="socket"), cluster, subscribers=[see])
    stop.set()
    trial.raise_unless_passed()
    assert knocks[0] > 0
    assert whole.receipt.fingerprints is not None and trial.receipt.fingerprints is not None
    assert trial.receipt.fingerprints.final_parameters == whole.receipt.fingerprints.final_parameters
