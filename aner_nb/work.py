"""A case made concrete with its data: what every placement computes alike, and what each rank must know."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np

from aner_nb.backends.base import Partition
from aner_nb.case import Case, Placement
from aner_nb.data import PreparedData, load, prepare
from aner_nb.errors import CaseError
from aner_nb.file_rows import FileRows, PlacedRows, RowsFile
from aner_nb.host import RankSetup
from aner_nb.master import Shaping
from aner_nb.network import Labels, Network
from aner_nb.networks import make_network
from aner_nb.plan import Plan, make_plan
from aner_nb.sources import fingerprint
from aner_nb.splits import Split, split
from aner_nb.staging import placed_fingerprints, stage
from aner_nb.user_files import Stored

RESIDENT_BUDGET_BYTES: Final = 2**30
"""A partition of up to this size stays on its rank's device when the case's staging is ``auto``."""


@dataclass(frozen=True, slots=True)
class Work:
    """A case made concrete with its data: what every placement computes alike."""

    case: Case
    data: PreparedData
    split: Split
    model: Network
    plan: Plan
    partitions: tuple[Partition, ...]
    placed: tuple[str, ...] = ()
    """Fingerprints of the partitions where they do not come to this process."""

    def fingerprints(self) -> list[str]:
        """Return the fingerprint of each rank's rows."""
        return list(self.placed) or [fingerprint(part.features, part.targets) for part in self.partitions]


def make_work(case: Case) -> tuple[Work, dict[str, int]]:
    """Load, split, normalize and partition the data of a case; return the work and the stages' durations.

    Raises
    ------
    CaseError
        If data, layers and loss don't fit each other.
    """
    began = time.perf_counter_ns()
    if isinstance(case.data, Stored):
        data, parts = stage(case.data, case)
        loaded = time.perf_counter_ns()
    else:
        source = load(case.data)
        loaded = time.perf_counter_ns()
        parts = split(source, case.split, seed=case.seed)
        data = prepare(source, parts, dtype=case.dtype)
    model = make_network(
        case,
        features=data.train.features.shape[1],
        outputs=data.outputs,
        task=data.task,
        class_weights=class_weights_of(case, data.train.targets, data.outputs, data.task),
    )
    plan = make_plan(case, len(data.train.features))
    partitions = _partitions(data, plan)
    done = time.perf_counter_ns()
    work = Work(case, data, parts, model, plan, partitions, _placed(case, partitions))
    return work, {"source_ns": loaded - began, "preprocess_ns": done - loaded}


def class_weights_of(case: Case, targets: Labels, outputs: int, task: str) -> tuple[float, ...]:
    """Return the weight of each class for a case's training rows; empty: every row counts 1.

    Raises
    ------
    CaseError
        If there are no classes, or not as many as weights, or one without a row to balance.
    """
    if case.class_weights is None:
        return ()
    where = f"case {case.name!r}: class_weights"
    if task != "classification":
        raise CaseError("the targets are numbers, not classes.", where=where, remedy="Leave the field out.")
    if case.class_weights == "balanced":
        counts = np.bincount(targets[:], minlength=outputs)
        if not counts.all():
            raise CaseError(
                f"class {int(counts.argmin())} has no training row, so nothing can balance it.",
                where=where,
                remedy="Give the weights as numbers, or bring rows of that class.",
            )
        return tuple((len(targets) / (outputs * counts)).tolist())
    if len(case.class_weights) != outputs:
        raise CaseError(
            f"there are {len(case.class_weights)} weights for {outputs} classes.",
            where=where,
            remedy=f"Give {outputs} numbers, or balanced.",
        )
    return tuple(map(float, case.class_weights))


def shaping_of(work: Work) -> Shaping:
    """Return what the coordinator does to the gradients of a work."""
    return Shaping(work.case.clip_norm, work.model.l2())


def with_ranks(work: Work, ranks: Sequence[tuple[Placement, int]]) -> Work:
    """Return the same work over other ranks; batches, rows and their order stay as they were."""
    case = dataclasses.replace(work.case, ranks=list(ranks))
    plan = make_plan(case, work.plan.train_rows)
    partitions = _partitions(work.data, plan)
    return dataclasses.replace(
        work, case=case, plan=plan, partitions=partitions, placed=_placed(case, partitions)
    )


def _partitions(data: PreparedData, plan: Plan) -> tuple[Partition, ...]:
    stored, targets = cast("object", data.train.features), cast("object", data.train.targets)
    if isinstance(stored, FileRows | PlacedRows) and isinstance(targets, FileRows | PlacedRows):
        every = [plan.runs(rank) for rank in range(len(plan.weights))]
        return tuple(
            Partition(cast("Any", stored.in_runs(runs)), cast("Any", targets.in_runs(runs))) for runs in every
        )
    chosen = [plan.partition(rank) for rank in range(len(plan.weights))]
    return tuple(Partition(data.train.features[rows], data.train.targets[rows]) for rows in chosen)


def _placed(case: Case, partitions: Sequence[Partition]) -> tuple[str, ...]:
    pairs = [(cast("Any", part.features), cast("Any", part.targets)) for part in partitions]
    if isinstance(case.data, Stored) and isinstance(pairs[0][0], PlacedRows):
        return placed_fingerprints(case.data, pairs)
    return ()


def make_setups(work: Work) -> list[RankSetup]:
    """Return what each rank must know, in rank order."""
    setups: list[RankSetup] = []
    for rank, partition in enumerate(work.partitions):
        targets = partition.targets
        setups.append(
            RankSetup(
                rank=rank,
                rank_count=len(work.partitions),
                placement=work.case.placements[rank],
                model=work.model,
                plan=work.plan,
                dtype=work.case.dtype,
                rows=len(partition.features),
                targets_dtype=targets.dtype.name,
                targets_width=targets.shape[1] if targets.ndim == 2 else 0,
                resident=staging(work.case, partition) == "resident",
                blocks=tuple(work.plan.blocks(rank)),
                files=_files(partition),
                placed=getattr(partition.features, "token", ""),
                tf32=work.case.tf32,
            )
        )
    return setups


def _files(partition: Partition) -> tuple[RowsFile, RowsFile] | None:
    features, targets = cast("object", partition.features), cast("object", partition.targets)
    if isinstance(features, FileRows | PlacedRows) and isinstance(targets, FileRows | PlacedRows):
        return features.file, targets.file
    return None


def staging(case: Case, partition: Partition) -> str:
    """Return how a partition reaches its device: as declared, or by size where that is ``auto``."""
    if isinstance(case.data, Stored):
        _check_shards(case, case.data, partition)
    if case.staging != "auto":
        return case.staging
    small = partition.features.nbytes + partition.targets.nbytes <= budget_bytes(case)
    return "resident" if small else "streamed"


def budget_bytes(case: Case) -> int:
    """Return the most that the rows of a rank may take in its memory; with more they are streamed."""
    return case.data.budget_bytes if isinstance(case.data, Stored) else RESIDENT_BUDGET_BYTES


def _check_shards(case: Case, data: Stored, partition: Partition) -> None:
    row = partition.features.nbytes // max(1, len(partition.features))
    if min(case.batch, len(partition.features)) * row > data.budget_bytes:
        raise CaseError(
            f"a batch of {case.batch:,} rows is over the budget of {data.budget_bytes:,} bytes.",
            where=f"case {case.name!r}: batch",
            remedy="Give a smaller batch, or a larger budget_bytes to stored(…).",
        )
