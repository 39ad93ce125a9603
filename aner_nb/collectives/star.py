"""The star: every rank talks to the coordinator, where the sums are added in rank order."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from aner_nb.backends.base import GradientSum
from aner_nb.channels.base import AbstractChannel, wait_any
from aner_nb.collectives.base import AbstractCollective, Exchange, check_rows
from aner_nb.errors import DeadlineExceeded
from aner_nb.plan import Update

_WAIT_SECONDS = 0.2


class StarCollective(AbstractCollective):
    """Posts to every rank, then waits for any: a lost rank is noticed whichever it is.

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
            channel.post(update.index, update.shards[channel.rank])
            posted.append(clock())
        parts: list[GradientSum | None] = [None] * count
        wait_ns = [0] * count
        pending = list(self._channels)
        latest = time.monotonic()
        while pending:
            still: list[AbstractChannel] = []
            for channel in pending:
                part = channel.poll()
                if part is None:
                    still.append(channel)
                    continue
                check_rows(update, channel.rank, part)
                parts[channel.rank] = part
                wait_ns[channel.rank] = clock() - posted[channel.rank + 1]
                latest = time.monotonic()
            pending = still
            if pending:
                self._wait(pending, update, latest)
        complete = tuple(part for part in parts if part is not None)
        return Exchange(
            rows=sum(part.rows for part in complete),
            loss_sum=sum(part.loss_sum for part in complete),
            parts=complete,
            write_ns=tuple(after - before for before, after in itertools.pairwise(posted)),
            wait_ns=tuple(wait_ns),
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
