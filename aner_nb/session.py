"""The ranks of one run, from their invitations to connected channels; who starts them is not known here."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from aner_nb.backends.base import Partition
from aner_nb.channels.base import AbstractChannel
from aner_nb.channels.frames import FrameError, Kind
from aner_nb.channels.shared_memory import Arena, make_arena, send_arena
from aner_nb.channels.socket import Arrival, Invitation, Listener
from aner_nb.channels.stream import FrameStream, StreamChannel
from aner_nb.errors import AnerError, ClusterError, DeadlineExceeded, RankLost
from aner_nb.host import RankSetup, bytes_of
from aner_nb.ranks import Offer, Ranks

READY_SECONDS: Final = 180.0
_LAST_WORDS_SECONDS: Final = 1.0


class Session:
    """Listens for ranks, hands them their set-up and rows, and joins them to channels.

    Parameters
    ----------
    channel : {"auto", "shared_memory", "socket"}
    host : str
        Address of ours that the ranks can reach over TCP.
    check : callable
        Called while waiting, several times a second; raises to give up.
    """

    def __init__(self, *, channel: str, host: str, check: Callable[[], None]) -> None:
        self.run_id = secrets.randbits(64)
        self._channel = channel
        self._check = check
        self._channels: dict[int, AbstractChannel] = {}
        self._arena: Arena | None = None
        self._listener = Listener(
            self.run_id,
            unix=channel != "socket",
            host="" if channel == "shared_memory" else host,
        )

    def invitation(self, rank: int) -> Invitation:
        """Return what a rank needs to connect."""
        return self._listener.invitation(rank)

    def gather(
        self,
        setups: Sequence[RankSetup],
        partitions: Sequence[Partition],
        offers: Sequence[Offer],
    ) -> Ranks:
        """Wait until every rank is connected, has its rows and has compiled.

        Raises
        ------
        RankLost, RankFailed, BackendUnavailable, ClusterError, DeadlineExceeded
        """
        first = setups[0]
        self._arena = make_arena(first.model.layout.size, first.dtype, len(setups))
        streams: dict[int, FrameStream] = {}
        deadline = time.monotonic() + READY_SECONDS
        while len(streams) < len(setups):
            self._check_deadline(deadline, set(range(len(setups))) - set(streams))
            arrival = self._listener.accept(0.1)
            if arrival is not None and arrival.rank < len(setups) and arrival.rank not in streams:
                rank = arrival.rank
                arrival.connection.settimeout(None)
                streams[rank] = FrameStream(arrival.connection, self.run_id)
                try:
                    self._welcome(arrival, streams[rank], setups[rank], partitions[rank])
                except OSError as error:
                    raise self._gone(rank, streams[rank], error) from error
        self._listener.close()
        ready = tuple(self._ready(rank, streams[rank], deadline) for rank in range(len(setups)))
        channels = tuple(self._channels[rank] for rank in range(len(setups)))
        return Ranks(self._arena.wire, channels, tuple(offers), ready, self._check)

    def _welcome(self, arrival: Arrival, stream: FrameStream, setup: RankSetup, partition: Partition) -> None:
        assert self._arena is not None
        if self._channel == "shared_memory" and not arrival.same_host:
            raise ClusterError(
                "the rank is not on the coordinator's host.",
                where=f"rank {arrival.rank}",
                remedy="Write channel: auto, or socket.",
            )
        slot = self._arena.slots[arrival.rank]
        nothing = memoryview(b"")
        shared = arrival.same_host
        self._channels[arrival.rank] = StreamChannel(
            arrival.rank,
            stream,
            self.run_id,
            slot,
            wire_payload=nothing if shared else bytes_of(self._arena.wire),
            slot_payload=nothing if shared else bytes_of(slot),
            kind="shared_memory" if shared else "socket",
            encryption=arrival.encryption,
        )
        files = setup.files if shared or setup.placed else None
        spooled = setup.files is not None and not setup.resident
        sent = dataclasses.replace(setup, files=files, spooled=spooled and files is None)
        stream.send_document(Kind.DOCUMENT, sent.to_record())
        if shared:
            send_arena(arrival.connection, self._arena)
        if files is None:
            stream.send_array(partition.features)
            stream.send_array(partition.targets)

    def _gone(self, rank: int, stream: FrameStream, error: OSError) -> AnerError:
        """Return what ended a rank while it was sent its rows: what it told before it left, else its loss."""
        try:
            stream.receive_document(_LAST_WORDS_SECONDS)
        except (EOFError, OSError, FrameError):
            pass
        except AnerError as told:
            return told
        return RankLost(
            f"the connection ended while the rank was sent its rows ({error}).",
            where=f"rank {rank}",
            remedy="Look at that worker's log; the trial can be run again.",
        )

    def _ready(self, rank: int, stream: FrameStream, deadline: float) -> dict[str, Any]:
        try:
            while not stream.readable(0.2):
                self._check_deadline(deadline, {rank})
            return dict(stream.receive_document())
        except (EOFError, OSError) as error:
            raise RankLost(
                f"the connection ended while the rank was preparing ({error}).", where=f"rank {rank}"
            ) from error

    def _check_deadline(self, deadline: float, missing: set[int]) -> None:
        self._check()
        if time.monotonic() > deadline:
            raise DeadlineExceeded(
                f"not ready within {READY_SECONDS:g} s.",
                where=f"rank {', '.join(map(str, sorted(missing)))}",
                remedy="Look at the workers' logs; a busy worker may still run other tasks.",
            )

    def close(self) -> None:
        """End whatever is still connected, at once, and free the shared memory."""
        self._listener.close()
        for channel in self._channels.values():
            channel.abort()
        if self._arena is not None:
            self._arena.release()
            self._arena = None
