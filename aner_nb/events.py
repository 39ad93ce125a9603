"""What happens during a run, as frozen records, and the way from the update loop to those who watch."""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Final

from aner_nb.network import Evaluation

_CAPACITY: Final = 4096
_DRAIN_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class SuiteStarted:
    """A suite begins, or goes on in a folder that already holds trials of it."""

    suite: str
    trial_count: int
    missing_count: int


@dataclass(frozen=True, slots=True)
class TrialStarted:
    """A trial begins."""

    case: str
    role: str
    repetition: int
    ranks: tuple[str, ...]
    update_count: int
    epoch_count: int


@dataclass(frozen=True, slots=True)
class StageEntered:
    """The trial goes over to another stage, such as ``placing ranks`` or ``training``."""

    stage: str


@dataclass(frozen=True, slots=True)
class UpdateDone:
    """One optimizer step is applied."""

    index: int
    loss: float
    """Mean over the global batch, at the parameters before the step."""
    elapsed_ns: int
    """Since the first request of the run."""


@dataclass(frozen=True, slots=True)
class EpochValidated:
    """An epoch is over and its parameters are evaluated on the validation rows."""

    epoch: int
    update: int
    """Updates applied so far."""
    elapsed_ns: int
    evaluation_ns: int
    evaluation: Evaluation


@dataclass(frozen=True, slots=True)
class TrialEnded:
    """A trial is over; ``status`` is ``passed``, ``failed``, ``cancelled`` or ``not_run``."""

    case: str
    role: str
    repetition: int
    status: str
    reason: str
    native_fit_ns: int | None
    test_accuracy: float | None
    stopped_after: int | None = None
    """Epochs after which validation ended the training early; None: it was not stopped."""


Event = SuiteStarted | TrialStarted | StageEntered | UpdateDone | EpochValidated | TrialEnded
Subscriber = Callable[[Event], None]


class Emitter:
    """Hands events to subscribers on a thread of its own, so that watching cannot slow the loop.

    The queue is bounded: while subscribers are that far behind, new `UpdateDone` are dropped and counted; other
    events are few and always delivered. An error in a subscriber is kept in `errors` and silences it.
    """

    def __init__(self, subscribers: Sequence[Subscriber]) -> None:
        self._subscribers = list(subscribers)
        self._queue: collections.deque[Event] = collections.deque()
        self._stopped = threading.Event()
        self.dropped = 0
        self.errors: list[str] = []

    def emit(self, event: Event) -> None:
        """Queue an event; costs about a microsecond and never waits."""
        if not self._subscribers:
            return
        if isinstance(event, UpdateDone) and len(self._queue) >= _CAPACITY:
            self.dropped += 1
        else:
            self._queue.append(event)

    @contextlib.contextmanager
    def delivering(self) -> Generator[None]:
        """Deliver until the end of the block, then all that is left."""
        thread = threading.Thread(target=self._work, name="aner-events", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            thread.join()

    def _work(self) -> None:
        while not self._stopped.wait(_DRAIN_SECONDS):
            self._drain()
        self._drain()

    def _drain(self) -> None:
        while self._queue:
            event = self._queue.popleft()
            for subscriber in list(self._subscribers):
                try:
                    subscriber(event)
                except Exception as error:  # noqa: BLE001 -- watching must never end a run
                    self.errors.append(f"{type(error).__name__}: {error}")
                    self._subscribers.remove(subscriber)
