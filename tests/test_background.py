"""A run on a thread: start, pause, cancel, resume; and the progress folded from its events."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aner_nb.background import BackgroundRun
from aner_nb.case import Case
from aner_nb.data import iris
from aner_nb.errors import BackendUnavailable, CaseError
from aner_nb.events import EpochValidated, TrialEnded, TrialStarted, UpdateDone
from aner_nb.network import Evaluation
from aner_nb.progress import CURVE_POINTS, Progress, earlier
from aner_nb.store import ResultsFolder
from aner_nb.suites import Slot, Suite


class NoCluster:
    """Stands for a cluster in runs whose ranks are in this process."""

    platforms: tuple[Any, ...] = ()

    def open_ranks(self, *_: object, **__: object) -> Any:
        raise AssertionError("inline ranks need no cluster")


def inline_case(name: str, *, epochs: int = 3) -> Case:
    return Case(
        name,
        data=iris(),
        layers=[8, 3],
        batch=30,
        epochs=epochs,
        ranks=["numpy:1", "numpy:1"],
        channel="inline",
    )


def small_suite(count: int = 2, *, epochs: int = 3, repetitions: int = 1) -> Suite:
    cases = tuple(inline_case(f"case-{index}", epochs=epochs) for index in range(count))
    return Suite("small", cases, repetitions=repetitions)


def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


def test_a_run_ends_with_its_study(tmp_path: Path) -> None:
    seen: list[object] = []
    run = BackgroundRun(small_suite(), NoCluster(), out=tmp_path, subscribers=[seen.append])
    assert run.state == "ready"
    run.start()
    assert run.wait(30)
    assert run.state == "finished", run.error
    assert run.study is not None
    assert run.study.complete
    assert run.progress.counts()["passed"] == 4
    assert [lane["share"] for lane in run.progress.lanes] == [0.5, 0.5]
    assert any(isinstance(event, TrialEnded) for event in seen)


def test_start_returns_at_once_and_refuses_a_second(tmp_path: Path) -> None:
    gate = threading.Event()

    def slow_cluster() -> NoCluster:
        gate.wait(20)
        return NoCluster()

    run = BackgroundRun(small_suite(1), slow_cluster, out=tmp_path)
    began = time.monotonic()
    run.start()
    assert time.monotonic() - began < 0.5
    assert run.state == "starting"
    with pytest.raises(CaseError, match="started already"):
        run.start()
    gate.set()
    assert run.wait(30)
    assert run.state == "finished", run.error


def test_pause_lets_the_trial_end_and_holds_the_next(tmp_path: Path) -> None:
    run: BackgroundRun

    def pause_at_first(event: object) -> None:
        if isinstance(event, TrialStarted) and not run.progress.counts()["passed"]:
            run.pause()

    run = BackgroundRun(small_suite(3), NoCluster(), out=tmp_path, subscribers=[pause_at_first])
    run.start()
    eventually(lambda: run.state == "paused")
    counts = run.progress.counts()
    assert (counts["passed"], counts["running"], counts["waiting"]) == (1, 0, 5)
    assert len(ResultsFolder(tmp_path).receipts()) == 1  # saved before the pause
    run.resume()
    assert run.wait(30)
    assert run.state == "finished"
    assert run.progress.counts()["passed"] == 6


def test_cancel_while_paused_leaves_no_cancelled_trial(tmp_path: Path) -> None:
    run = BackgroundRun(small_suite(3), NoCluster(), out=tmp_path)
    run.pause()  # not running yet: nothing to pause
    assert run.state == "ready"
    run.start()
    run.pause()
    eventually(lambda: run.state == "paused")
    run.cancel()
    assert run.wait(10)
    assert run.state == "cancelled"
    assert {receipt.status for receipt in ResultsFolder(tmp_path).receipts()} == {"passed"}


def test_cancel_ends_a_trial_and_the_next_run_goes_on(tmp_path: Path) -> None:
    long = small_suite(1, epochs=20_000)
    run = BackgroundRun(long, NoCluster(), out=tmp_path / "long")
    run.start()
    eventually(lambda: run.progress.current is not None and run.progress.current.last is not None)
    cancelled = time.monotonic()
    run.cancel()
    assert run.wait(10)
    assert time.monotonic() - cancelled < 3
    assert run.state == "cancelled"
    assert run.study is not None
    assert not run.study.complete

    first = BackgroundRun(small_suite(2), NoCluster(), out=tmp_path / "short")
    first.start()
    first.pause()
    eventually(lambda: first.state == "paused")
    first.cancel()
    assert first.wait(10)
    again = BackgroundRun(small_suite(2), NoCluster(), out=tmp_path / "short")
    started: list[TrialStarted] = []
    again._subscribers.append(
        lambda event: started.append(event) if isinstance(event, TrialStarted) else None
    )
    again.start()
    assert again.wait(30)
    assert again.state == "finished"
    assert len(started) == 3  # the passed trial is not run again


def test_an_error_is_kept(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    run = BackgroundRun(small_suite(1), NoCluster(), out=blocked)
    run.start()
    assert run.wait(10)
    assert run.state == "failed"
    assert "cannot be written" in str(run.error)


def make_progress(updates: int = 10, epochs: int = 2) -> tuple[Progress, list[float], TrialStarted]:
    now = [100.0]
    case = inline_case("a")
    slots = [Slot(case, "warm_up", 1, 0, 0), Slot(case, "measured", 1, 1, 0), Slot(case, "measured", 2, 2, 0)]
    progress = Progress(slots, [False] * 3, {}, clock=lambda: now[0])
    return progress, now, TrialStarted("a", "warm_up", 1, ("numpy:1",), updates, epochs)


def test_progress_of_a_trial() -> None:
    progress, now, started = make_progress()
    assert progress.seconds_left() is None
    assert progress.snapshot()["current"] is None
    progress.see(started)
    now[0] += 1.0
    for index in range(5):
        progress.see(UpdateDone(index, 2.0 - index / 10, (index + 1) * 100_000_000))
    now[0] += 0.5
    progress.see(EpochValidated(0, 5, 500_000_000, 1000, Evaluation(5, 0.7, 0.9)))
    current = progress.snapshot()["current"]
    assert (current["update"], current["epoch"], current["accuracy"]) == (5, 1, 0.9)
    assert current["rate"] == pytest.approx(10.0)
    # half of the updates took 0.5 s after 1 s of placing: the trial takes 2 s, the other two as long
    assert progress.seconds_left() == pytest.approx(0.5 + 2 * 2.0)
    progress.see(TrialEnded("a", "warm_up", 1, "passed", "", 1, 0.9))
    assert progress.status == ["passed", "waiting", "waiting"]
    assert progress.seconds_left() == pytest.approx(2 * 1.5)


def test_a_snapshot_does_not_grow_with_the_updates() -> None:
    progress, _, started = make_progress(updates=100_000, epochs=5000)
    progress.see(started)
    for index in range(100_000):
        progress.see(UpdateDone(index, 1.0, index))
    for epoch in range(5000):
        progress.see(EpochValidated(epoch, epoch, 1, 1, Evaluation(5, 1.0, None)))
    assert progress.current is not None
    assert len(progress.current.loss) <= CURVE_POINTS
    assert len(progress.current.validation) <= CURVE_POINTS + 1


def test_a_case_that_cannot_run_is_out_of_the_queue() -> None:
    progress, _, started = make_progress()
    progress.see(started)
    progress.see(TrialEnded("a", "warm_up", 1, "not_run", "no CUDA device", None, None))
    assert progress.counts()["not_run"] == 3
    assert progress.seconds_left() is None


def test_earlier_trials_are_found_by_contract(tmp_path: Path) -> None:
    run = BackgroundRun(small_suite(1), NoCluster(), out=tmp_path)
    run.start()
    assert run.wait(30)
    receipts = ResultsFolder(tmp_path).receipts()
    done, seconds = earlier(small_suite(1).schedule(), receipts)
    assert done == [True, True]
    assert len(seconds["case-0"]) == 2
    changed = small_suite(1, epochs=4)
    assert earlier(changed.schedule(), receipts)[0] == [False, False]


def test_a_study_is_complete_where_a_case_cannot_run(tmp_path: Path) -> None:
    class WithoutCuda(NoCluster):
        def open_ranks(self, *_: object, **__: object) -> Any:
            raise BackendUnavailable("no CUDA device on any machine of the cluster.")

    cuda = Case("cuda", data=iris(), layers=[3], batch=30, epochs=1, ranks=["cuda:0"])
    suite = Suite("mixed", (inline_case("here"), cuda), repetitions=2)
    run = BackgroundRun(suite, WithoutCuda(), out=tmp_path)
    run.start()
    assert run.wait(30)
    assert run.study is not None, run.error
    assert run.study.complete
    counts = run.progress.counts()
    assert (counts["passed"], counts["not_run"], counts["waiting"]) == (3, 3, 0)
