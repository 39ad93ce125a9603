"""Watching a run: a few small messages a second whatever the number of updates, and pause and cancel."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import traitlets

from aner_nb.background import BackgroundRun
from aner_nb.front_ends import front_end
from aner_nb.progress import Progress
from aner_nb.widgets.panel import Command, Panel, one_line, sentence

TICK_SECONDS: Final = 0.4
_NO_LIVE: Final[dict[str, Any]] = {"counts": {}, "seconds_left": None, "current": None}
_NO_CURVES: Final = {"loss": b"", "validation": b""}


class RunMonitor(Panel):
    """The queue, the current trial, each rank's lane, curves and time left of a run; start, pause and cancel.

    All of it is in the widget's state: a browser that comes later, or a second one, shows the same.

    Parameters
    ----------
    run
        None: `watch` one later.
    on_start
        Called in place of ``run.start()`` when Start is pressed; may call `watch`.

    Examples
    --------
    >>> from aner_nb.background import BackgroundRun
    >>> monitor = RunMonitor(BackgroundRun("quick", out="results/today"))
    >>> monitor.state
    'ready'
    """

    _esm, _css = front_end("run_monitor")

    state = traitlets.Unicode("ready", help="As `BackgroundRun.state`.").tag(sync=True)
    out = traitlets.Unicode("", help="The results folder.").tag(sync=True)
    can_start = traitlets.Bool(False, help="Whether Start may be pressed.").tag(sync=True)
    start_label = traitlets.Unicode("Start", help="What Start says.").tag(sync=True)
    live = traitlets.Dict(dict(_NO_LIVE), help="As `Progress.snapshot`.").tag(sync=True)
    curves = traitlets.Dict(dict(_NO_CURVES), help="Float32: (update, loss), (update, loss, accuracy).").tag(
        sync=True
    )
    lanes = traitlets.List(traitlets.Dict(), help="As `Progress.lanes`.").tag(sync=True)
    queue = traitlets.Unicode("", help="Case and trial, a line each.").tag(sync=True)
    marks = traitlets.Bytes(b"", help="State of each trial in the queue, as a code.").tag(sync=True)

    def __init__(
        self, run: BackgroundRun | None = None, *, on_start: Callable[[], None] | None = None
    ) -> None:
        self.run: BackgroundRun | None = None
        self._on_start = on_start
        self._shown_progress: Progress | None = None
        self._after: list[Callable[[BackgroundRun], None]] = []
        super().__init__()
        if run is not None:
            self.watch(run)

    def watch(self, run: BackgroundRun) -> None:
        """Show a run, from now until it ends."""
        with self.lock:
            if self.run is not None and self.run is not run and self.run.active:
                raise RuntimeError("the monitor watches another run that is still active")
            self.run = run
            self.error = ""
            self.out, self.can_start = str(run.out), not run.active
            self._publish(run)
        if run.active:
            threading.Thread(target=self._follow, args=(run,), name="aner-monitor", daemon=True).start()

    def on_end(self, call: Callable[[BackgroundRun], None]) -> None:
        """Call when a watched run has ended, on a thread; errors are shown in the widget."""
        self._after.append(call)

    def commands(self) -> Mapping[str, Command]:
        return {
            "start": lambda _content: self.start(),
            "pause": lambda _content: self._tell("pause"),
            "resume": lambda _content: self._tell("resume"),
            "cancel": lambda _content: self._tell("cancel"),
        }

    def start(self) -> None:
        """Start the run, as the button does."""
        self.error = ""
        if self._on_start is not None:
            self._on_start()
        elif self.run is not None:
            self.run.start()
            self.watch(self.run)

    def _tell(self, what: str) -> None:
        if self.run is not None:
            getattr(self.run, what)()
            self._publish(self.run)

    def _follow(self, run: BackgroundRun) -> None:
        while not run.wait(TICK_SECONDS):
            self._publish(run)
        self._publish(run)
        if run.error is not None:
            self.error = sentence(run.error)
        for call in self._after:
            self.guarded(lambda call=call: call(run))

    def _publish(self, run: BackgroundRun) -> None:
        """Bring the state up to date in one message; nothing is sent where nothing has changed."""
        with self.lock, self.hold_sync():
            progress = run.progress
            self.state = run.state
            self.can_start = not run.active
            if progress is not self._shown_progress:
                self._shown_progress = progress
                self.queue = "\n".join(
                    f"{one_line(slot.case.name)}\t{slot.role.replace('_', '-')} {slot.repetition}"
                    for slot in progress.slots
                )
            self.marks = bytes(progress.codes)
            self.lanes = list(progress.lanes)
            self.live = _rounded(progress.snapshot())
            self.curves = _curves(progress)


def _curves(progress: Progress) -> dict[str, bytes]:
    current = progress.current
    if current is None:
        return dict(_NO_CURVES)
    validation = [
        (update, loss, np.nan if accuracy is None else accuracy)
        for update, loss, accuracy in list(current.validation)
    ]
    return {
        "loss": np.asarray(list(current.loss), "<f4").tobytes(),
        "validation": np.asarray(validation, "<f4").tobytes(),
    }


def _rounded(snapshot: dict[str, Any]) -> dict[str, Any]:
    left = snapshot["seconds_left"]
    current = snapshot["current"]
    if current is not None:
        for name in ("loss", "validation_loss", "rate", "accuracy"):
            value = current[name]
            current[name] = float(f"{value:.5g}") if value is not None and np.isfinite(value) else None
    return {**snapshot, "seconds_left": None if left is None else round(left)}
