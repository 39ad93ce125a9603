"""Checking published trials one by one, and against the suite that they belong to."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aner_nb.case import contract_id_of, work_id_of
from aner_nb.errors import CaseError
from aner_nb.machine import EMULATED
from aner_nb.plan import TAIL_RULE, Plan
from aner_nb.receipts import SCHEMA_VERSION, TrialReceipt
from aner_nb.stopping import early_stopping_from_record
from aner_nb.suites import LARGEST_COUNT, Schedule

_MAX_SHOWN: Final = 500
_MAX_ROWS: Final = 2**26
"""Training rows whose order is recomputed; the product's own studies stay far below."""
_MAX_PLACES: Final = 200_000
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong."""

    file: str
    """File, and line for a trial."""
    field: str
    """Field or record; empty: the file as a whole."""
    what: str

    def __str__(self) -> str:
        text = f"{f'{self.file} {self.field}'.strip() or 'the bundle'}: {self.what}"
        # What a stranger wrote must not steer a terminal, nor fill it.
        return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text[:_MAX_SHOWN])


def receipt_findings(where: str, receipt: TrialReceipt) -> Iterator[Finding]:
    """Yield what is wrong with a trial by itself."""
    if receipt.schema_version != SCHEMA_VERSION:
        yield Finding(where, "schema_version", f"is {receipt.schema_version}, not {SCHEMA_VERSION}")
    if receipt.case.get("name") != receipt.case_name:
        yield Finding(where, "case_name", "is not the name in the case")
    if contract_id_of(receipt.case) != receipt.contract_id:
        yield Finding(where, "contract_id", "is not the id of the case")
    if work_id_of(receipt.case) != receipt.work_id:
        yield Finding(where, "work_id", "is not the id of the work")
    if EMULATED in receipt.software:
        yield Finding(where, "software", f"names an {EMULATED}, which is not for publication")
    for index, rank in enumerate(receipt.ranks):
        if rank.proof.emulated:
            yield Finding(where, f"ranks[{index}].proof.emulated", "is not for publication")
    if receipt.status == "passed":
        yield from _passed_findings(where, receipt)
    elif receipt.failure is None:
        yield Finding(where, "failure", f"is missing for a trial that {receipt.status}")


def _sound(receipt: TrialReceipt) -> str:
    """Return why no plan can be made of a trial's counts, or nothing."""
    assert receipt.counts is not None
    if not 1 <= receipt.counts.train_rows <= _MAX_ROWS:
        return f"train_rows is not from 1 to {_MAX_ROWS:,}"
    if not receipt.ranks or not all(1 <= rank.weight <= _MAX_ROWS for rank in receipt.ranks):
        return "a rank's weight cannot be, or there is no rank"
    return ""


def _passed_findings(where: str, receipt: TrialReceipt) -> Iterator[Finding]:
    missing = [
        name
        for name in ("clocks", "counts", "fingerprints", "test", "noise", "coordinator_rss_high_water_bytes")
        if getattr(receipt, name) is None
    ]
    if missing or receipt.failure is not None:
        yield Finding(where, missing[0] if missing else "failure", "does not fit a trial that passed")
        return
    unsound = _sound(receipt)
    if unsound:
        yield Finding(where, "counts", f"allow no plan: {unsound}")
        return
    if not receipt.checks or not all(check.passed for check in receipt.checks):
        yield Finding(where, "checks", "did not all pass")
    yield from _count_findings(where, receipt)
    yield from _clock_findings(where, receipt)
    yield from _fingerprint_findings(where, receipt)
    for index, rank in enumerate(receipt.ranks):
        here = f"ranks[{index}]"
        if rank.proof.produced_on != (rank.proof.requested,):
            yield Finding(where, f"{here}.proof", "shows gradients from another device than requested")
        if rank.trace_count != 1:
            yield Finding(where, f"{here}.trace_count", f"is {rank.trace_count}, not 1")
        if rank.memory.process_vram_bytes is None and not rank.memory.process_vram_reason:
            yield Finding(where, f"{here}.memory.process_vram_bytes", "has neither a figure nor a reason")
    sizes = [rank.memory.worker_rss_high_water_bytes for rank in receipt.ranks]
    if receipt.largest_rank is None or sizes[receipt.largest_rank : receipt.largest_rank + 1] != [max(sizes)]:
        yield Finding(where, "largest_rank", "is not the rank with the largest memory")


def _plan_of(receipt: TrialReceipt) -> Plan:
    assert receipt.counts is not None
    rows = receipt.counts.train_rows
    weights = tuple(rank.weight for rank in receipt.ranks)
    case = receipt.case
    return Plan(rows, min(int(case["batch"]), rows), int(case["epochs"]), int(case["seed"]), weights)


def _count_findings(where: str, receipt: TrialReceipt) -> Iterator[Finding]:
    counts = receipt.counts
    assert counts is not None
    plan = _plan_of(receipt)
    run = receipt.stopping.epochs if receipt.stopping else plan.epochs
    right = {
        "batches": plan.batch_count,
        "planned_updates": plan.update_count,
        "planned_rows": plan.row_count,
    }
    if not receipt.resumed_from:
        right |= {"updates": plan.batch_count * run, "rows": plan.train_rows * run}
    for name, value in right.items():
        if getattr(counts, name) != value:
            yield Finding(where, f"counts.{name}", f"is {getattr(counts, name)}; the plan has {value}")
    if sum(rank.rows for rank in receipt.ranks) != counts.rows:
        yield Finding(where, "ranks.rows", f"do not add up to counts.rows ({counts.rows})")
    if not (receipt.resumed_from or receipt.restarts):
        for index, expected in enumerate(rows * run for rows in plan.rank_rows()):
            if receipt.ranks[index].rows != expected:
                yield Finding(where, f"ranks[{index}].rows", f"is not {expected}, its share by the weights")
    declared = [weight for _, weight in receipt.case["ranks"]]
    adjusted = receipt.calibration or receipt.restarts
    if not adjusted and [rank.weight for rank in receipt.ranks] != declared:
        yield Finding(where, "ranks.weight", "are not the case's weights")
    yield from _stopping_findings(where, receipt, plan.epochs)
    epochs = run - receipt.resumed_from // plan.batch_count
    numbers = [record.epoch for record in receipt.validation]
    if len(numbers) != epochs or numbers != list(range(run - epochs, run)):
        yield Finding(where, "validation", f"does not have one record for each of {epochs} epochs")
    for record in receipt.validation:
        if record.update != (record.epoch + 1) * plan.batch_count:
            yield Finding(where, "validation.update", "is not the end of its epoch")
    if receipt.tail_rule != TAIL_RULE:
        yield Finding(where, "tail_rule", "is not the declared rule")


def _stopping_findings(where: str, receipt: TrialReceipt, planned: int) -> Iterator[Finding]:
    """Decide once more, on the validation losses, where the training had to end."""
    stopping, record = receipt.stopping, receipt.case.get("stop_early")
    if (stopping is None) != (record is None):
        yield Finding(where, "stopping", "does not fit the case, which says whether training may stop early")
    if stopping is None or record is None:
        return
    try:
        rule = early_stopping_from_record(record, "stop_early")
    except CaseError as error:
        yield Finding(where, "case.stop_early", f"is no rule: {error}")
        return
    if not 1 <= stopping.epochs <= planned or stopping.stopped != (stopping.epochs < planned):
        yield Finding(where, "stopping.epochs", f"is {stopping.epochs}; the case has {planned}")
    if stopping.restored != rule.restore_best:
        yield Finding(where, "stopping.restored", "is not what the case says")
    if receipt.resumed_from:
        return  # the losses before are not in this receipt
    losses = [math.nan if epoch.loss is None else epoch.loss for epoch in receipt.validation]
    if stopping.epochs != (rule.end(losses) or planned):
        yield Finding(where, "stopping.epochs", "is not where the validation losses end the training")
    if losses and stopping.best_epoch != rule.best(losses):
        yield Finding(where, "stopping.best_epoch", "is not the epoch with the best validation loss")


def _clock_findings(where: str, receipt: TrialReceipt) -> Iterator[Finding]:
    clocks = receipt.clocks
    assert clocks is not None
    if min(getattr(clocks, name) for name in clocks.__struct_fields__) < 0 or clocks.native_fit_ns == 0:
        yield Finding(where, "clocks", "has a duration that cannot be")
    parts = (
        clocks.native_fit_ns
        + clocks.source_ns
        + clocks.preprocess_ns
        + clocks.placement_ns
        + clocks.test_ns
        + clocks.shutdown_ns
    )
    if parts > clocks.complete_command_ns:
        yield Finding(where, "clocks.complete_command_ns", "is less than the sum of its parts")
    if clocks.validation_ns > clocks.native_fit_ns:
        yield Finding(where, "clocks.validation_ns", "is more than native fit, of which it is a part")
    total = receipt.coordinator_phases.get("total")
    if total is None or total.total_ns + clocks.validation_ns > clocks.native_fit_ns * 1.001:
        yield Finding(where, "coordinator_phases.total", "is missing or more than native fit")


def _fingerprint_findings(where: str, receipt: TrialReceipt) -> Iterator[Finding]:
    prints = receipt.fingerprints
    assert prints is not None
    names = ("source", "train", "validation", "test", "plan", "initial_parameters", "final_parameters")
    values = {name: getattr(prints, name) for name in names}
    values |= {f"partitions[{index}]": value for index, value in enumerate(prints.partitions)}
    for name, value in values.items():
        if not _DIGEST.fullmatch(value):
            yield Finding(where, f"fingerprints.{name}", "is not a SHA-256 digest")
    if len(prints.partitions) != len(receipt.ranks):
        yield Finding(where, "fingerprints.partitions", "are not one for each rank")
    if prints.plan != _plan_id(_plan_of(receipt)):
        yield Finding(where, "fingerprints.plan", "is not the id of the plan")


@functools.lru_cache(maxsize=64)
def _plan_id(plan: Plan) -> str:
    """Return the plan's id; the trials of a case share it, and it costs a permutation of all rows."""
    return plan.plan_id


def suite_findings(suite: Mapping[str, Any], trials: Sequence[tuple[str, TrialReceipt]]) -> Iterator[Finding]:
    """Yield what does not fit together: suite, schedule, and trials of one work."""
    try:
        contracts = {str(case["name"]): contract_id_of(case) for case in suite["cases"]}
        places = _schedule(suite)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        yield Finding("suite.json", "", f"is not a suite: {error}")
        return
    seen: dict[tuple[str, str, int], str] = {}
    for where, receipt in trials:
        name = receipt.case_name
        key = (name, receipt.role, receipt.repetition)
        if contracts.get(name) != receipt.contract_id:
            yield Finding(where, "contract_id", "is not that of the suite's case")
        if (receipt.round, receipt.position) not in places.get(key, ()):
            yield Finding(where, "round", "and position are not those of the suite's seeded schedule")
        if receipt.status == "passed":
            if key in seen:
                yield Finding(where, "repetition", f"was passed twice, also in {seen[key]}")
            seen[key] = where
    idle = {receipt.case_name for _, receipt in trials if receipt.status == "not_run"}
    for key in sorted(set(places) - set(seen)):
        if key[0] not in idle:
            yield Finding("suite.json", key[0], f"has no passed {key[1]} trial {key[2]}")
    yield from _work_findings(trials)


def _schedule(suite: Mapping[str, Any]) -> dict[tuple[str, str, int], set[tuple[int, int]]]:
    """Return round and position of each trial, by each schedule that the folder's trials ran by."""
    own: dict[str, Any] = {"seed": suite["seed"], "names": [case["name"] for case in suite["cases"]]}
    warm_ups, repetitions = int(suite["warm_ups"]), int(suite["repetitions"])
    records = (own, *suite.get("earlier", ()))
    if not (0 <= warm_ups <= LARGEST_COUNT and 1 <= repetitions <= LARGEST_COUNT):
        raise ValueError(f"it has {warm_ups:,} warm-ups and {repetitions:,} repetitions")
    if sum(len(record["names"]) or 1 for record in records) * (warm_ups + repetitions) > _MAX_PLACES:
        raise ValueError(f"its schedules have over {_MAX_PLACES:,} trials")
    places: dict[tuple[str, str, int], set[tuple[int, int]]] = {}
    for record in records:
        schedule = Schedule(int(record["seed"]), tuple(map(str, record["names"])))
        for name, role, repetition, number, position in schedule.places(warm_ups, repetitions):
            places.setdefault((name, role, repetition), set()).add((number, position))
    return places


def _work_findings(trials: Sequence[tuple[str, TrialReceipt]]) -> Iterator[Finding]:
    """All trials of one work start from the same data and parameters."""
    first: dict[tuple[str, str], str] = {}
    for where, receipt in trials:
        if receipt.fingerprints is None:
            continue
        for name in ("source", "train", "validation", "test", "initial_parameters"):
            value = getattr(receipt.fingerprints, name)
            if first.setdefault((receipt.work_id, name), value) != value:
                yield Finding(where, f"fingerprints.{name}", "differs from other trials of the same work")
