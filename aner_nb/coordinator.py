"""The update loop: the canonical state lives here, and every number of a trial's clock is taken here."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aner_nb.backends.base import RANK_PHASES
from aner_nb.collectives.base import AbstractCollective, Exchange
from aner_nb.errors import ContractBroken
from aner_nb.events import EpochValidated, Event, UpdateDone
from aner_nb.master import MasterState
from aner_nb.network import Evaluation
from aner_nb.plan import Plan, Update

COORDINATOR_PHASES: Final = ("exchange", "apply", "total")
"""``exchange``: first request written to last reply read. ``apply``: adding the sums in rank order, mean, optimizer,
and writing the new parameters to the wire, in one pass. ``total``: all."""

CHANNEL_PHASES: Final = ("request_write", "response_wait", *(f"rank_{name}" for name in RANK_PHASES))
"""Per rank: writing the request, waiting for the reply, and the rank's own phases."""


@dataclass(slots=True)
class Record:
    """What a run measured: preallocated columns, filled in place by number of update."""

    coordinator_ns: NDArray[np.int64]
    """(updates, `COORDINATOR_PHASES`)."""
    ranks_ns: NDArray[np.int64]
    """(updates, ranks, `CHANNEL_PHASES`)."""
    rows: NDArray[np.int64]
    """(updates, ranks): rows that each rank answered for."""
    loss: NDArray[np.float64]
    """(updates,): mean loss over the global batch before the step, with L2's part."""
    validation: list[EpochValidated] = field(default_factory=list)
    first: int = 0
    """Updates that a checkpoint had already; their columns stay zero."""
    updates: int = 0
    """Updates applied, those of the checkpoint included: the number of the next one."""
    end: int = 0
    """Updates after which the run is whole: the plan's, or fewer if it was stopped early."""
    native_fit_ns: int = 0
    validation_ns: int = 0


def make_record(plan: Plan, first: int = 0) -> Record:
    """Return empty columns for a plan that goes on at update `first`."""
    updates, ranks = plan.update_count, len(plan.weights)
    return Record(
        coordinator_ns=np.zeros((updates, len(COORDINATOR_PHASES)), np.int64),
        ranks_ns=np.zeros((updates, ranks, len(CHANNEL_PHASES)), np.int64),
        rows=np.zeros((updates, ranks), np.int64),
        loss=np.zeros(updates),
        first=first,
        updates=first,
        end=updates,
    )


def train(
    plan: Plan,
    state: MasterState,
    collective: AbstractCollective,
    evaluate: Callable[[NDArray[np.float64]], Evaluation],
    emit: Callable[[Event], None],
    record: Record,
    applied: Callable[[Update], None] = lambda _update: None,
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Run the plan from where the record stands: one optimizer step a batch, validation after each epoch.

    `state` is changed in place and `record` is filled as the run goes on: both hold what was reached if an error
    ends it, and a further call goes on from there. The native-fit clock runs from the first request to the last
    step and validation. `applied` is called after each update, and after its validation if it ends an epoch.
    `stopped` is asked at the beginning and after each validation: where it says so, the run is whole.

    Raises
    ------
    RankLost, RankFailed, DeadlineExceeded
        If a rank's answer does not come.
    ContractBroken
        If counts of rows or updates are not the plan's.
    """
    clock = time.perf_counter_ns
    began = clock() - record.native_fit_ns
    try:
        state.write_to(collective.wire)
        if stopped():
            _end_early(record)
        for update in plan.updates(record.updates):
            if record.updates == record.end:
                break
            started = clock()
            exchange = collective.exchange(update)
            exchanged = clock()
            _check_rows(update, exchange)
            penalty = state.apply(exchange, collective.wire)
            done = clock()
            loss = exchange.loss_sum / exchange.rows + penalty
            _note(record, update, exchange, loss, (exchanged - started, done - exchanged, done - started))
            emit(UpdateDone(update.index, loss, done - began))
            if update.ends_epoch:
                _validate(update, state, evaluate, emit, record, began)
                if stopped():
                    _end_early(record)
            applied(update)
    finally:
        record.native_fit_ns = clock() - began
    rows, planned = int(record.rows.sum()), plan.rows_from(record.first) - plan.rows_from(record.end)
    if record.updates != record.end or rows != planned:
        raise ContractBroken(
            f"{record.updates} updates over {rows} rows were run; the plan has {record.end} over {planned}."
        )


def _end_early(record: Record) -> None:
    """Make the updates that were run the whole run: no column has lines for updates that won't be."""
    record.end = record.updates
    for name in ("coordinator_ns", "ranks_ns", "rows", "loss"):
        setattr(record, name, getattr(record, name)[: record.end])


def _check_rows(update: Update, exchange: Exchange) -> None:
    if exchange.rows != update.rows:
        raise ContractBroken(
            f"update {update.index} summed {exchange.rows} rows; its batch has {update.rows}."
        )


def _note(record: Record, update: Update, exchange: Exchange, loss: float, phases: tuple[int, ...]) -> None:
    index = update.index
    record.coordinator_ns[index] = phases
    record.loss[index] = loss
    for rank, part in enumerate(exchange.parts):
        record.rows[index, rank] = part.rows
        record.ranks_ns[index, rank] = (exchange.write_ns[rank], exchange.wait_ns[rank], *part.phases_ns)
    record.updates += 1


def _validate(
    update: Update,
    state: MasterState,
    evaluate: Callable[[NDArray[np.float64]], Evaluation],
    emit: Callable[[Event], None],
    record: Record,
    began: int,
) -> None:
    before = time.perf_counter_ns()
    evaluation = evaluate(state.parameters)
    after = time.perf_counter_ns()
    event = EpochValidated(update.epoch, update.index + 1, after - began, after - before, evaluation)
    record.validation.append(event)
    record.validation_ns += after - before
    emit(event)
