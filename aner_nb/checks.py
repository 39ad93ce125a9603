"""The fixed checks of the contract, which every finished trial must pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from aner_nb.coordinator import Record
from aner_nb.master import MasterState
from aner_nb.ranks import Ranks
from aner_nb.receipts import Check
from aner_nb.stopping import StopWatch
from aner_nb.work import Work


def fixed_checks(
    work: Work, ranks: Ranks, record: Record, state: MasterState, watch: StopWatch
) -> tuple[Check, ...]:
    """Return the checks of the contract that every trial must pass."""
    plan = work.plan
    epochs_run = record.end // plan.batch_count
    restarted = bool(record.first) or record.rows.shape[1] != len(work.partitions)
    expected_rows = [len(partition.features) * epochs_run for partition in work.partitions]
    rows = record.rows.sum(axis=0).tolist()
    if restarted:
        # Ranks changed on the way, or a checkpoint had a part: only the sum is known beforehand.
        expected_rows, rows = [plan.rows_from(record.first) - plan.rows_from(record.end)], [sum(rows)]
    own = work.fingerprints()
    told = [ready["partition"] for ready in ranks.ready]
    plans = {ready["plan_id"] for ready in ranks.ready}
    proofs = [ready["proof"] for ready in ranks.ready]
    traces = [report["trace_count"] for report in ranks.closing]
    parts = (work.split.train, work.split.validation, work.split.test)
    total = sum(map(len, parts))
    distinct = len(np.unique(np.concatenate(parts)))
    epochs = epochs_run - record.first // plan.batch_count
    validated = [event.evaluation.loss for event in record.validation]
    finite = all(np.isfinite(values).all() for values in (state.parameters, record.loss, validated))
    native = all(proof["produced_on"] == [proof["requested"]] for proof in map(_listed, proofs))
    probes = [ready["probe"] for ready in ranks.ready if ready.get("probe")]
    probed = Check(
        name="accelerators' small gradients",
        passed=all(probe["error"] <= probe["tolerance"] for probe in probes),
        detail="; ".join(f"{probe['error']:.1e} of {probe['tolerance']:.0e}" for probe in probes),
    )
    return (
        *((probed,) if probes else ()),
        _check("updates", record.updates == record.end, record.updates, record.end),
        _check("rows of each rank", rows == expected_rows, rows, expected_rows),
        Check(name="partitions", passed=own == told, detail="ranks hash the rows that were planned"),
        Check(name="plan", passed=plans == {plan.plan_id}, detail="ranks derive the coordinator's plan"),
        _check("disjoint splits", distinct == total, distinct, total),
        _check("validations", len(record.validation) == epochs, len(record.validation), epochs),
        Check(
            name="native gradients",
            passed=native,
            detail="; ".join(f"{proof['requested']}: {_listed(proof)['produced_on']}" for proof in proofs),
        ),
        _check("traces of each rank", set(traces) == {1}, traces, [1] * len(traces)),
        Check(name="finite", passed=finite, detail="losses and final parameters"),
        *_stopping_check(plan.epochs, epochs_run, watch),
    )


def _stopping_check(planned: int, run: int, watch: StopWatch) -> tuple[Check, ...]:
    """Check that a case which may stop early was stopped where its rule says, and nowhere else."""
    if watch.rule is None:
        return ()
    end = watch.rule.end(watch.losses) or planned
    right = run == len(watch.losses) == end
    return (_check("epochs by the rule for stopping early", right, run, end),)


def _listed(proof: Mapping[str, Any]) -> dict[str, Any]:
    return {**proof, "produced_on": list(proof["produced_on"])}


def _check(name: str, passed: bool, found: object, expected: object) -> Check:  # noqa: FBT001
    return Check(name=name, passed=passed, detail=f"{found} of {expected}")
