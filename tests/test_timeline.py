"""Where the time of updates goes: bars, and the trace that trace viewers open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aner_nb.coordinator import CHANNEL_PHASES, COORDINATOR_PHASES
from aner_nb.timeline import trace_json, update_bars
from tests.study_fixtures import make_study, suite

CENTRAL = {"exchange": 100, "apply": 20, "total": 125}
RANK = {
    "request_write": 5,
    "response_wait": 80,
    "rank_upload": 10,
    "rank_compute": 40,
    "rank_readback": 10,
    "rank_total": 60,
}


def columns(phases: dict[str, int], names: Any) -> np.ndarray:
    return np.array([phases.get(name, 0) for name in names])


def test_phases_of_a_rank_lie_in_the_middle_of_the_waiting() -> None:
    bars = update_bars(columns(CENTRAL, COORDINATOR_PHASES), np.array([columns(RANK, CHANNEL_PHASES)] * 2))
    found = [(bar.actor, bar.phase, bar.start, bar.length) for bar in bars]
    assert found == [
        ("coordinator", "exchange", 0, 100),
        ("coordinator", "apply", 100, 20),
        ("rank 0", "request", 0, 5),
        ("rank 0", "upload", 15, 10),
        ("rank 0", "compute", 25, 40),
        ("rank 0", "readback", 65, 10),
        ("rank 1", "request", 5, 5),
        ("rank 1", "upload", 20, 10),
        ("rank 1", "compute", 30, 40),
        ("rank 1", "readback", 70, 10),
    ]


def test_a_trace_has_every_phase_of_every_update(tmp_path: Path) -> None:
    only = suite().select(names=["pair-f64"])
    study = make_study(tmp_path / "study", chosen=only, repetitions=1)
    trace = json.loads(study.save_trace(tmp_path / "trace.json", "pair-f64").read_bytes())
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    names = {event["tid"]: event["args"]["name"] for event in trace["traceEvents"] if event["ph"] == "M"}
    assert names == {0: "coordinator", 1: "rank 0", 2: "rank 1"}
    assert len(events) == 9 * (2 + 2 * 4)
    steps = study.steps("pair-f64")
    applied = [event for event in events if event["name"] == "apply"]
    assert [event["args"]["update"] for event in applied] == list(range(9))
    assert [event["dur"] for event in applied] == pytest.approx(
        (steps["coordinator_apply_ns"] / 1e3).tolist()
    )
    starts = np.cumsum([0, *steps["coordinator_total_ns"][:-1]]) / 1e3
    exchanges = [event["ts"] for event in events if event["name"] == "exchange"]
    assert exchanges == pytest.approx(starts.tolist())


def test_updates_of_a_checkpoint_are_left_out() -> None:
    steps = {
        "loss": np.zeros(3),
        "rows": np.ones((3, 1)),
        "coordinator_ns": np.array(
            [columns({}, COORDINATOR_PHASES), *[columns(CENTRAL, COORDINATOR_PHASES)] * 2]
        ),
        "ranks_ns": np.array([[columns(RANK, CHANNEL_PHASES)]] * 3),
    }
    events = [event for event in json.loads(trace_json(steps, "x"))["traceEvents"] if event["ph"] == "X"]
    assert {event["args"]["update"] for event in events} == {1, 2}
    assert min(event["ts"] for event in events) == 0
