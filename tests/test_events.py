"""Events: delivered in order, never making the loop wait, and no watcher can end a run."""

from __future__ import annotations

import threading

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
