"""The seam between the two loops: a channel's two ends, and waiting for any of several channels."""

from __future__ import annotations

import select
from abc import ABC, abstractmethod
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from aner_nb.backends.base import GradientSum


class AbstractChannel(ABC):
    """The coordinator's end of the way to one rank."""

    kind: str
    """For the receipt: ``inline``, ``shared_memory`` or ``socket``."""
    encryption: str
    """For the receipt: what protects the bytes on their way."""
    rank: int
    payload_bytes: int
    """Bytes that one update moves through the rank's sockets, both ways, headers included."""

    @abstractmethod
    def post(self, update: int, block: tuple[int, int]) -> None:
        """Ask the rank for its gradient sum over a block of its rows, at the parameters in the wire vector.

        The wire vector is the buffer that the channel was opened with; it must not change before the
        reply has arrived.
        """

    @abstractmethod
    def poll(self) -> GradientSum | None:
        """Return the reply if all of it has arrived, else None; never waits.

        Only after it has returned None does `fileno` tell of all further news.

        Raises
        ------
        RankLost
            If the connection is gone.
        RankFailed
            If the rank reported an error.
        LinkLost
            If the rank reported that a neighbour is gone.
        """

    @abstractmethod
    def fileno(self) -> int:
        """Return the descriptor that becomes readable when `poll` may have news; -1: always poll."""

    @abstractmethod
    def close(self) -> dict[str, object]:
        """End the run in order; return the rank's closing report."""

    @abstractmethod
    def abort(self) -> None:
        """End the run at once; never waits long, never raises."""


class AbstractChainedChannel(AbstractChannel):
    """The way to a rank that may be linked to its neighbours."""

    @abstractmethod
    def post_chained(self, update: int, block: tuple[int, int]) -> None:
        """Ask as `post` does, where the parameters come from the rank before, and the sum goes to the rank after.

        `poll` then returns the rank's answer with an empty gradient, and of the last rank after that the sum of all.
        """


class AbstractRankEnd(ABC):
    """The rank's end."""

    slot: NDArray[np.float64]
    """(parameters,): where the rank's gradient sum goes."""

    @abstractmethod
    def take(self) -> tuple[int, tuple[int, int], NDArray[np.floating]] | None:
        """Wait for the next request; return (update, block, parameters), or None at the end of the run.

        Raises
        ------
        RankLost
            If the coordinator is gone.
        """

    @abstractmethod
    def give(self, update: int, part: GradientSum) -> None:
        """Send the answer; its gradient lies in `slot`."""


def wait_any(channels: Iterable[AbstractChannel], timeout: float) -> None:
    """Wait until one of the channels may have news, at most `timeout` seconds."""
    poller = select.poll()
    for channel in channels:
        descriptor = channel.fileno()
        if descriptor < 0:
            return
        poller.register(descriptor, select.POLLIN)
    poller.poll(timeout * 1000)
