"""One trial from source to receipt: the stages, the two clocks and the fixed checks."""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from aner_nb import machine
from aner_nb.backends.base import Partition
from aner_nb.case import Case
from aner_nb.collectives.base import AbstractCollective
from aner_nb.collectives.star import StarCollective
from aner_nb.coordinator import (
    CHANNEL_PHASES,
    COORDINATOR_PHASES,
    Record,
    make_record,
    train,
)
from aner_nb.data import PreparedData, Split, load, prepare, split
from aner_nb.errors import AnerError, BackendUnavailable, Cancelled, CaseError, ContractBroken
from aner_nb.events import Emitter, Event, StageEntered, Subscriber, TrialEnded, TrialStarted
from aner_nb.host import RankSetup
from aner_nb.master import MasterState
from aner_nb.model import Evaluation, Model, evaluate, make_model
from aner_nb.plan import TAIL_RULE, Plan, make_plan
from aner_nb.ranks import Ranks, open_inline_ranks
from aner_nb.receipts import (
    Check,
    Clocks,
    Counts,
    EpochRecord,
    EvaluationRecord,
    FailureRecord,
    Fingerprints,
    MemoryRecord,
    NoiseRecord,
    PhaseSummary,
    ProofRecord,
    RankRecord,
    Role,
    Status,
    TrialReceipt,
)
from aner_nb.sources import fingerprint

RESIDENT_BUDGET_BYTES: Final = 2**30
"""A partition of up to this size stays on its rank's device when the case's staging is ``auto``."""

DEADLINE_SECONDS: Final = 60.0

Wrap = Callable[[AbstractCollective, "Work"], AbstractCollective]


class RankHost(Protocol):
    """What opens ranks; `aner_nb.cluster.Cluster` does."""

    def open_ranks(
        self,
        setups: Sequence[RankSetup],
        partitions: Sequence[Partition],
        *,
        channel: str,
        stop: Callable[[], None],
    ) -> contextlib.AbstractContextManager[Ranks]:
        """See `aner_nb.cluster.Cluster.open_ranks`."""
        ...


@dataclass(frozen=True, slots=True)
class Work:
    """A case made concrete with its data: what every placement computes alike."""

    case: Case
    data: PreparedData
    split: Split
    model: Model
    plan: Plan
    partitions: tuple[Partition, ...]


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of one trial."""

    receipt: TrialReceipt
    steps: Record | None = None
    """Columns by update; None where training never began."""
    parameters: NDArray[np.float64] | None = None
    """The final float64 vector; None where training did not end. Private."""
    work: Work | None = field(default=None, repr=False)
    error: AnerError | None = None
    """What ended it, unless it passed."""

    def raise_unless_passed(self) -> Trial:
        """Return the trial, or raise the error that ended it."""
        if self.error is not None:
            raise self.error
        return self

    def __str__(self) -> str:
        receipt = self.receipt
        head = f"{receipt.case_name}, {receipt.role.replace('_', '-')} {receipt.repetition}: {receipt.status}"
        if receipt.failure is not None:
            return f"{head}: {self.error or receipt.failure.reason}"
        if receipt.clocks is None or receipt.test is None:
            return head
        accuracy = receipt.test.accuracy
        quality = f"test loss {receipt.test.loss:.4f}" if accuracy is None else f"test {accuracy:.2%}"
        return (
            f"{head}, native fit {receipt.clocks.native_fit_ns / 1e9:.3f} s, complete command "
            f"{receipt.clocks.complete_command_ns / 1e9:.2f} s, {quality}"
        )

    def __repr__(self) -> str:
        return f"<Trial {self}>"


def make_work(case: Case) -> tuple[Work, dict[str, int]]:
    """Load, split, normalize and partition the data of a case; return the work and the stages' durations.

    Raises
    ------
    CaseError
        If data, layers and loss don't fit each other.
    """
    began = time.perf_counter_ns()
    source = load(case.data)
    loaded = time.perf_counter_ns()
    parts = split(source, case.split, seed=case.seed)
    data = prepare(source, parts, dtype=case.dtype)
    model = make_model(
        case, features=data.train.features.shape[1], outputs=data.outputs, task=data.task
    )
    plan = make_plan(case, len(data.train.features))
    partitions: list[Partition] = []
    for rank in range(len(case.ranks)):
        rows = plan.partition(rank)
        partitions.append(Partition(data.train.features[rows], data.train.targets[rows]))
    done = time.perf_counter_ns()
    work = Work(case, data, parts, model, plan, tuple(partitions))
    return work, {"source_ns": loaded - began, "preprocess_ns": done - loaded}


def run(
    case: Case,
    cluster: RankHost | None = None,
    *,
    role: Role = "measured",
    repetition: int = 1,
    round_number: int = 0,
    position: int = 0,
    subscribers: Sequence[Subscriber] = (),
    stop: Callable[[], bool] = lambda: False,
    deadline_seconds: float = DEADLINE_SECONDS,
    wrap: Wrap | None = None,
) -> Trial:
    """Run one trial of a case.

    Parameters
    ----------
    cluster
        Hosts the ranks; not needed where the case's channel is ``inline``.
    subscribers
        Called with each event, on another thread.
    stop
        Asked a few times a second and once an epoch; True cancels the trial.
    deadline_seconds
        Longest time without a reply in one update.
    wrap
        Puts a collective around the one that is used, as `develop` does.

    Returns
    -------
    Trial
        Also when it failed, was cancelled (Ctrl-C included) or could not run: the receipt says so.

    Raises
    ------
    CaseError
        If the case is wrong; nothing was started.
    """
    trial = _TrialRun(case, role, repetition, round_number, position, stop)
    emitter = Emitter(subscribers)
    with emitter.delivering():
        trial.emit = emitter.emit
        emitter.emit(trial.started_event())
        error = trial.execute(cluster, deadline_seconds, wrap)
        result = trial.result(error, emitter.dropped)
        emitter.emit(_ended(result))
    return result


class _TrialRun:
    """What one trial has gathered so far; turned into a receipt at its end, however it ends."""

    def __init__(
        self,
        case: Case,
        role: Role,
        repetition: int,
        round_number: int,
        position: int,
        stop: Callable[[], bool],
    ) -> None:
        self._case = case
        self._labels: dict[str, Any] = {
            "role": role,
            "repetition": repetition,
            "round": round_number,
            "position": position,
            "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
        self._stop = stop
        self._began = time.perf_counter_ns()
        self._noise = machine.noise_sample()
        self._work, self._durations = make_work(case)
        self._ranks: Ranks | None = None
        self._record: Record | None = None
        self._state: MasterState | None = None
        self._initial = ""
        self._test: Evaluation | None = None
        self._reduction = ""
        self._complete_ns = 0
        self.emit: Callable[[Event], None] = lambda _event: None

    def started_event(self) -> TrialStarted:
        plan = self._work.plan
        return TrialStarted(
            self._case.name,
            self._labels["role"],
            self._labels["repetition"],
            tuple(str(placement) for placement in self._case.placements),
            plan.update_count,
            plan.epochs,
        )

    def execute(
        self, cluster: RankHost | None, deadline_seconds: float, wrap: Wrap | None
    ) -> AnerError | None:
        """Run all stages; return the error that ended them early, if one did."""
        error: AnerError | None = None
        try:
            self._stages(cluster, deadline_seconds, wrap)
        except CaseError:
            raise
        except AnerError as caught:
            error = caught
        except KeyboardInterrupt:
            error = Cancelled("interrupted from the keyboard.")
        self._complete_ns = time.perf_counter_ns() - self._began
        return error

    def _stages(
        self, cluster: RankHost | None, deadline_seconds: float, wrap: Wrap | None
    ) -> None:
        work = self._work
        initial = work.model.initial(self._case.seed)
        self._initial = fingerprint(initial)
        self._state = MasterState(initial, self._case.optimizer)
        self.emit(StageEntered("placing ranks"))
        placing = time.perf_counter_ns()
        with contextlib.closing(self._state), self._open(cluster) as ranks:
            self._ranks = ranks
            self._durations["placement_ns"] = time.perf_counter_ns() - placing
            self.emit(StageEntered("training"))
            self._train(ranks, deadline_seconds, wrap)
            self.emit(StageEntered("testing"))
            testing = time.perf_counter_ns()
            self._test = self._evaluate(work.data.test)
            closing = time.perf_counter_ns()
            self._durations["test_ns"] = closing - testing
            ranks.close()
        self._durations["shutdown_ns"] = time.perf_counter_ns() - closing

    def _open(self, cluster: RankHost | None) -> contextlib.AbstractContextManager[Ranks]:
        setups = _setups(self._work)
        if self._case.channel == "inline":
            return contextlib.nullcontext(open_inline_ranks(setups, self._work.partitions))
        if cluster is None:
            raise CaseError(
                "no cluster was given.",
                where=f"case {self._case.name!r}",
                remedy="Pass aner.local_cluster(...) or aner.connect(...), or write channel: inline.",
            )
        return cluster.open_ranks(
            setups, self._work.partitions, channel=self._case.channel, stop=self._check_stop
        )

    def _train(self, ranks: Ranks, deadline_seconds: float, wrap: Wrap | None) -> None:
        work, state = self._work, self._state
        assert state is not None

        def check() -> None:
            ranks.check()
            self._check_stop()

        collective: AbstractCollective = StarCollective(
            ranks.wire, ranks.channels, deadline_seconds=deadline_seconds, check=check
        )
        self._reduction = collective.reduction
        if wrap is not None:
            collective = wrap(collective, work)

        def evaluate_epoch(parameters: NDArray[np.float64]) -> Evaluation:
            check()
            validation = work.data.validation
            return evaluate(work.model, parameters, validation.features, validation.targets)

        self._record = make_record(work.plan)
        train(
            work.plan,
            state,
            collective,
            evaluate_epoch,
            self.emit,
            self._record,
        )

    def _evaluate(self, rows: Any) -> Evaluation:
        assert self._state is not None
        return evaluate(self._work.model, self._state.parameters, rows.features, rows.targets)

    def _check_stop(self) -> None:
        if self._stop():
            raise Cancelled("cancelled on request.")

    def result(self, error: AnerError | None, dropped: int) -> Trial:
        """Return the trial with its receipt."""
        checks: tuple[Check, ...] = ()
        ranks = self._ranks
        finished = ranks is not None and bool(ranks.closing) and error is None
        if finished:
            assert ranks is not None and self._record is not None and self._state is not None
            checks = fixed_checks(self._work, ranks, self._record, self._state)
            broken = [check for check in checks if not check.passed]
            if broken:
                error = ContractBroken(f"{broken[0].name}: {broken[0].detail}.")
        receipt = TrialReceipt(
            case=self._case.to_record(),
            case_name=self._case.name,
            contract_id=self._case.contract_id,
            work_id=self._case.work_id,
            status=_status(error),
            failure=_failure(error),
            software=machine.package_versions(),
            reduction=self._reduction,
            tail_rule=TAIL_RULE,
            counts=self._counts(),
            noise=self._noise_record(dropped),
            checks=checks,
            coordinator_rss_high_water_bytes=machine.rss_high_water_bytes(),
            host={"name": platform.node(), "pid": os.getpid()},
            **self._labels,
            **(self._outcome() if finished else {}),
            **(self._observed() if self._record is not None else {}),
        )
        kept = self._state.parameters if finished and self._state is not None else None
        return Trial(receipt, self._record, kept, self._work, error)

    def _counts(self) -> Counts:
        plan, data = self._work.plan, self._work.data
        record = self._record
        return Counts(
            parameters=self._work.model.layout.size,
            train_rows=plan.train_rows,
            validation_rows=len(data.validation.features),
            test_rows=len(data.test.features),
            batches=plan.batch_count,
            planned_updates=plan.update_count,
            updates=record.updates if record else 0,
            planned_rows=plan.row_count,
            rows=int(record.rows.sum()) if record else 0,
        )

    def _observed(self) -> dict[str, Any]:
        """Return what is known as soon as training has begun."""
        record = self._record
        assert record is not None
        per_epoch = self._work.plan.batch_count
        epochs = tuple(
            EpochRecord(
                epoch=event.epoch,
                update=event.update,
                elapsed_ns=event.elapsed_ns,
                loss=event.evaluation.loss,
                accuracy=event.evaluation.accuracy,
                train_loss=float(record.loss[event.update - per_epoch : event.update].mean()),
            )
            for event in record.validation
        )
        return {
            "validation": epochs,
            "coordinator_phases": summarise_phases(
                record.coordinator_ns[: record.updates], COORDINATOR_PHASES
            ),
        }

    def _outcome(self) -> dict[str, Any]:
        """Return what only a finished trial has."""
        ranks, record, state, test = self._ranks, self._record, self._state, self._test
        assert ranks and record and state and test
        rank_records = tuple(
            _rank_record(self._work, ranks, record, rank) for rank in range(len(ranks.channels))
        )
        sizes = [rank.memory.worker_rss_high_water_bytes for rank in rank_records]
        return {
            "clocks": Clocks(
                native_fit_ns=record.native_fit_ns,
                complete_command_ns=self._complete_ns,
                validation_ns=record.validation_ns,
                backend_start_ns=max(rank.backend_start_ns for rank in rank_records),
                compile_ns=max(rank.compile_ns for rank in rank_records),
                **self._durations,
            ),
            "fingerprints": Fingerprints(
                **dict(self._work.data.fingerprints),
                partitions=tuple(str(ready["partition"]) for ready in ranks.ready),
                plan=self._work.plan.plan_id,
                initial_parameters=self._initial,
                final_parameters=fingerprint(state.parameters),
            ),
            "test": EvaluationRecord(loss=test.loss, accuracy=test.accuracy),
            "ranks": rank_records,
            "largest_rank": int(np.argmax(sizes)),
        }

    def _noise_record(self, dropped: int) -> NoiseRecord:
        before, after = self._noise, machine.noise_sample()
        return NoiseRecord(
            load_before=before["load_1_minute"],
            load_after=after["load_1_minute"],
            steal_seconds=after["steal_seconds"] - before["steal_seconds"],
            busy_seconds=after["busy_seconds"] - before["busy_seconds"],
            frequency_mhz=after.get("frequency_mhz"),
            events_dropped=dropped,
        )


def fixed_checks(
    work: Work, ranks: Ranks, record: Record, state: MasterState
) -> tuple[Check, ...]:
    """Return the checks of the contract that every trial must pass."""
    plan = work.plan
    expected_rows = [len(partition.features) * plan.epochs for partition in work.partitions]
    rows = record.rows.sum(axis=0).tolist()
    own = [fingerprint(part.features, part.targets) for part in work.partitions]
    told = [ready["partition"] for ready in ranks.ready]
    plans = {ready["plan_id"] for ready in ranks.ready}
    proofs = [ready["proof"] for ready in ranks.ready]
    traces = [report["trace_count"] for report in ranks.closing]
    parts = (work.split.train, work.split.validation, work.split.test)
    total = sum(map(len, parts))
    distinct = len(np.unique(np.concatenate(parts)))
    finite = bool(np.isfinite(state.parameters).all() and np.isfinite(record.loss).all())
    native = all(proof["produced_on"] == [proof["requested"]] for proof in map(_listed, proofs))
    return (
        _check("updates", record.updates == plan.update_count, record.updates, plan.update_count),
        _check("rows of each rank", rows == expected_rows, rows, expected_rows),
        Check(name="partitions", passed=own == told, detail="ranks hash the rows that were planned"),
        Check(name="plan", passed=plans == {plan.plan_id}, detail="ranks derive the coordinator's plan"),
        _check("disjoint splits", distinct == total, distinct, total),
        _check("validations", len(record.validation) == plan.epochs, len(record.validation), plan.epochs),
        Check(
            name="native gradients",
            passed=native,
            detail="; ".join(f"{proof['requested']}: {_listed(proof)['produced_on']}" for proof in proofs),
        ),
        _check("traces of each rank", set(traces) == {1}, traces, [1] * len(traces)),
        Check(name="finite", passed=finite, detail="losses and final parameters"),
    )


def _listed(proof: Mapping[str, Any]) -> dict[str, Any]:
    return {**proof, "produced_on": list(proof["produced_on"])}


def _check(name: str, passed: bool, found: object, expected: object) -> Check:
    return Check(name=name, passed=passed, detail=f"{found} of {expected}")


def summarise_phases(
    columns: NDArray[np.int64], names: Sequence[str]
) -> dict[str, PhaseSummary]:
    """Return the median (leaving out the first update, if there are more) and the sum of each column."""
    steady = columns[1:] if len(columns) > 1 else columns
    return {
        name: PhaseSummary(
            median_ns=int(np.median(steady[:, index])) if len(steady) else 0,
            total_ns=int(columns[:, index].sum()),
        )
        for index, name in enumerate(names)
    }


def _setups(work: Work) -> list[RankSetup]:
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
            )
        )
    return setups


def staging(case: Case, partition: Partition) -> str:
    """Return how a partition reaches its device: as declared, or by size where that is ``auto``."""
    if case.staging != "auto":
        return case.staging
    small = partition.features.nbytes + partition.targets.nbytes <= RESIDENT_BUDGET_BYTES
    return "resident" if small else "streamed"


def _rank_record(work: Work, ranks: Ranks, record: Record, rank: int) -> RankRecord:
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
        fresh_process=ranks.fresh[rank],
        staging=staging(work.case, partition),
        proof=ProofRecord(**{**proof, "produced_on": tuple(proof["produced_on"])}),
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
        phases=summarise_phases(record.ranks_ns[:, rank], CHANNEL_PHASES),
    )


def _status(error: AnerError | None) -> Status:
    if error is None:
        return "passed"
    if isinstance(error, BackendUnavailable):
        return "not_run"
    return "cancelled" if isinstance(error, Cancelled) else "failed"


_PUBLIC_KINDS: Final = ("backend_unavailable", "deadline_exceeded", "contract_broken", "cancelled")


def _failure(error: AnerError | None) -> FailureRecord | None:
    """Return the failure; its public reason repeats only sentences that we wrote ourselves."""
    if error is None:
        return None
    ours = error.kind in _PUBLIC_KINDS
    reason = error.what if ours else f"{error.kind.replace('_', ' ')}: {error.where}".rstrip(": ")
    return FailureRecord(**error.to_record(), reason=reason)


def _ended(trial: Trial) -> TrialEnded:
    receipt = trial.receipt
    return TrialEnded(
        receipt.case_name,
        receipt.role,
        receipt.repetition,
        receipt.status,
        str(trial.error or ""),
        receipt.clocks.native_fit_ns if receipt.clocks else None,
        receipt.test.accuracy if receipt.test else None,
    )


def iterate_steps(record: Record) -> Iterator[dict[str, float]]:
    """Yield one row an update, with every phase of every rank in nanoseconds, as a table's rows."""
    for index in range(record.updates):
        row: dict[str, float] = {"update": index, "loss": float(record.loss[index])}
        for column, name in enumerate(COORDINATOR_PHASES):
            row[f"coordinator_{name}_ns"] = int(record.coordinator_ns[index, column])
        for rank in range(record.rows.shape[1]):
            row[f"rank{rank}_rows"] = int(record.rows[index, rank])
            for column, name in enumerate(CHANNEL_PHASES):
                row[f"rank{rank}_{name}_ns"] = int(record.ranks_ns[index, rank, column])
        yield row


