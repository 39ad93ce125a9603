"""Where the time of updates goes: bars on a time axis, and the trace that trace viewers open. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aner_nb.case import canonical_json
from aner_nb.coordinator import CHANNEL_PHASES, COORDINATOR_PHASES

Steps = Mapping[str, NDArray[Any]]
"""Columns of a trial, as a results folder keeps them: see `aner_nb.recording.steps_table`."""

COORDINATOR: Final = "coordinator"


@dataclass(frozen=True, slots=True)
class Bar:
    """A phase of an update; times in nanoseconds from the update's beginning."""

    actor: str
    """``coordinator`` or ``rank N``."""
    phase: str
    start: float
    length: float


def update_bars(coordinator_ns: NDArray[Any], ranks_ns: NDArray[Any]) -> list[Bar]:
    """Return the phases of one update, or of a median one.

    A rank knows durations only. They are laid into the coordinator's waiting for it, half of what is left before
    and half behind: what the message takes each way.

    Parameters
    ----------
    coordinator_ns
        (`COORDINATOR_PHASES`,).
    ranks_ns
        (ranks, `CHANNEL_PHASES`).
    """
    central = dict(zip(COORDINATOR_PHASES, coordinator_ns.tolist(), strict=True))
    bars = [
        Bar(COORDINATOR, "exchange", 0.0, central["exchange"]),
        Bar(COORDINATOR, "apply", central["exchange"], central["apply"]),
    ]
    written = 0.0
    for rank, columns in enumerate(ranks_ns):
        own = dict(zip(CHANNEL_PHASES, columns.tolist(), strict=True))
        actor = f"rank {rank}"
        bars.append(Bar(actor, "request", written, own["request_write"]))
        written += own["request_write"]
        start = written + max(0.0, own["response_wait"] - own["rank_total"]) / 2
        for name in ("upload", "compute", "readback"):
            bars.append(Bar(actor, name, start, own[f"rank_{name}"]))
            start += own[f"rank_{name}"]
    return bars


def typical_bars(steps: Steps) -> list[Bar]:
    """Return the phases of a typical update: medians over the updates after the first."""
    steady = slice(1, None) if len(steps["loss"]) > 1 else slice(None)
    return update_bars(
        np.median(steps["coordinator_ns"][steady], axis=0), np.median(steps["ranks_ns"][steady], axis=0)
    )


def trace_json(steps: Steps, title: str) -> bytes:
    """Return all updates of a trial as a trace in the Trace Event Format, which Perfetto and Chrome open.

    Updates follow one another without the time between them (validation, checkpoints).
    """
    rank_count = steps["rows"].shape[1]
    actors = [COORDINATOR, *(f"rank {rank}" for rank in range(rank_count))]
    events = [*_names(actors, title), *_events(steps, actors)]
    note = "Each rank's phases are laid into the middle of the coordinator's waiting for it."
    return canonical_json({"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"note": note}})


def _names(actors: Sequence[str], title: str) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": title}}
    for thread, actor in enumerate(actors):
        yield {"ph": "M", "name": "thread_name", "pid": 1, "tid": thread, "args": {"name": actor}}


def _events(steps: Steps, actors: Sequence[str]) -> Iterator[dict[str, Any]]:
    threads = {actor: thread for thread, actor in enumerate(actors)}
    total = COORDINATOR_PHASES.index("total")
    began = 0
    for index, (central, ranks) in enumerate(zip(steps["coordinator_ns"], steps["ranks_ns"], strict=True)):
        if not central[total]:  # a checkpoint had this update already
            continue
        for bar in update_bars(central, ranks):
            yield {
                "ph": "X",
                "name": bar.phase,
                "cat": "update",
                "pid": 1,
                "tid": threads[bar.actor],
                "ts": (began + bar.start) / 1e3,
                "dur": bar.length / 1e3,
                "args": {"update": index},
            }
        began += int(central[total])
