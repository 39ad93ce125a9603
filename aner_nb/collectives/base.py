"""The seam between the update loop and the ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from aner_nb.backends.base import GradientSum
from aner_nb.errors import ContractBroken
from aner_nb.plan import Update


@dataclass(frozen=True, slots=True)
class Exchange:
    """What came of one update's request: every rank's sum, not yet added up."""

    rows: int
    loss_sum: float
    parts: tuple[GradientSum, ...]
    """Each rank's answer, in rank order; its sum is a view that is valid until the next exchange."""
    write_ns: tuple[int, ...]
    """Per rank, the time to write the request."""
    wait_ns: tuple[int, ...]
    """Per rank, from the request written to the reply read."""
    total: NDArray[np.float64] | None = None
    """The sum, where the ranks added it up themselves in the same order; then the parts' own are empty."""

    def sum_into(self, block: slice, out: NDArray[np.float64]) -> None:
        """Write the sum of the ranks' gradients over a block of the parameters into `out`.

        Always ``((0 + 1) + 2) + …`` in rank order, whatever the order of arrival and however the parameters are
        cut into blocks: the result is the same to the bit.
        """
        if self.total is not None:
            np.copyto(out, self.total[block])
            return
        first, *rest = self.parts
        if not rest:
            np.copyto(out, first.gradient[block])
            return
        np.add(first.gradient[block], rest[0].gradient[block], out=out)
        for part in rest[1:]:
            out += part.gradient[block]


class AbstractCollective(ABC):
    """Broadcasts parameters to all ranks and brings back their gradient sums."""

    reduction: ClassVar[str]
    """Topology and order of summation, for the receipt."""
    wire: NDArray[np.floating]
    """(parameters,) in the case's dtype: the coordinator writes the parameters here before each exchange."""

    @property
    @abstractmethod
    def rank_count(self) -> int:
        """Ranks that take part."""

    @abstractmethod
    def exchange(self, update: Update) -> Exchange:
        """Let every rank compute its shard at the parameters in `wire`; return their sums.

        Raises
        ------
        RankLost, RankFailed, DeadlineExceeded
            If a rank's answer does not come.
        ContractBroken
            If the rows answered for are not the update's rows.
        """


def check_rows(update: Update, rank: int, part: GradientSum) -> None:
    """Raise `ContractBroken` if a rank answered for other rows than its shard's."""
    start, stop = update.shards[rank]
    if part.rows != stop - start:
        raise ContractBroken(
            f"the rank answered for {part.rows} rows in update {update.index}, its shard has {stop - start}.",
            where=f"rank {rank}",
        )
