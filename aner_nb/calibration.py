"""Measuring what a case costs on each placement: a few seconds on the case's own rows and model."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from aner_nb.backends.base import GradientSum, Partition
from aner_nb.balance import CoordinatorCost, RankCost, fit_cost, fit_together
from aner_nb.case import Case
from aner_nb.channels.base import AbstractChannel, wait_any
from aner_nb.collectives.base import Exchange
from aner_nb.counter import words
from aner_nb.errors import DeadlineExceeded
from aner_nb.file_rows import PlacedRows
from aner_nb.host import RankSetup
from aner_nb.master import MasterState
from aner_nb.network import evaluate, evaluators
from aner_nb.ranks import RankHost, Ranks
from aner_nb.work import Work, make_setups, make_work, shaping_of

_DIVISORS: Final = (1, 2, 4)
"""Shares of the batch that are timed."""

_SECONDS: Final = 0.35
"""Time given to each share, at least `_REPEATS` requests."""

_REPEATS: Final = 5
_VALIDATIONS: Final = 3
_DEADLINE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was measured."""

    placements: tuple[str, ...]
    alone: tuple[RankCost, ...]
    """Of each rank while the others idle: what it needs standalone."""
    together: tuple[RankCost, ...]
    """Of each rank while all compute: memory, caches and cores are shared."""
    coordinator: CoordinatorCost
    rows: int
    """Rows of the case's batch."""
    parameters: int
    updates: int
    """Of the whole training."""
    epochs: int
    validation_s: float
    """What the coordinator needs for one validation."""
    seconds: float
    """What the calibration itself took, without starting the ranks."""

    @property
    def least_rows(self) -> int:
        """Rows of the smallest batch that was measured: below it nothing is known."""
        return max(1, self.rows // max(_DIVISORS))


def calibrate(case: Case, host: RankHost, *, stop: Callable[[], None] = lambda: None) -> Calibration:
    """Measure a case's ranks, each alone and all together, at several shares of its batch.

    Every rank gets the same rows, one global batch. Nothing is trained.

    Raises
    ------
    AnerError
        If the ranks cannot be hosted.
    """
    work, _ = make_work(case)
    rows = work.plan.batch
    partition = _batch(work)
    setups = [_setup(setup, partition) for setup in make_setups(work)]
    with host.open_ranks(setups, [partition] * len(setups), channel=case.channel, stop=stop) as ranks:
        began = time.perf_counter()
        result = _measure(work, ranks, rows)
        ranks.close()
    return dataclasses.replace(result, seconds=time.perf_counter() - began)


def _batch(work: Work) -> Partition:
    """Return rows of one global batch; made-up ones where the case's own do not come to this process."""
    train = work.data.train
    chosen = work.plan.order()[: work.plan.batch]
    features = cast("object", train.features)
    if isinstance(features, PlacedRows):
        drawn = words(work.case.seed, "rows of a calibration", len(chosen) * features.shape[1])
        # Of mean 0 and deviation 1, as normalized rows are.
        uniform = (drawn >> np.uint64(11)) * (2.0**-53 * 12**0.5) - 3**0.5
        return Partition(uniform.reshape(len(chosen), -1).astype(features.dtype), train.targets[chosen])
    return Partition(train.features[chosen], train.targets[chosen])


def _setup(setup: RankSetup, partition: Partition) -> RankSetup:
    blocks = {(0, share) for share in _shares(setup.plan.batch, setup.rank_count)}
    return dataclasses.replace(
        setup, rows=len(partition.features), blocks=tuple(sorted(blocks)), files=None, placed=""
    )


def _shares(rows: int, rank_count: int) -> list[int]:
    every = {max(1, rows // divisor) for divisor in _DIVISORS}
    every |= {max(1, rows // (divisor * rank_count)) for divisor in _DIVISORS}
    return sorted(every)


def _measure(work: Work, ranks: Ranks, rows: int) -> Calibration:
    count = len(ranks.channels)
    with closing(
        MasterState(work.model.initial(work.case.seed), work.case.optimizer, shaping_of(work))
    ) as state:
        state.write_to(ranks.wire)
        alone = tuple(
            fit_cost(
                [
                    sample
                    for share in {max(1, rows // divisor) for divisor in _DIVISORS}
                    for sample in _time_share(ranks, [channel], share)
                ]
            )
            for channel in ranks.channels
        )
        together = alone
        if count > 1:
            samples: list[list[tuple[int, float]]] = [[] for _ in ranks.channels]
            for share in {max(1, rows // (divisor * count)) for divisor in _DIVISORS}:
                for index, sample in enumerate(_time_together(ranks, share)):
                    samples[index] += sample
            together = tuple(fit_together(cost, own) for cost, own in zip(alone, samples, strict=True))
        coordinator = CoordinatorCost(
            _time_apply(state, ranks, 1),
            max(0.0, _time_apply(state, ranks, count) - _time_apply(state, ranks, 1)),
        )
        validation_s = _time_validation(work, state.parameters)
    offers = [offer.placement if offer is not None else None for offer in ranks.offers]
    placements = tuple(str(offer or own) for offer, own in zip(offers, work.case.placements, strict=True))
    return Calibration(
        placements=placements,
        alone=alone,
        together=together,
        coordinator=coordinator,
        rows=rows,
        parameters=work.model.layout.size,
        updates=work.plan.update_count,
        epochs=work.plan.epochs,
        validation_s=validation_s,
        seconds=0.0,
    )


def _requests() -> Iterator[int]:
    """Yield numbers of requests for about `_SECONDS`, at least `_REPEATS`, after one that is not counted."""
    yield -1
    began = time.perf_counter()
    number = 0
    while number < _REPEATS or time.perf_counter() - began < _SECONDS:
        yield number
        number += 1


def _time_share(ranks: Ranks, channels: Sequence[AbstractChannel], share: int) -> list[tuple[int, float]]:
    """Return (rows, seconds): the median from a request's writing to its reply's arrival."""
    spent: list[float] = []
    for number in _requests():
        began = time.perf_counter()
        _ask(ranks, channels, share)
        if number >= 0:
            spent.append(time.perf_counter() - began)
    return [(share, float(np.median(spent)))]


def _time_together(ranks: Ranks, share: int) -> list[list[tuple[int, float]]]:
    """Return each rank's (rows, seconds), all computing at once."""
    spent: list[list[float]] = [[] for _ in ranks.channels]
    for number in _requests():
        times = _ask(ranks, ranks.channels, share)
        if number >= 0:
            for own, seconds in zip(spent, times, strict=True):
                own.append(seconds)
    return [[(share, float(np.median(own)))] for own in spent]


def _ask(ranks: Ranks, channels: Sequence[AbstractChannel], share: int) -> list[float]:
    """Ask some ranks for a share at once; return the seconds until each reply."""
    began = time.perf_counter()
    for channel in channels:
        channel.post(0, (0, share))
    arrived: dict[int, float] = {}
    while len(arrived) < len(channels):
        for channel in channels:
            if channel.rank not in arrived and channel.poll() is not None:
                arrived[channel.rank] = time.perf_counter() - began
        waiting = [channel for channel in channels if channel.rank not in arrived]
        if waiting:
            wait_any(waiting, 0.2)
            ranks.check()
            if time.perf_counter() - began > _DEADLINE_SECONDS:
                raise DeadlineExceeded("no reply in the calibration.", where=f"rank {waiting[0].rank}")
    return [arrived[channel.rank] for channel in channels]


def _time_apply(state: MasterState, ranks: Ranks, count: int) -> float:
    """Return the seconds of the coordinator's pass over the parameters with so many sums."""
    zeros = np.zeros((count, state.parameters.size))
    parts = tuple(GradientSum(1, 0.0, gradient, ()) for gradient in zeros)
    exchange = Exchange(count, 0.0, parts, (), ())
    spent: list[float] = []
    for _ in range(2 * _REPEATS):
        began = time.perf_counter()
        state.apply(exchange, ranks.wire)
        spent.append(time.perf_counter() - began)
    return float(np.median(spent[1:]))


def _time_validation(work: Work, parameters: NDArray[np.float64]) -> float:
    """Return the seconds of one validation by the coordinator, as a trial does it."""
    spent: list[float] = []
    with evaluators() as pool:
        for _ in range(_VALIDATIONS):
            began = time.perf_counter()
            rows = work.data.validation
            evaluate(work.model, parameters, rows.features, rows.targets, pool=pool)
            spent.append(time.perf_counter() - began)
    return float(np.median(spent))
