"""One trial from source to receipt: the stages, the two clocks and the fixed checks."""

from __future__ import annotations

import contextlib
import datetime
import gc
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aner_nb import machine
from aner_nb.balance import weights_for
from aner_nb.calibration import calibrate
from aner_nb.case import Case
from aner_nb.checks import fixed_checks
from aner_nb.collectives.base import AbstractCollective
from aner_nb.coordinator import COORDINATOR_PHASES, Record, make_record, train
from aner_nb.data import Rows
from aner_nb.durability import NOT_DURABLE, Durability
from aner_nb.errors import AnerError, Cancelled, CaseError, ContractBroken, DeadlineExceeded, RankLost, let_go
from aner_nb.events import Emitter, Event, StageEntered, Subscriber, TrialEnded, TrialStarted
from aner_nb.master import MasterState
from aner_nb.network import Evaluation, evaluate, evaluators
from aner_nb.plan import TAIL_RULE, Update
from aner_nb.ranks import RankHost, Ranks, open_inline_ranks
from aner_nb.receipts import (
    Check,
    Clocks,
    Fingerprints,
    RankCostRecord,
    RestartRecord,
    Role,
    TrialReceipt,
)
from aner_nb.recording import (
    cost_records,
    count_record,
    epoch_records,
    evaluation_record,
    failure_of,
    noise_record,
    private_facts,
    rank_record,
    status_of,
    stopping_record,
    summarise_phases,
)
from aner_nb.sources import fingerprint
from aner_nb.stopping import StopWatch
from aner_nb.trial import Trial
from aner_nb.work import Work, make_setups, make_work, shaping_of, with_ranks

DEADLINE_SECONDS: Final = 60.0
MAX_RESTARTS: Final = 10

Wrap = Callable[[AbstractCollective, Work], AbstractCollective]


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
    durability: Durability = NOT_DURABLE,
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
    durability
        Checkpoints, and what happens when a rank is lost.

    Returns
    -------
    Trial
        Also when it failed, was cancelled (Ctrl-C included) or could not run: the receipt says so.

    Raises
    ------
    CaseError
        If the case is wrong; nothing was started.
    """
    gc.collect()  # what the trial before left behind is not this one's memory, nor its pause
    trial = _TrialRun(case, role, repetition, round_number, position, stop, durability)
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
        durability: Durability,
    ) -> None:
        self._case = case
        self._durability = durability
        self._restarts: list[RestartRecord] = []
        self._calibration: tuple[RankCostRecord, ...] = ()
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
        self._watch = StopWatch(case.stop_early)
        self._state: MasterState | None = None
        self._initial = ""
        self._test: Evaluation | None = None
        self._reduction = ""
        self._complete_ns = 0
        self._evaluators: Executor | None = None
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
            with evaluators() as self._evaluators:
                self._stages(cluster, deadline_seconds, wrap)
        except CaseError:
            raise
        except AnerError as caught:
            error = let_go(caught)
        except KeyboardInterrupt:
            error = Cancelled("interrupted from the keyboard.")
        self._complete_ns = time.perf_counter_ns() - self._began
        return error

    def _stages(self, cluster: RankHost | None, deadline_seconds: float, wrap: Wrap | None) -> None:
        initial = self._work.model.initial(self._case.seed)
        self._initial = fingerprint(initial)
        self._state = MasterState(initial, self._case.optimizer, shaping_of(self._work))
        self._record = make_record(
            self._work.plan, self._durability.restore(self._work, self._state, self._watch)
        )
        self._durations |= {"placement_ns": 0, "calibration_ns": 0}
        if self._case.balance == "auto" and self._case.is_group and cluster is not None:
            self._balance(cluster)
        with contextlib.closing(self._state):
            while True:
                try:
                    self._segment(cluster, deadline_seconds, wrap)
                    return
                except (RankLost, DeadlineExceeded) as loss:
                    self._replan(loss, cluster)

    def _balance(self, cluster: RankHost) -> None:
        """Measure the ranks and let each have the share that makes the slowest as quick as can be."""
        self.emit(StageEntered("calibrating"))
        began = time.perf_counter_ns()
        measured = calibrate(self._work.case, cluster, stop=self._check_stop)
        self._calibration = cost_records(measured)
        shares = [record.share for record in self._calibration]
        kept = [rank for rank, share in enumerate(shares) if share]
        weights = weights_for([shares[rank] for rank in kept])
        placements = [self._case.placements[rank] for rank in kept]
        self._work = with_ranks(self._work, list(zip(placements, weights, strict=True)))
        self._durations["calibration_ns"] = time.perf_counter_ns() - began

    def _segment(self, cluster: RankHost | None, deadline_seconds: float, wrap: Wrap | None) -> None:
        """Place ranks, go on with the training, test: to the end, or to the next loss of a rank."""
        self.emit(StageEntered("placing ranks"))
        placing = time.perf_counter_ns()
        with self._open(cluster) as ranks:
            self._ranks = ranks
            self._durations["placement_ns"] += time.perf_counter_ns() - placing
            self.emit(StageEntered("training"))
            self._train(ranks, deadline_seconds, wrap)
            self.emit(StageEntered("testing"))
            testing = time.perf_counter_ns()
            assert self._state is not None
            self._watch.restore_best(self._state.parameters)
            self._test = self._evaluate(self._state.parameters, self._work.data.test)
            closing = time.perf_counter_ns()
            self._durations["test_ns"] = closing - testing
            ranks.close()
        self._durations["shutdown_ns"] = time.perf_counter_ns() - closing

    def _replan(self, loss: AnerError, cluster: RankHost | None) -> None:
        """Choose the ranks that go on after a loss, or raise it."""
        allowed = self._durability.on_loss == "restart" and len(self._restarts) < MAX_RESTARTS
        if cluster is None or self._record is None or not allowed:
            raise loss
        left = cluster.available(self._work.case.placements)
        if not left:
            raise loss
        if len(left) < len(self._work.case.placements):
            pairs = list(zip(self._work.case.placements, self._work.case.weights, strict=True))
            self._work = with_ranks(self._work, [pairs[rank] for rank in left])
        placements = tuple(str(placement) for placement in self._work.case.placements)
        self._restarts.append(
            RestartRecord(update=self._record.updates, kind=loss.kind, placements=placements)
        )

    def _open(self, cluster: RankHost | None) -> contextlib.AbstractContextManager[Ranks]:
        setups = make_setups(self._work)
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
        work, state, record = self._work, self._state, self._record
        assert state is not None and record is not None

        def check() -> None:
            ranks.check()
            self._check_stop()

        collective = ranks.collective(deadline_seconds, check)
        self._reduction = collective.reduction
        if wrap is not None:
            collective = wrap(collective, work)

        def evaluate_epoch(parameters: NDArray[np.float64]) -> Evaluation:
            check()
            evaluation = self._evaluate(parameters, work.data.validation)
            self._watch.validated(evaluation.loss, parameters)
            return evaluation

        def applied(update: Update) -> None:
            self._durability.applied(work, update, state, self._watch)

        over = self._watch.over
        train(work.plan, state, collective, evaluate_epoch, self.emit, record, applied, over)

    def _evaluate(self, parameters: NDArray[np.float64], rows: Rows) -> Evaluation:
        return evaluate(self._work.model, parameters, rows.features, rows.targets, pool=self._evaluators)

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
            checks = fixed_checks(self._work, ranks, self._record, self._state, self._watch)
            broken = [check for check in checks if not check.passed]
            if broken:
                error = ContractBroken(f"{broken[0].name}: {broken[0].detail}.")
        receipt = TrialReceipt(
            case=self._case.to_record(),
            case_name=self._case.name,
            contract_id=self._case.contract_id,
            work_id=self._case.work_id,
            status=status_of(error),
            failure=failure_of(error),
            software=machine.package_versions(),
            resumed_from=self._record.first if self._record else 0,
            calibration=self._calibration,
            restarts=tuple(self._restarts),
            reduction=self._reduction,
            tail_rule=TAIL_RULE,
            counts=count_record(self._work, self._record),
            noise=noise_record(self._noise, dropped),
            checks=checks,
            coordinator_rss_high_water_bytes=machine.rss_high_water_bytes(),
            **private_facts(self._case),
            **self._labels,
            **(self._outcome() if finished else {}),
            **(self._observed() if self._record is not None else {}),
        )
        kept = self._state.parameters if finished and self._state is not None else None
        return Trial(receipt, self._record, kept, self._work, error)

    def _observed(self) -> dict[str, Any]:
        """Return what is known as soon as training has begun."""
        record = self._record
        assert record is not None
        return {
            "validation": epoch_records(record, self._work.plan.batch_count),
            "coordinator_phases": summarise_phases(
                record.coordinator_ns[record.first : record.updates], COORDINATOR_PHASES
            ),
        }

    def _outcome(self) -> dict[str, Any]:
        """Return what only a finished trial has."""
        ranks, record, state, test = self._ranks, self._record, self._state, self._test
        assert ranks and record and state and test
        rank_records = tuple(
            rank_record(self._work, ranks, record, rank) for rank in range(len(ranks.channels))
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
            "stopping": stopping_record(self._watch, self._work.plan.epochs),
            "test": evaluation_record(test),
            "ranks": rank_records,
            "largest_rank": int(np.argmax(sizes)),
        }


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
        receipt.stopping.epochs if receipt.stopping and receipt.stopping.stopped else None,
    )
