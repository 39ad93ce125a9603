"""A small study without worker processes: real trials with inline ranks, placed on an invented platform."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec

import aner_nb as aner
from aner_nb import machine
from aner_nb.inventory import configuration_id
from aner_nb.store import ResultsFolder
from aner_nb.study import Study

FACTS = machine.capacity()
CONFIGURATION = configuration_id(FACTS)


def suite() -> aner.Suite:
    """Return one standalone case and two groups of the same work, and one of another dtype."""
    base = aner.Case(
        "solo-f64",
        data=aner.iris(),
        layers=[8, 3],
        dtype="float64",
        batch=30,
        epochs=3,
        optimizer=aner.SGD(0.1),
        ranks=["numpy"],
        channel="inline",
    )
    pair = dataclasses.replace(base, name="pair-f64", ranks=["numpy", "numpy"])
    unequal = dataclasses.replace(base, name="unequal-f64", ranks=["numpy", ("numpy", 7)])
    single = dataclasses.replace(base, name="solo-f32", dtype="float32")
    return aner.Suite("small", (base, pair, unequal, single), seed=2)


def make_study(folder: Path, *, repetitions: int = 3) -> Study:
    """Run the small suite into a folder, as `run_suite` would."""
    chosen = dataclasses.replace(suite(), repetitions=repetitions)
    results = ResultsFolder(folder)
    with results.writing():
        results.save_document("suite", chosen.to_record())
        results.save_document("configurations", {CONFIGURATION: {"platform": "Atlas-01", "capacity": FACTS}})
        for slot in chosen.schedule():
            trial = aner.run(
                slot.case,
                role=slot.role,
                repetition=slot.repetition,
                round_number=slot.round,
                position=slot.position,
            )
            results.save(placed(trial))
    return aner.open_study(folder)


def placed(trial: aner.Trial, **changes: Any) -> aner.Trial:
    """Return the trial as if its ranks had run on the invented platform."""
    ranks = tuple(
        msgspec.structs.replace(rank, placement=f"Atlas-01/{rank.placement}", configuration_id=CONFIGURATION)
        for rank in trial.receipt.ranks
    )
    return dataclasses.replace(trial, receipt=msgspec.structs.replace(trial.receipt, ranks=ranks, **changes))
