"""Ranks that are connected and ready, however they came to be, and ranks in this very process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from aner_nb.backends.base import GradientSum, Partition
from aner_nb.case import Placement
from aner_nb.channels.base import AbstractChainedChannel, AbstractChannel
from aner_nb.channels.inline import Compute, InlineChannel
from aner_nb.channels.shared_memory import aligned_wire
from aner_nb.collectives.base import AbstractCollective
from aner_nb.collectives.chain import ChainCollective
from aner_nb.collectives.star import StarCollective
from aner_nb.host import HostedRank, RankSetup


@dataclass(frozen=True, slots=True)
class Offer:
    """A placement that a worker offers."""

    placement: Placement
    """With its platform's opaque name."""
    worker: str
    """Dask's name of the worker; private."""
    configuration_id: str
    """Of the machine's hardware and software."""
    tensorflow: str
    """Version; empty: not installed."""


@dataclass(slots=True)
class Ranks:
    """Ranks that are connected and ready, in rank order."""

    wire: Any
    """(parameters,) in the case's dtype: the vector that every channel sends."""
    channels: tuple[AbstractChannel, ...]
    offers: tuple[Offer | None, ...]
    """Where each rank runs; None for inline ranks."""
    ready: tuple[dict[str, Any], ...]
    """What each rank reported before the first update."""
    check: Callable[[], None]
    """Raises if a rank's task or worker is gone; cheap."""
    chained: tuple[AbstractChainedChannel, ...] = ()
    """The channels, if the ranks are linked to their neighbours."""
    closing: tuple[dict[str, Any], ...] = ()
    """What each rank reported at the end; empty until `close`."""

    def collective(self, deadline_seconds: float, check: Callable[[], None]) -> AbstractCollective:
        """Return the exchange of updates that fits how the ranks are connected."""
        if self.chained:
            return ChainCollective(self.wire, self.chained, deadline_seconds=deadline_seconds, check=check)
        return StarCollective(self.wire, self.channels, deadline_seconds=deadline_seconds, check=check)

    def close(self) -> None:
        """End the run in order and keep the closing reports."""
        self.closing = tuple(dict(channel.close()) for channel in self.channels)


class RankHost(Protocol):
    """What opens ranks; `aner_nb.cluster.Cluster` does."""

    def open_ranks(
        self,
        setups: Sequence[RankSetup],
        partitions: Sequence[Partition],
        *,
        channel: str,
        stop: Callable[[], None],
    ) -> AbstractContextManager[Ranks]:
        """See `aner_nb.cluster.Cluster.open_ranks`."""
        ...

    def available(self, placements: Sequence[Placement]) -> tuple[int, ...]:
        """See `aner_nb.cluster.Cluster.available`."""
        ...


def open_inline_ranks(setups: Sequence[RankSetup], partitions: Sequence[Partition]) -> Ranks:
    """Open ranks in this process, without a cluster: they compute one after the other."""
    first = setups[0]
    wire = aligned_wire(first.model.layout.size, first.dtype)
    hosted = [
        HostedRank(setup, partition, receive_ns=0)
        for setup, partition in zip(setups, partitions, strict=True)
    ]
    channels = tuple(
        InlineChannel(setup.rank, wire, _inline_compute(rank), rank.close)
        for setup, rank in zip(setups, hosted, strict=True)
    )
    return Ranks(
        wire,
        channels,
        offers=(None,) * len(setups),
        ready=tuple(rank.ready for rank in hosted),
        check=lambda: None,
    )


def _inline_compute(
    hosted: HostedRank,
) -> Compute:
    def compute(
        update: int,
        block: tuple[int, int],
        parameters: NDArray[np.floating],
        out: NDArray[np.float64],
    ) -> GradientSum:
        part = hosted.gradient(parameters, block, out, update)
        hosted.replied(update)
        return part

    return compute
