"""The ranks of one run, from their invitations to connected channels; who starts them is not known here."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from aner_nb.backends.base import Partition
from aner_nb.channels.frames import FrameError, Kind
from aner_nb.channels.shared_memory import Arena, make_arena, send_arena
from aner_nb.channels.socket import Arrival, Encryption, Invitation, Listener
from aner_nb.channels.stream import FrameStream, StreamChannel
from aner_nb.errors import AnerError, ClusterError, DeadlineExceeded, LinkLost, RankLost
from aner_nb.host import RankSetup, bytes_of
from aner_nb.ranks import Offer, Ranks

READY_SECONDS: Final = 180.0
LARGEST_STAR: Final = 4
"""With more ranks than these, all of them over sockets, the ranks form a chain if their sums are large."""
SMALLEST_CHAINED: Final = 131_072
"""Parameters (a sum of 1 MiB): below, passing a sum from rank to rank takes longer than reading all of them."""
_LAST_WORDS_SECONDS: Final = 1.0


class Session:
    """Listens for ranks, hands them their set-up and rows, and joins them to channels.

    Parameters
    ----------
    channel : {"auto", "shared_memory", "socket"}
    host : str
        Address of ours that the ranks can reach over TCP.
    encryption : {"tls", "network"}
        Who encrypts what leaves a host.
    check : callable
        Called while waiting, several times a second; raises to give up.
    """

    def __init__(
        self, *, channel: str, host: str, check: Callable[[], None], encryption: Encryption = "tls"
    ) -> None:
        self.run_id = secrets.randbits(64)
        self._channel = channel
        self._check = check
        self._channels: dict[int, StreamChannel] = {}
        self._arena: Arena | None = None
        self._may_chain = False
        self._listener = Listener(
            self.run_id,
            unix=channel != "socket",
            host="" if channel == "shared_memory" else host,
            encryption=encryption,
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
        self._may_chain = len(setups) > LARGEST_STAR and first.model.layout.size >= SMALLEST_CHAINED
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
        chained = self._form_chain([streams[rank] for rank in range(len(setups))], deadline)
        return Ranks(
            self._arena.wire,
            channels,
            tuple(offers),
            ready,
            self._check,
            chained=channels if chained else (),
        )

    def _form_chain(self, streams: Sequence[FrameStream], deadline: float) -> bool:
        """Let the ranks connect with their neighbours, if they are many and all of them elsewhere."""
        far = [rank for rank, channel in self._channels.items() if channel.kind == "socket"]
        if not self._may_chain or not far:
            return False
        offered = {rank: self._ready(rank, streams[rank], deadline) for rank in sorted(far)}
        chained = len(far) == len(streams)
        for rank in sorted(far):
            streams[rank].send_document(
                Kind.DOCUMENT, {"chained": chained, "following": offered.get(rank + 1)}
            )
        if chained:
            for rank, stream in enumerate(streams):
                try:
                    self._ready(rank, stream, deadline)
                except LinkLost as told:
                    raise _unlinked(rank, told, streams) from told
                self._channels[rank].join_chain(first=rank == 0, last=rank == len(streams) - 1)
        return chained

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
        listens = self._may_chain and not shared
        sent = dataclasses.replace(setup, files=files, spooled=spooled and files is None, listens=listens)
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


def _unlinked(rank: int, told: LinkLost, streams: Sequence[FrameStream]) -> AnerError:
    """Return what keeps ranks apart: one that fails to connect leaves the rank before, which then tells of that."""
    after = rank + 1
    if told.where == f"rank {after}" and after < len(streams):
        try:
            streams[after].receive_document(_LAST_WORDS_SECONDS)
        except LinkLost as further:
            if further.where != f"rank {rank}":
                return _unlinked(after, further, streams)
        except EOFError as error:
            return RankLost(
                f"the connection ended while ranks were connecting ({error}).", where=f"rank {after}"
            )
        except OSError:
            pass  # it is there, and has nothing to say
        except AnerError as error:
            return error
    return RankLost(
        f"it and {told.where} did not get connected: {told.what}",
        where=f"rank {rank}",
        remedy="With more than four ranks workers must reach each other: open their firewalls for that.",
    )
