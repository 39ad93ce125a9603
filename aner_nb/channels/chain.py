"""A rank's place in a chain: parameters come down from rank to rank, and the running sum goes on along it.

Rank r adds its own gradient sum to that of the ranks before it, piece by piece, and sends each piece on: the order of
addition is that of the star. While a rank waits for a neighbour it watches its coordinator, whose end ends it as well.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aner_nb.backends.base import GradientSum
from aner_nb.channels.frames import HEADER_BYTES, FrameError, Header, Kind, decode_header
from aner_nb.channels.socket import Invitation, Listener, connect_to_rank
from aner_nb.channels.stream import FrameStream, StreamRankEnd
from aner_nb.errors import LinkLost, RankLost

PIECE: Final = 32_768
"""Parameters of one piece: few enough that the next rank soon has some, many enough that calls cost little."""

_ACCEPT_SECONDS: Final = 30.0
_GONE: Final = getattr(select, "POLLRDHUP", 0)
"""What tells that the other end is closed though bytes of it are unread; elsewhere than on Linux, POLLHUP does."""


class Link:
    """A connection to a neighbour in the chain.

    Parameters
    ----------
    connection
        Authenticated.
    other
        The neighbour's rank.
    coordinator
        Watched while this end waits.
    """

    def __init__(self, connection: socket.socket, run_id: int, other: int, coordinator: FrameStream) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._run_id = run_id
        self._other = other
        self._poller = select.poll()
        self._poller.register(coordinator.fileno(), _GONE)
        self._coordinator = coordinator.fileno()

    def expect(self, kind: Kind, update: int, payload_bytes: int) -> Header:
        """Wait for the header of a message.

        Raises
        ------
        LinkLost
            If the neighbour is gone, or sends anything else.
        """
        head = bytearray(HEADER_BYTES)
        self.receive_into(memoryview(head))
        try:
            header = decode_header(head)
        except FrameError as error:
            raise self.lost(error) from error
        due = (kind, self._run_id, update, payload_bytes)
        if (header.kind, header.run_id, header.update, header.payload_bytes) != due:
            raise self.lost(FrameError(f"{header.kind.name} of update {header.update} is out of order"))
        return header

    def send(self, view: memoryview) -> None:
        """Send all of it."""
        self._move(self._connection.send, view, select.POLLOUT)

    def receive_into(self, view: memoryview) -> None:
        """Wait until all of it has arrived."""
        self._move(self._connection.recv_into, view, select.POLLIN)

    def _move(self, move: Callable[[memoryview], int], view: memoryview, event: int) -> None:
        done = 0
        try:
            while done < len(view):
                try:
                    count = move(view[done:])
                except ssl.SSLWantReadError:
                    self._wait(select.POLLIN)
                except ssl.SSLWantWriteError:
                    self._wait(select.POLLOUT)
                except BlockingIOError:
                    self._wait(event)
                else:
                    if not count:
                        raise EOFError("the connection was closed")
                    done += count
        except (OSError, EOFError) as error:
            raise self.lost(error) from error

    def _wait(self, event: int) -> None:
        self._poller.register(self._connection.fileno(), event)
        if any(descriptor == self._coordinator for descriptor, _ in self._poller.poll()):
            raise RankLost("the coordinator is gone, or has ended the run.")

    def lost(self, error: Exception) -> LinkLost:
        """Return the error that tells the coordinator which neighbour is gone."""
        return LinkLost(
            f"the connection to it ended ({error or type(error).__name__}).", where=f"rank {self._other}"
        )

    def close(self) -> None:
        """Close the connection at once."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


@dataclass(slots=True)
class Links:
    """A rank's neighbours."""

    before: Link | None = None
    """None: the first rank, which has its parameters from the coordinator."""
    after: Link | None = None
    """None: the last rank, which sends the sum of all to the coordinator."""

    def close(self) -> None:
        """Close both connections, so that the neighbours notice too."""
        for link in (self.before, self.after):
            if link is not None:
                link.close()


class Doorstep:
    """Where a rank waits for the rank before it.

    Parameters
    ----------
    invitation
        The rank's own.
    host
        The address with which the rank reaches its coordinator.
    """

    def __init__(self, invitation: Invitation, host: str) -> None:
        self._guest = invitation
        self._listener = Listener(
            invitation.run_id,
            unix=False,
            host=host,
            encryption=invitation.encryption,
            key=bytes.fromhex(invitation.key),
        )

    @property
    def record(self) -> dict[str, Any]:
        """What the rank before needs to connect; secret, as the certificate must come from here alone."""
        offered = self._listener.invitation(0)
        return {"address": list(offered.address), "certificate": offered.certificate}

    def link(self, following: dict[str, Any] | None, coordinator: FrameStream) -> Links:
        """Connect to the rank after this one, if there is one, and let the one before connect.

        Raises
        ------
        LinkLost
            If a neighbour cannot be reached, or does not come.
        """
        guest, links = self._guest, Links()
        try:
            if following is not None:
                links.after = self._to_next(following, coordinator)
            if guest.rank:
                links.before = self._from_previous(coordinator)
        except BaseException:
            links.close()
            raise
        finally:
            self.close()
        return links

    def _to_next(self, following: dict[str, Any], coordinator: FrameStream) -> Link:
        guest = self._guest
        host, port = following["address"]
        address = (str(host), int(port))
        invited = Invitation(
            guest.run_id, guest.rank, guest.key, "", address, str(following["certificate"]), guest.encryption
        )
        try:
            return Link(connect_to_rank(invited), guest.run_id, guest.rank + 1, coordinator)
        except (OSError, EOFError, ValueError) as error:
            raise LinkLost(f"it cannot be reached ({error}).", where=f"rank {guest.rank + 1}") from error

    def _from_previous(self, coordinator: FrameStream) -> Link:
        guest = self._guest
        deadline = time.monotonic() + _ACCEPT_SECONDS
        while time.monotonic() < deadline:
            arrival = self._listener.accept(0.2)
            if arrival is not None and arrival.rank == guest.rank - 1:
                return Link(arrival.connection, guest.run_id, arrival.rank, coordinator)
            if arrival is not None:
                arrival.connection.close()
            if coordinator.readable(0):
                raise RankLost("the coordinator is gone, or has ended the run.")
        raise LinkLost("it did not connect.", where=f"rank {guest.rank - 1}")

    def close(self) -> None:
        """Listen no longer."""
        self._listener.close()


class ChainedRankEnd(StreamRankEnd):
    """The end of a rank in a chain; it also answers requests that are not for the chain, as a calibration's.

    Parameters as for `StreamRankEnd`.
    """

    def __init__(
        self,
        stream: FrameStream,
        run_id: int,
        wire: NDArray[np.floating],
        slot: NDArray[np.float64],
        links: Links,
        *,
        wire_payload: memoryview,
        slot_payload: memoryview,
    ) -> None:
        super().__init__(stream, run_id, wire, slot, wire_payload=wire_payload, slot_payload=slot_payload)
        self._links = links
        self._chained = False

    def _receive_parameters(self, header: Header) -> None:
        self._chained = header.kind is Kind.CHAINED
        if not self._chained:
            super()._receive_parameters(header)
            return
        before, after, payload = self._links.before, self._links.after, self._wire_payload
        if header.payload_bytes != (0 if before else len(payload)):
            raise FrameError(f"a chained request came with {header.payload_bytes} bytes.")
        along = Header(Kind.PARAMETERS, self._run_id, header.update, payload_bytes=len(payload))
        if before is not None:
            before.expect(Kind.PARAMETERS, header.update, len(payload))
        if after is not None:
            after.send(memoryview(along.encode()))
        receive_into = before.receive_into if before else self._stream.receive_into
        for piece in _pieces(payload, PIECE * 8):
            receive_into(piece)
            if after is not None:
                after.send(piece)

    def give(self, update: int, part: GradientSum) -> None:
        """Send the answer to the coordinator, and the sum of the ranks up to this one along the chain."""
        if not self._chained:
            super().give(update, part)
            return
        self._answer(update, part, memoryview(b""))
        before, after, own = self._links.before, self._links.after, self._slot_payload
        rows = part.rows
        if before is not None:
            rows += before.expect(Kind.RUNNING, update, len(own)).rows
        kind = Kind.RUNNING if after else Kind.TOTAL
        header = Header(kind, self._run_id, update, rows=rows, payload_bytes=len(own))
        send = after.send if after else self._send_piece
        send(memoryview(header.encode()))
        if before is None:
            for piece in _pieces(own, PIECE * 8):
                send(piece)
            return
        running = np.empty(min(PIECE, self.slot.size))
        for start in range(0, self.slot.size, PIECE):
            mine = self.slot[start : start + PIECE]
            total = running[: mine.size]
            view = total.view(np.uint8).data
            before.receive_into(view)
            np.add(total, mine, out=total)
            send(view)

    def _send_piece(self, piece: memoryview) -> None:
        with self._coordinator():
            self._stream.send_piece(piece)


def _pieces(view: memoryview, length: int) -> list[memoryview]:
    return [view[start : start + length] for start in range(0, len(view), length)]
