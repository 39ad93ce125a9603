"""The seam between the update loop and the ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from aner_nb.backends.base import GradientSum
from aner_nb.plan import Update


@dataclass(frozen=True, slots=True)
class Exchange:
    """What came of one update's request."""

    rows: int
    loss_sum: float
    gradient: NDArray[np.float64]
    """(parameters,), summed over all rows; a view that the next exchange overwrites, free to be changed."""
    parts: tuple[GradientSum, ...]
    """Each rank's own sum, in rank order; views, valid until the next exchange."""
    write_ns: tuple[int, ...]
    """Per rank, the time to write the request."""
    wait_ns: tuple[int, ...]
    """Per rank, from the request written to the reply read."""
    reduce_ns: int
    """Time to add the sums, as far as it was not hidden behind waiting."""


class AbstractCollective(ABC):
    """Broadcasts parameters to all ranks and brings back the sum of their gradients."""

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
        """Let every rank compute its shard at the parameters in `wire`; return the sum.

        Raises
        ------
        RankLost, RankFailed, DeadlineExceeded
            If a rank's answer does not come.
        ContractBroken
            If the rows answered for are not the update's rows.
        """
