"""From what a trial measured to the records of its receipt."""

from __future__ import annotations

import math
import os
import platform
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from aner_nb.balance import best_shares
from aner_nb.calibration import Calibration
from aner_nb.case import Case
from aner_nb.coordinator import CHANNEL_PHASES, COORDINATOR_PHASES, Record
from aner_nb.errors import AnerError, BackendUnavailable, Cancelled
from aner_nb.machine import noise_sample
from aner_nb.network import Evaluation
from aner_nb.ranks import Ranks
from aner_nb.receipts import (
    Counts,
    EpochRecord,
    EvaluationRecord,
    FailureRecord,
    MemoryRecord,
    NoiseRecord,
    PhaseSummary,
    ProofRecord,
    RankCostRecord,
    RankRecord,
    Status,
    StoppingRecord,
)
from aner_nb.stopping import StopWatch
from aner_nb.user_files import Stored
from aner_nb.user_table import Table
from aner_nb.work import Work, budget_bytes, staging

if TYPE_CHECKING:
    import pandas


def summarise_phases(columns: NDArray[np.int64], names: Sequence[str]) -> dict[str, PhaseSummary]:
    """Return the median (leaving out the first update, if there are more) and the sum of each column."""
    steady = columns[1:] if len(columns) > 1 else columns
    return {
        name: PhaseSummary(
            median_ns=int(np.median(steady[:, index])) if len(steady) else 0,
            total_ns=int(columns[:, index].sum()),
        )
        for index, name in enumerate(names)
    }


def epoch_records(record: Record, updates_per_epoch: int) -> tuple[EpochRecord, ...]:
    """Return the validation of each epoch, with the mean training loss of its updates.

    Of an epoch that a checkpoint had begun, the updates that were applied here.
    """
    starts = [max(event.update - updates_per_epoch, record.first) for event in record.validation]
    return tuple(
        EpochRecord(
            epoch=event.epoch,
            update=event.update,
            elapsed_ns=event.elapsed_ns,
            loss=_finite(event.evaluation.loss),
            accuracy=event.evaluation.accuracy,
            train_loss=_finite(float(record.loss[start : event.update].mean())),
        )
        for event, start in zip(record.validation, starts, strict=True)
    )


def stopping_record(watch: StopWatch, epochs: int) -> StoppingRecord | None:
    """Return where a training of at most so many epochs ended; None: its case always runs all of them."""
    if watch.rule is None:
        return None
    return StoppingRecord(
        epochs=len(watch.losses),
        stopped=len(watch.losses) < epochs,
        best_epoch=watch.best_epoch,
        restored=watch.best is not None,
    )


def count_record(work: Work, record: Record | None) -> Counts:
    """Return what the plan has and what was done."""
    plan, data = work.plan, work.data
    return Counts(
        parameters=work.model.layout.size,
        train_rows=plan.train_rows,
        validation_rows=len(data.validation.features),
        test_rows=len(data.test.features),
        batches=plan.batch_count,
        planned_updates=plan.update_count,
        updates=record.updates - record.first if record else 0,
        planned_rows=plan.row_count,
        rows=int(record.rows.sum()) if record else 0,
    )


def evaluation_record(evaluation: Evaluation) -> EvaluationRecord:
    """Return an evaluation as a record."""
    return EvaluationRecord(loss=_finite(evaluation.loss), accuracy=evaluation.accuracy)


def _finite(value: float) -> float | None:
    """Return the value, or None where JSON has no number for it."""
    return value if math.isfinite(value) else None


def cost_records(calibration: Calibration) -> tuple[RankCostRecord, ...]:
    """Return what the ranks cost, with the shares of a batch that follow from it."""
    shares = best_shares(calibration.together, calibration.rows)
    return tuple(
        RankCostRecord(
            placement=placement,
            overhead_s=cost.overhead_s,
            row_s=cost.row_s,
            error_s=cost.error_s,
            share=share,
        )
        for placement, cost, share in zip(calibration.placements, calibration.together, shares, strict=True)
    )


def noise_record(before: Mapping[str, float], events_dropped: int) -> NoiseRecord:
    """Return what may have disturbed the trial since the sample `before` was taken."""
    after = noise_sample()
    return NoiseRecord(
        load_before=before["load_1_minute"],
        load_after=after["load_1_minute"],
        steal_seconds=after["steal_seconds"] - before["steal_seconds"],
        busy_seconds=after["busy_seconds"] - before["busy_seconds"],
        frequency_mhz=after.get("frequency_mhz"),
        events_dropped=events_dropped,
    )


def rank_record(work: Work, ranks: Ranks, record: Record, rank: int) -> RankRecord:
    """Return what a rank was and did."""
    channel, offer = ranks.channels[rank], ranks.offers[rank]
    ready, closing = ranks.ready[rank], ranks.closing[rank]
    partition = work.partitions[rank]
    placement = offer.placement if offer is not None else work.case.placements[rank]
    proof = ready["proof"]
    device = closing["device_bytes"]
    return RankRecord(
        placement=str(placement),
        weight=work.case.weights[rank],
        rows=int(record.rows[:, rank].sum()),
        configuration_id=offer.configuration_id if offer is not None else "",
        channel=channel.kind,
        encryption=channel.encryption,
        payload_bytes=channel.payload_bytes,
        fresh_process=bool(ready["fresh_process"]),
        staging=staging(work.case, partition),
        row_budget_bytes=budget_bytes(work.case),
        proof=ProofRecord(**dict(proof, produced_on=tuple(proof["produced_on"]))),
        trace_count=closing["trace_count"],
        receive_ns=ready["receive_ns"],
        backend_start_ns=ready["backend_start_ns"],
        compile_ns=ready["compile_ns"],
        memory=MemoryRecord(
            worker_rss_high_water_bytes=closing["rss_high_water_bytes"],
            rss_before_backend_bytes=ready["rss_before_backend_bytes"],
            rss_ready_bytes=ready["rss_ready_bytes"],
            rss_by_epoch_bytes=tuple(resident for _, resident, _ in closing["rss_by_epoch"]),
            partition_bytes=partition.features.nbytes + partition.targets.nbytes,
            device_bytes=device["current"],
            device_peak_bytes=device["peak"],
            device_bytes_after_close=closing["device_bytes_after_close"],
            process_vram_bytes=closing["process_vram_bytes"],
            process_vram_reason=closing["process_vram_reason"],
        ),
        phases=summarise_phases(record.ranks_ns[record.first :, rank], CHANNEL_PHASES),
    )


def private_facts(case: Case) -> dict[str, dict[str, Any]]:
    """Return what a receipt keeps and nobody publishes: this process, and the names in a person's own table."""
    names = case.data.private_record() if isinstance(case.data, Table | Stored) else {}
    return {"host": {"name": platform.node(), "pid": os.getpid()}, "data": names}


def status_of(error: AnerError | None) -> Status:
    """Return the status of a trial that `error` ended; None: nothing did."""
    if error is None:
        return "passed"
    if isinstance(error, BackendUnavailable):
        return "not_run"
    return "cancelled" if isinstance(error, Cancelled) else "failed"


_PUBLIC_KINDS: Final = ("backend_unavailable", "deadline_exceeded", "contract_broken", "cancelled")


def failure_of(error: AnerError | None) -> FailureRecord | None:
    """Return the failure; its public reason repeats only sentences that we wrote ourselves."""
    if error is None:
        return None
    ours = error.kind in _PUBLIC_KINDS
    # Ranks have numbers; other places are machines, addresses and paths.
    place = f": {error.where}" if re.fullmatch(r"rank \d+(, \d+)*", error.where) else ""
    reason = error.what if ours else f"{error.kind.replace('_', ' ')}{place}"
    return FailureRecord(**error.to_record(), reason=reason)


def steps_table(columns: Mapping[str, NDArray[Any]]) -> pandas.DataFrame:
    """Return one row an update, with every phase of every rank in nanoseconds.

    Parameters
    ----------
    columns
        ``loss`` (updates,), ``rows`` (updates, ranks), ``coordinator_ns`` (updates, phases) and ``ranks_ns``
        (updates, ranks, phases): as a results folder keeps them, or ``vars`` of a `Record`.
    """
    import pandas

    table: dict[str, NDArray[Any]] = {"loss": columns["loss"]}
    for column, name in enumerate(COORDINATOR_PHASES):
        table[f"coordinator_{name}_ns"] = columns["coordinator_ns"][:, column]
    for rank in range(columns["rows"].shape[1]):
        table[f"rank{rank}_rows"] = columns["rows"][:, rank]
        for column, name in enumerate(CHANNEL_PHASES):
            table[f"rank{rank}_{name}_ns"] = columns["ranks_ns"][:, rank, column]
    return pandas.DataFrame(table).rename_axis("update")
