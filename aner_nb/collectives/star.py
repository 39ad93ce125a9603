"""The star: every rank talks to the coordinator, which adds their sums in rank order."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from aner_nb.backends.base import GradientSum
from aner_nb.channels.base import AbstractChannel, wait_any
from aner_nb.collectives.base import AbstractCollective, Exchange
from aner_nb.errors import ContractBroken, DeadlineExceeded
from aner_nb.plan import Update

_WAIT_SECONDS = 0.2


class StarCollective(AbstractCollective):
    """Waits for any rank, adds in rank order.

    The sum is 0 + 1 + 2 + … whatever the order of arrival: a sum is added once all sums before it are there, so
    that adding overlaps with waiting.

    Parameters
    ----------
    wire : (parameters,) in the case's dtype
    channels
        In rank order.
    deadline_seconds
        Longest time without any rank's reply before the update is given up.
    check : callable
        Called while waiting, a few times a second; raises to end the run.
    """

    reduction = "star, rank order"

    def __init__(
        self,
        wire: NDArray[np.floating],
        channels: Sequence[AbstractChannel],
        *,
        deadline_seconds: float,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.wire = wire
        self._channels = tuple(channels)
        self._deadline = deadline_seconds
        self._check = check
        self._total = np.empty(wire.size) if len(channels) > 1 else None

    @property
    def rank_count(self) -> int:
        """Ranks that take part."""
        return len(self._channels)

    def exchange(self, update: Update) -> Exchange:
        """See the base class."""
        count = len(self._channels)
        clock = time.perf_counter_ns
        posted = [clock()]
        for channel in self._channels:
            channel.post(update.index)
            posted.append(clock())
        parts: list[GradientSum | None] = [None] * count
        wait_ns = [0] * count
        added = reduce_ns = 0
        pending = list(self._channels)
        latest = time.monotonic()
        while pending:
            still: list[AbstractChannel] = []
            for channel in pending:
                part = channel.poll()
                if part is None:
                    still.append(channel)
                    continue
                self._check_rows(update, channel.rank, part)
                parts[channel.rank] = part
                wait_ns[channel.rank] = clock() - posted[channel.rank + 1]
                latest = time.monotonic()
            pending = still
            began = clock()
            added = self._add(parts, added)
            reduce_ns = clock() - began
            if pending:
                self._wait(pending, update, latest)
        complete = tuple(part for part in parts if part is not None)
        return Exchange(
            rows=sum(part.rows for part in complete),
            loss_sum=sum(part.loss_sum for part in complete),
            gradient=complete[0].gradient if self._total is None else self._total,
            parts=complete,
            write_ns=tuple(after - before for before, after in zip(posted, posted[1:], strict=False)),
            wait_ns=tuple(wait_ns),
            reduce_ns=reduce_ns,
        )

    def _add(self, parts: Sequence[GradientSum | None], added: int) -> int:
        """Add the sums that are next in rank order and there; return how many are added by now."""
        if self._total is None:
            return len(parts)
        while added < len(parts):
            part = parts[added]
            if part is None or (added == 0 and parts[1] is None):
                break
            if added == 0:
                # The first two in one pass: no copy of the first into the total.
                np.add(part.gradient, _there(parts[1]).gradient, out=self._total)
                added = 2
            else:
                self._total += part.gradient
                added += 1
        return added

    def _check_rows(self, update: Update, rank: int, part: GradientSum) -> None:
        start, stop = update.shards[rank]
        if part.rows != stop - start:
            raise ContractBroken(
                f"the rank answered for {part.rows} rows in update {update.index}, its shard has "
                f"{stop - start}.",
                where=f"rank {rank}",
            )

    def _wait(self, pending: Sequence[AbstractChannel], update: Update, latest: float) -> None:
        wait_any(pending, _WAIT_SECONDS)
        self._check()
        if time.monotonic() - latest > self._deadline:
            ranks = ", ".join(str(channel.rank) for channel in pending)
            raise DeadlineExceeded(
                f"no reply in update {update.index} for {self._deadline:g} s.",
                where=f"rank {ranks}",
                remedy="The process is alive but stuck, or the deadline is too short for this work: "
                "give deadline_seconds a larger value.",
            )


def _there(part: GradientSum | None) -> GradientSum:
    assert part is not None
    return part
