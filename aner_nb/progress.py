"""How far a run of a suite is, folded from its events: pure, bounded, and cheap by update."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast, get_args

from aner_nb.events import EpochValidated, Event, StageEntered, TrialEnded, TrialStarted, UpdateDone
from aner_nb.receipts import TrialReceipt
from aner_nb.suites import Slot

SlotStatus = Literal["waiting", "running", "passed", "failed", "cancelled", "not_run"]
STATUSES: Final[tuple[SlotStatus, ...]] = get_args(SlotStatus)

CURVE_POINTS: Final = 200
"""Most points kept of a trial's loss; a longer trial is sampled evenly."""

_RATE_SAMPLES: Final = 8
_NANOSECONDS: Final = 1e9


@dataclass(slots=True)
class CurrentTrial:
    """The trial that runs, or the last one."""

    started: TrialStarted
    since: float
    """On the progress's clock, seconds."""
    stage: str = "preparing data"
    stride: int = 1
    last: UpdateDone | None = None
    loss: list[tuple[int, float]] = field(default_factory=list)
    """(update, mean loss over the batch), sampled."""
    validation: list[tuple[int, float, float | None]] = field(default_factory=list)
    """(updates applied, loss, accuracy) after each epoch, sampled."""
    epochs_done: int = 0
    slot: Slot | None = None
    ended: TrialEnded | None = None


class Progress:
    """Queue, current trial, rates and time left.

    `see` is called for each event on one thread and `snapshot` on another; each replaces whole values, so that
    no lock is needed in the path of an update.

    Parameters
    ----------
    slots
        The schedule, in order.
    passed
        For each slot, whether an earlier run has passed it.
    seconds
        Known durations of a case's trials, from earlier runs.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        passed: Sequence[bool],
        seconds: Mapping[str, Sequence[float]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.slots = tuple(slots)
        self.codes = bytearray(STATUSES.index("passed" if done else "waiting") for done in passed)
        """State of each slot: its place in `STATUSES`."""
        self.current: CurrentTrial | None = None
        self.lanes: tuple[dict[str, Any], ...] = ()
        """Each rank's median phases in the last passed trial; see `lanes_of`."""
        self._clock = clock
        self._seconds: dict[str, list[float]] = {case: list(own) for case, own in seconds.items()}
        self._index = {_key(slot): index for index, slot in enumerate(self.slots)}
        self._counts = dict.fromkeys(STATUSES, 0)
        self._waiting = dict.fromkeys((slot.case.name for slot in self.slots), 0)
        for slot, done in zip(self.slots, passed, strict=True):
            self._counts["passed" if done else "waiting"] += 1
            self._waiting[slot.case.name] += not done
        self._running: int | None = None
        self._rates: deque[tuple[int, int]] = deque(maxlen=_RATE_SAMPLES)

    @property
    def status(self) -> list[SlotStatus]:
        """State of each slot."""
        return [STATUSES[code] for code in self.codes]

    def _mark(self, index: int, status: SlotStatus) -> None:
        before = STATUSES[self.codes[index]]
        self.codes[index] = STATUSES.index(status)
        self._counts[before] -= 1
        self._counts[status] += 1
        self._waiting[self.slots[index].case.name] -= before == "waiting"

    def see(self, event: Event) -> None:
        """Take in an event."""
        if type(event) is UpdateDone:
            current = self.current
            if current is not None:
                current.last = event
                if event.index % current.stride == 0:
                    current.loss.append((event.index, event.loss))
            return
        match event:
            case TrialStarted():
                self._start(event)
            case StageEntered() if self.current is not None:
                self.current.stage = event.stage
            case EpochValidated() if self.current is not None:
                self._validated(self.current, event)
            case TrialEnded() if self.current is not None:
                self._end(self.current, event)
            case _:
                pass

    def _start(self, event: TrialStarted) -> None:
        self._rates.clear()
        self.current = CurrentTrial(
            event, self._clock(), stride=max(1, -(-event.update_count // CURVE_POINTS))
        )
        self._running = self._index.get((event.case, event.role, event.repetition))
        if self._running is not None:
            self._mark(self._running, "running")
            self.current.slot = self.slots[self._running]

    def _validated(self, current: CurrentTrial, event: EpochValidated) -> None:
        current.epochs_done = event.epoch + 1
        every = max(1, -(-current.started.epoch_count // CURVE_POINTS))
        last = current.epochs_done == current.started.epoch_count
        if event.epoch % every == 0 or last:
            evaluation = event.evaluation
            current.validation.append((event.update, evaluation.loss, evaluation.accuracy))

    def _end(self, current: CurrentTrial, event: TrialEnded) -> None:
        current.ended = event
        current.stage = event.status.replace("_", " ")
        if event.stopped_after is not None:
            current.stage += f", stopped early after {event.stopped_after} epochs"
        status = cast("SlotStatus", event.status)
        if self._running is not None:
            self._mark(self._running, status)
        if status == "passed":
            self._seconds.setdefault(event.case, []).append(self._clock() - current.since)
        if status == "not_run":  # the suite skips the case's other trials
            for index, slot in enumerate(self.slots):
                if slot.case.name == event.case and not self.codes[index]:
                    self._mark(index, "not_run")
        self._running = None

    def counts(self) -> dict[str, int]:
        """Return how many trials there are of each status, and in all."""
        return {**self._counts, "all": len(self.slots)}

    def seconds_left(self) -> float | None:
        """Return the estimated time until the end; None while there is nothing to go by."""
        known = {case: statistics.fmean(own) for case, own in self._seconds.items() if own}
        running = self._running_seconds()
        if running is not None and self.current is not None:
            known.setdefault(self.current.started.case, running)
        if not known:
            return None
        typical = statistics.fmean(known.values())
        left: float = sum(count * known.get(case, typical) for case, count in self._waiting.items())
        if self.current is not None and self.current.ended is None:
            whole = known.get(self.current.started.case, typical)
            left += max(0.0, whole - (self._clock() - self.current.since))
        return left

    def _running_seconds(self) -> float | None:
        """Return how long the current trial will have taken, by the share of its updates that is done."""
        current = self.current
        if current is None or current.last is None or current.ended is not None:
            return None
        elapsed = current.last.elapsed_ns / _NANOSECONDS
        share = (current.last.index + 1) / current.started.update_count
        before = max(0.0, self._clock() - current.since - elapsed)
        return before + elapsed / share

    def updates_per_second(self) -> float | None:
        """Return the rate over the last few calls; None before the first update."""
        last = self.current.last if self.current is not None else None
        if last is None:
            return None
        if not self._rates or self._rates[-1][0] != last.index:
            self._rates.append((last.index, last.elapsed_ns))
        first_index, first_ns = self._rates[0] if len(self._rates) > 1 else (-1, 0)
        return (last.index - first_index) / max(1, last.elapsed_ns - first_ns) * _NANOSECONDS

    def snapshot(self) -> dict[str, Any]:
        """Return everything a watcher shows, as plain JSON values; its size does not grow with the updates."""
        current = self.current
        return {
            "counts": self.counts(),
            "seconds_left": self.seconds_left(),
            "current": None if current is None else self._current(current),
        }

    def _current(self, current: CurrentTrial) -> dict[str, Any]:
        started, last = current.started, current.last
        validated = current.validation[-1] if current.validation else None
        weights = current.slot.case.weights if current.slot else (1,) * len(started.ranks)
        return {
            "case": started.case,
            "role": started.role,
            "repetition": started.repetition,
            "stage": current.stage,
            "ranks": list(started.ranks),
            "shares": [weight / sum(weights) for weight in weights],
            "batch": current.slot.case.batch if current.slot else None,
            "update": 0 if last is None else last.index + 1,
            "updates": started.update_count,
            "epoch": current.epochs_done,
            "epochs": started.epoch_count,
            "rate": self.updates_per_second(),
            "loss": None if last is None else last.loss,
            "validation_loss": validated[1] if validated else None,
            "accuracy": validated[2] if validated else None,
            "reason": current.ended.reason if current.ended else "",
            "ended": current.ended is not None,
        }


def lanes_of(receipt: TrialReceipt) -> tuple[dict[str, Any], ...]:
    """Return for each rank of a trial its share of the rows and its median phases of an update, in ms."""
    total = sum(rank.rows for rank in receipt.ranks) or 1
    update = receipt.coordinator_phases.get("total")
    lanes: list[dict[str, Any]] = []
    for rank in receipt.ranks:
        phases = {name: summary.median_ns / 1e6 for name, summary in rank.phases.items()}
        lanes.append(
            {
                "placement": rank.placement,
                "share": rank.rows / total,
                "upload": phases.get("rank_upload", 0.0),
                "compute": phases.get("rank_compute", 0.0),
                "readback": phases.get("rank_readback", 0.0),
                "update": update.median_ns / 1e6 if update else 0.0,
            }
        )
    return tuple(lanes)


def earlier(
    slots: Sequence[Slot], receipts: Sequence[TrialReceipt]
) -> tuple[list[bool], dict[str, list[float]]]:
    """Return which slots a folder's receipts answer, and how long each case's passed trials took."""
    passed: set[tuple[str, str, int]] = set()
    seconds: dict[str, list[float]] = {}
    for receipt in receipts:
        if receipt.status == "passed" and receipt.clocks is not None:
            passed.add((receipt.contract_id, receipt.role, receipt.repetition))
            own = seconds.setdefault(receipt.case_name, [])
            own.append(receipt.clocks.complete_command_ns / _NANOSECONDS)
    ids = {slot.case.name: slot.case.contract_id for slot in slots}
    done = [(ids[slot.case.name], slot.role, slot.repetition) in passed for slot in slots]
    return done, seconds


def _key(slot: Slot) -> tuple[str, str, int]:
    return (slot.case.name, slot.role, slot.repetition)
