"""The chain: each rank adds its sum to that of the ranks before it and sends it on; the last one answers.

The coordinator's connection carries one vector of parameters and one of sums, however many the ranks. The order of
addition is that of the star, and so is the result, to the bit.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from aner_nb.backends.base import GradientSum
from aner_nb.channels.base import AbstractChainedChannel, wait_any
from aner_nb.collectives.base import AbstractCollective, Exchange, check_rows
from aner_nb.errors import AnerError, ContractBroken, DeadlineExceeded, LinkLost, RankLost
from aner_nb.plan import Update

_WAIT_SECONDS = 0.2
_BLAME_SECONDS = 3.0
"""How long the loss of a rank may take to show at the coordinator after a neighbour told of it."""


class ChainCollective(AbstractCollective):
    """Posts to every rank; parameters go to the first, rows and losses come from each, the sum from the last.

    Parameters
    ----------
    channels
        In rank order, of ranks that are linked to their neighbours.
    wire, deadline_seconds, check
        As for `StarCollective`.
    """

    reduction = "chain, rank order"

    def __init__(
        self,
        wire: NDArray[np.floating],
        channels: Sequence[AbstractChainedChannel],
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
        clock = time.perf_counter_ns
        posted = [clock()]
        # The first rank comes last: it passes its parameters on, and the others must be ready to take them.
        for channel in reversed(self._channels):
            channel.post_chained(update.index, update.shards[channel.rank])
            posted.append(clock())
        posted_at = posted[:0:-1]
        answers: dict[int, GradientSum] = {}
        wait_ns = [0] * len(self._channels)
        total: GradientSum | None = None
        latest = time.monotonic()
        while total is None or len(answers) < len(self._channels):
            for channel in self._channels:
                while (answer := self._poll(channel)) is not None:
                    latest = time.monotonic()
                    if channel.rank not in answers:
                        check_rows(update, channel.rank, answer)
                        answers[channel.rank] = answer
                        wait_ns[channel.rank] = clock() - posted_at[channel.rank]
                    else:
                        total = answer
            if total is None or len(answers) < len(self._channels):
                self._wait(update, answers, latest)
        if total.rows != update.rows:
            raise ContractBroken(
                f"the chain added up {total.rows} rows in update {update.index}, its batch has {update.rows}."
            )
        parts = tuple(answers[channel.rank] for channel in self._channels)
        return Exchange(
            rows=sum(part.rows for part in parts),
            loss_sum=sum(part.loss_sum for part in parts),
            parts=parts,
            write_ns=tuple(after - before for before, after in itertools.pairwise(posted))[::-1],
            wait_ns=tuple(wait_ns),
            total=total.gradient,
        )

    def _poll(self, channel: AbstractChainedChannel) -> GradientSum | None:
        try:
            return channel.poll()
        except LinkLost as told:
            raise self._culprit(channel.rank, told) from told

    def _culprit(self, rank: int, told: LinkLost) -> AnerError:
        """Return the loss behind what a rank told of its neighbour.

        Who loses a neighbour tells, and leaves its other neighbour, which tells in turn: following who blames whom
        leads to the rank that is gone, or to two ranks that blame each other.
        """
        blamed = [rank]
        until = time.monotonic() + _BLAME_SECONDS
        while time.monotonic() < until:
            suspect = _rank_of(told, len(self._channels))
            if suspect is None or suspect in blamed:
                break
            channel = self._channels[suspect]
            try:
                channel.poll()
            except LinkLost as other:
                blamed.append(suspect)
                told = other
                continue
            except AnerError as error:
                return error
            wait_any([channel], _WAIT_SECONDS)
            self._check()
        return RankLost(
            f"its link to {told.where} in the chain is gone, though both are there: {told.what}",
            where=f"rank {blamed[-1]}",
            remedy="The workers must reach each other: look at their network and firewalls.",
        )

    def _wait(self, update: Update, answers: dict[int, GradientSum], latest: float) -> None:
        wait_any(self._channels, _WAIT_SECONDS)
        self._check()
        if time.monotonic() - latest > self._deadline:
            missing = ", ".join(str(c.rank) for c in self._channels if c.rank not in answers)
            raise DeadlineExceeded(
                f"no reply in update {update.index} for {self._deadline:g} s."
                if missing
                else f"all ranks have answered, and their sum did not come through the chain in update "
                f"{update.index} for {self._deadline:g} s.",
                where=f"rank {missing}" if missing else "",
                remedy="A process is alive but stuck, or the deadline is too short for this work: "
                "give deadline_seconds a larger value.",
            )


def _rank_of(told: LinkLost, ranks: int) -> int | None:
    """Return the rank that is blamed; None: no rank of this run."""
    number = told.where.removeprefix("rank ")
    return int(number) if number.isascii() and number.isdigit() and int(number) < ranks else None
