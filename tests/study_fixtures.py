"""A small study without worker processes: real trials with inline ranks, placed on an invented platform."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec

import aner_nb as aner
from aner_nb import machine
from aner_nb.errors import BackendUnavailable
from aner_nb.execution import run
from aner_nb.inventory import configuration_id
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


class InventedPlatform:
    """A cluster of one machine, for cases whose ranks are inline."""

    platforms = (SimpleNamespace(name="Atlas-01", capacity=FACTS, configuration_id=CONFIGURATION),)

    def open_ranks(self, *_: object, **__: object) -> Any:
        raise BackendUnavailable("the cluster offers no such placement.")


def make_study(folder: Path, *, chosen: aner.Suite | None = None, repetitions: int = 3) -> Study:
    """Run a suite of inline cases, else the small one, into a folder."""

    def run_placed(case: aner.Case, host: Any, **options: Any) -> aner.Trial:
        return placed(run(case, host, **options))

    which = dataclasses.replace(chosen or suite(), repetitions=repetitions)
    with mock.patch("aner_nb.study.run", run_placed):
        return aner.run_suite(which, InventedPlatform(), out=folder)


def placed(trial: aner.Trial, **changes: Any) -> aner.Trial:
    """Return the trial as if its ranks had run on the invented platform."""
    ranks = tuple(
        msgspec.structs.replace(rank, placement=f"Atlas-01/{rank.placement}", configuration_id=CONFIGURATION)
        for rank in trial.receipt.ranks
    )
    return dataclasses.replace(trial, receipt=msgspec.structs.replace(trial.receipt, ranks=ranks, **changes))
