"""Events: delivered in order, never making the loop wait, and no watcher can end a run."""

from __future__ import annotations

import threading

import pytest

from aner_nb import events as module
from aner_nb.events import Emitter, Event, StageEntered, UpdateDone


def test_events_arrive_in_order() -> None:
    seen: list[Event] = []
    emitter = Emitter([seen.append])
    sent = [StageEntered("a"), UpdateDone(0, 1.0, 1), StageEntered("b")]
    with emitter.delivering():
        for event in sent:
            emitter.emit(event)
    assert seen == sent


def test_updates_are_dropped_and_counted_when_watching_falls_behind() -> None:
    release = threading.Event()
    seen: list[Event] = []

    def slow(event: Event) -> None:
        release.wait()
        seen.append(event)

    emitter = Emitter([slow])
    with emitter.delivering():
        for index in range(module._CAPACITY + 100):
            emitter.emit(UpdateDone(index, 0.0, 0))
        emitter.emit(StageEntered("last"))
        release.set()
    assert 0 < emitter.dropped <= 100
    assert seen[-1] == StageEntered("last")
    assert len(seen) + emitter.dropped == module._CAPACITY + 101


def test_a_failing_watcher_is_silenced_and_its_error_kept() -> None:
    seen: list[Event] = []

    def broken(event: Event) -> None:
        raise ValueError("no screen")

    emitter = Emitter([broken, seen.append])
    with emitter.delivering():
        emitter.emit(StageEntered("a"))
        emitter.emit(StageEntered("b"))
    assert emitter.errors == ["ValueError: no screen"]
    assert seen == [StageEntered("a"), StageEntered("b")]


def test_other_events_are_delivered_however_far_behind_watching_is() -> None:
    release = threading.Event()
    seen: list[Event] = []

    def slow(event: Event) -> None:
        release.wait()
        seen.append(event)

    emitter = Emitter([slow])
    stages = [StageEntered(str(number)) for number in range(2 * module._CAPACITY)]
    with emitter.delivering():
        for number, stage in enumerate(stages):
            emitter.emit(UpdateDone(number, 0.0, 0))
            emitter.emit(stage)
        release.set()
    assert [event for event in seen if isinstance(event, StageEntered)] == stages
    kept = [event.index for event in seen if isinstance(event, UpdateDone)]
    assert kept == sorted(kept)
    assert emitter.dropped == len(stages) - len(kept) > 0


def test_every_watcher_sees_every_event() -> None:
    seen: tuple[list[Event], ...] = ([], [], [])
    emitter = Emitter([one.append for one in seen])
    sent = [StageEntered("a"), UpdateDone(0, 1.0, 1)]
    with emitter.delivering():
        for event in sent:
            emitter.emit(event)
    assert list(seen) == [sent] * 3


def test_without_watchers_nothing_is_kept() -> None:
    emitter = Emitter([])
    for index in range(module._CAPACITY + 5):
        emitter.emit(UpdateDone(index, 0.0, 0))
    assert (emitter.dropped, len(emitter._queue)) == (0, 0)


def test_events_are_delivered_on_a_thread_of_their_own_and_it_ends() -> None:
    names: list[str] = []
    emitter = Emitter([lambda _event: names.append(threading.current_thread().name)])
    with emitter.delivering():
        emitter.emit(StageEntered("a"))
    assert names == ["aner-events"]
    assert not [thread for thread in threading.enumerate() if thread.name == "aner-events"]


def test_events_arrive_while_the_block_runs() -> None:
    arrived = threading.Event()
    emitter = Emitter([lambda _event: arrived.set()])
    with emitter.delivering():
        emitter.emit(StageEntered("a"))
        assert arrived.wait(10)


def test_what_is_left_is_delivered_when_the_block_fails() -> None:
    seen: list[Event] = []
    emitter = Emitter([seen.append])

    def fail() -> None:
        with emitter.delivering():
            emitter.emit(StageEntered("a"))
            raise ValueError("lost")

    with pytest.raises(ValueError, match="^lost$"):
        fail()
    assert seen == [StageEntered("a")]


def test_a_watcher_that_fails_late_has_seen_the_events_before() -> None:
    seen: list[Event] = []

    def fragile(event: Event) -> None:
        seen.append(event)
        if len(seen) == 2:
            raise RuntimeError("closed")

    emitter = Emitter([fragile])
    with emitter.delivering():
        for name in "abc":
            emitter.emit(StageEntered(name))
    assert seen == [StageEntered("a"), StageEntered("b")]
    assert emitter.errors == ["RuntimeError: closed"]
