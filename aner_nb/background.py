"""A run on a thread of its own: the kernel, or whatever called, stays free to pause or cancel it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal

from aner_nb.errors import AnerError, Cancelled, CaseError
from aner_nb.events import Subscriber
from aner_nb.execution import DEADLINE_SECONDS
from aner_nb.progress import Progress, earlier, lanes_of
from aner_nb.store import ResultsFolder
from aner_nb.study import PlatformHost, Study, open_study, run_suite
from aner_nb.suites import Suite, suite
from aner_nb.trial import Trial

State = Literal[
    "ready", "starting", "running", "pausing", "paused", "cancelling", "finished", "cancelled", "failed"
]
ENDED: Final[tuple[State, ...]] = ("finished", "cancelled", "failed")
ACTIVE: Final[tuple[State, ...]] = ("starting", "running", "pausing", "paused", "cancelling")


class BackgroundRun:
    """A suite's run into a results folder, on a thread.

    What was measured is in the folder after each trial: a run that was cancelled, or whose process died, goes on
    where it stopped when another is started with the same folder.

    Parameters
    ----------
    which
        Name of a suite, path of a YAML file, or a `Suite`.
    cluster
        A cluster; a function that makes one, called on the thread; None: a local one for this run alone.
    out
        The results folder.
    subscribers
        Called with each event, on other threads.

    Raises
    ------
    CaseError
        If the suite is wrong.

    Examples
    --------
    >>> run = BackgroundRun("quick", out="results/today")
    >>> run.start()  # doctest: +SKIP
    >>> run.state, run.progress.counts()["passed"]  # doctest: +SKIP
    ('running', 3)
    >>> run.cancel()  # doctest: +SKIP
    """

    def __init__(
        self,
        which: str | Path | Suite,
        cluster: PlatformHost | Callable[[], PlatformHost] | None = None,
        *,
        out: str | Path,
        subscribers: Sequence[Subscriber] = (),
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        self.suite = which if isinstance(which, Suite) else suite(which)
        self.out = Path(out)
        self.study: Study | None = None
        """What the folder holds, once the run has ended."""
        self.error: Exception | None = None
        """What ended the run, if it failed."""
        self._slots = self.suite.schedule()
        self.progress = Progress(self._slots, [False] * len(self._slots), {})
        self.cluster: PlatformHost | None = None
        """What the run uses, once it is there."""
        self._cluster = cluster
        self._subscribers = list(subscribers)
        self._deadline_seconds = deadline_seconds
        self._state: State = "ready"
        self._changed = threading.Condition()
        self._stop = threading.Event()

    @property
    def state(self) -> State:
        """``ready``, one of `ACTIVE`, or one of `ENDED`."""
        return self._state

    @property
    def active(self) -> bool:
        """Whether the thread is at work, or paused."""
        return self._state in ACTIVE

    def start(self) -> None:
        """Run the trials that the folder lacks; returns at once.

        Raises
        ------
        CaseError
            If it is running already.
        """
        with self._changed:
            if self.active:
                raise CaseError("the run has been started already.", remedy="Wait for it, or cancel it.")
            self._stop.clear()
            self.error = None
            self._set("starting")
            _Thread(self, self._work).start()

    def pause(self) -> None:
        """Stop between trials: the current trial goes on to its end, the next waits for `resume`.

        A trial itself is never paused: its clocks would be worth nothing.
        """
        with self._changed:
            if self._state in ("starting", "running"):
                self._set("pausing")

    def resume(self) -> None:
        """Go on after `pause`."""
        with self._changed:
            if self._state in ("pausing", "paused"):
                self._set("running")

    def cancel(self) -> None:
        """End the current trial soon, and with it the run; passed trials stay in the folder."""
        with self._changed:
            if self.active:
                self._stop.set()
                self._set("cancelling")

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the run has ended; return whether it has."""
        with self._changed:
            return self._changed.wait_for(lambda: not self.active, timeout)

    def _set(self, state: State) -> None:
        with self._changed:
            self._state = state
            self._changed.notify_all()

    def _work(self) -> None:
        try:
            state = self._run()
        except Exception as error:  # noqa: BLE001 -- kept and shown; a thread has nobody to raise to
            self.error = error
            state = "failed"
        try:
            self.study = open_study(self.out)
        except (AnerError, OSError):
            self.study = None
        self._set(state)

    def _run(self) -> State:
        receipts = ResultsFolder(self.out).receipts()
        self.progress = Progress(self._slots, *earlier(self._slots, receipts))
        try:
            self.cluster = self._cluster() if callable(self._cluster) else self._cluster
            with self._changed:
                if self._stop.is_set():
                    return "cancelled"
                if self._state == "starting":
                    self._set("running")
            run_suite(
                self.suite,
                self.cluster,
                out=self.out,
                subscribers=[self.progress.see, *self._subscribers],
                stop=self._stop.is_set,
                between=self._between,
                deadline_seconds=self._deadline_seconds,
            )
        except Cancelled:
            return "cancelled"
        return "finished"

    def _between(self, trial: Trial) -> None:
        if trial.receipt.status == "passed":
            self.progress.lanes = lanes_of(trial.receipt)
        with self._changed:
            if self._state == "pausing":
                self._set("paused")
                self._changed.wait_for(lambda: self._state != "paused")
            if self._stop.is_set():
                raise Cancelled("cancelled on request.")


class _Thread(threading.Thread):
    """The thread of a run."""

    def __init__(self, owner: BackgroundRun, work: Callable[[], None]) -> None:
        threading.Thread.__init__(self, target=work, name="aner-run", daemon=True)
        self.owner = owner


def run_into(out: str | Path) -> BackgroundRun | None:
    """Return the run of this process that writes to a results folder now; None: there is none."""
    for thread in threading.enumerate():
        if isinstance(thread, _Thread) and thread.owner.out.resolve() == Path(out).resolve():
            return thread.owner
    return None
