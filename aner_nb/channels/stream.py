"""Messages over a connected stream socket (Unix or TCP, plain or TLS), and the channel made of them.

The same channel serves shared memory and sockets. What differs is only which bytes travel: with shared
memory the payloads are empty, since both ends see the wire vector and the slot.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from aner_nb.backends.base import GradientSum
from aner_nb.channels.base import AbstractChainedChannel, AbstractRankEnd
from aner_nb.channels.frames import (
    HEADER_BYTES,
    MAX_DOCUMENT_BYTES,
    FrameError,
    Header,
    Kind,
    decode_header,
)
from aner_nb.errors import DeadlineExceeded, RankLost, error_of_rank

_CLOSING_SECONDS: Final = 10.0
_SEND_BYTES: Final = 2**24
_SEND_SECONDS: Final = 30.0
"""For so many bytes: half a megabyte a second is the slowest that is waited for."""
_LOST: Final = (EOFError, OSError, FrameError)
_NOTHING: Final = memoryview(b"")


class FrameStream:
    """Whole messages, and parts of messages, over one socket.

    Parameters
    ----------
    connection
        Connected and authenticated.
    run_id
        Put into every message, and demanded of every message.
    """

    def __init__(self, connection: socket.socket, run_id: int) -> None:
        self._connection = connection
        self._run_id = run_id
        self._head = bytearray(HEADER_BYTES)
        self._got = 0
        self._header: Header | None = None

    def fileno(self) -> int:
        """Return the socket's descriptor; -1 once closed."""
        return self._connection.fileno()

    def readable(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for bytes to arrive; return whether some are there."""
        if isinstance(self._connection, ssl.SSLSocket) and self._connection.pending():
            return True
        return bool(select.select([self._connection], [], [], timeout)[0])

    def send(self, header: Header, payload: memoryview) -> None:
        """Send one message; waits until the operating system has taken it.

        Raises
        ------
        OSError
            If the connection is gone, or the other end takes nothing for long, as a frozen process does.
        """
        self._connection.settimeout(_SEND_SECONDS)
        self._connection.sendall(header.encode())
        for start in range(0, len(payload), _SEND_BYTES):
            self._connection.sendall(payload[start : start + _SEND_BYTES])

    def send_piece(self, piece: memoryview) -> None:
        """Send a part of the payload of the message whose header was sent last."""
        self._connection.settimeout(_SEND_SECONDS)
        self._connection.sendall(piece)

    def drain(self, seconds: float) -> None:
        """Read and forget what arrives until the other end closes, so that it is not held up; never raises."""
        deadline = time.monotonic() + seconds
        waste = bytearray(2**16)
        with contextlib.suppress(OSError):
            while (left := deadline - time.monotonic()) > 0:
                self._connection.settimeout(left)
                if not self._connection.recv_into(waste):
                    return

    def send_document(self, kind: Kind, value: object) -> None:
        """Send a JSON document."""
        text = json.dumps(value).encode()
        self.send(Header(kind, self._run_id, payload_bytes=len(text)), memoryview(text))

    def send_array(self, array: NDArray[np.generic]) -> None:
        """Send the bytes of a C-contiguous array, or of rows in a file, which are read some at a time."""
        self._connection.settimeout(_SEND_SECONDS)
        self._connection.sendall(Header(Kind.ARRAY, self._run_id, payload_bytes=array.nbytes).encode())
        step = max(1, _SEND_BYTES * len(array) // max(1, array.nbytes))
        for start in range(0, len(array), step):
            self._connection.sendall(array[start : start + step].reshape(-1).view(np.uint8).data)

    def receive_header(self, timeout: float | None = None) -> Header:
        """Wait for the next header; `timeout` in seconds bounds each wait for bytes."""
        self._connection.settimeout(timeout)
        head = memoryview(bytearray(HEADER_BYTES))
        self.receive_into(head)
        return self._checked(decode_header(head))

    def receive_payload(self, header: Header, into: memoryview) -> None:
        """Wait for a payload of exactly the size of `into`."""
        if header.payload_bytes != len(into):
            raise FrameError(f"a payload of {header.payload_bytes} bytes came where {len(into)} were due.")
        self.receive_into(into)

    def receive_document(self, timeout: float | None = None) -> dict[str, object]:
        """Wait for a JSON document.

        Raises
        ------
        RankFailed, BackendUnavailable, ContractBroken
            If the other end sent a failure instead.
        """
        return self._document(self.receive_header(timeout))

    def receive_array(self, dtype: str, shape: tuple[int, ...]) -> NDArray[np.generic]:
        """Wait for the bytes of an array of a known dtype and shape."""
        array = np.empty(shape, dtype)
        header = self.receive_header()
        if header.kind is not Kind.ARRAY:
            raise FrameError(f"{header.kind.name} came where an array was due.")
        self.receive_payload(header, array.reshape(-1).view(np.uint8).data)
        return array

    def receive_to(self, write: Callable[[memoryview], object], count: int) -> None:
        """Wait for the `count` bytes of an array, and hand them on piece by piece."""
        header = self.receive_header()
        if header.kind is not Kind.ARRAY or header.payload_bytes != count:
            raise FrameError(
                f"{header.kind.name} of {header.payload_bytes} bytes came where {count} were due."
            )
        piece = memoryview(bytearray(min(count, _SEND_BYTES)))
        for start in range(0, count, max(1, len(piece))):
            part = piece[: min(len(piece), count - start)]
            self.receive_into(part)
            write(part)

    def poll(self, into: memoryview) -> Header | None:
        """Read what has arrived of the next message; return its header once all of it is here.

        The payload of a SUM goes to `into`, whose length it must have.
        """
        self._connection.setblocking(False)
        if self._header is None:
            if not self._fill(memoryview(self._head)):
                return None
            self._header = self._checked(decode_header(self._head))
            self._got = 0
            if self._header.kind is Kind.FAILURE:
                # The rank must not hold the coordinator by stalling in the middle of its failure.
                self._connection.settimeout(_CLOSING_SECONDS)
                failure, self._header = self._header, None
                self._document(failure)
            if self._header is not None and self._header.payload_bytes != len(into):
                raise FrameError(
                    f"a payload of {self._header.payload_bytes} bytes came where {len(into)} were due."
                )
        if not self._fill(into):
            return None
        header, self._header, self._got = self._header, None, 0
        return header

    def close(self) -> None:
        """Close the socket at once; both directions end."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _document(self, header: Header) -> dict[str, object]:
        if header.kind not in (Kind.DOCUMENT, Kind.FAILURE):
            raise FrameError(f"{header.kind.name} came where a document was due.")
        if header.payload_bytes > MAX_DOCUMENT_BYTES:
            raise FrameError(f"a document of {header.payload_bytes} bytes is over {MAX_DOCUMENT_BYTES}.")
        text = bytearray(header.payload_bytes)
        self.receive_into(memoryview(text))
        try:
            value: object = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise FrameError(f"a document is not JSON ({error}).") from error
        if not isinstance(value, dict):
            raise FrameError("a document is not a JSON object.")
        record = cast("dict[str, object]", value)
        if header.kind is Kind.FAILURE:
            raise error_of_rank(record)
        return record

    def _checked(self, header: Header) -> Header:
        if header.run_id != self._run_id:
            raise FrameError("a message of another run arrived.")
        return header

    def receive_into(self, view: memoryview) -> None:
        """Wait for so many bytes of the payload of the message whose header was received last."""
        got = 0
        while got < len(view):
            count = self._connection.recv_into(view[got:])
            if not count:
                raise EOFError("the connection was closed")
            got += count

    def _fill(self, view: memoryview) -> bool:
        while self._got < len(view):
            try:
                count = self._connection.recv_into(view[self._got :])
            except (BlockingIOError, ssl.SSLWantReadError):
                return False
            if not count:
                raise EOFError("the connection was closed")
            self._got += count
        return True


class StreamChannel(AbstractChainedChannel):
    """The coordinator's end over a `FrameStream`.

    Parameters
    ----------
    slot : (parameters,) float64
        Where the rank's sum is found when its reply has arrived.
    wire_payload, slot_payload
        The bytes of the wire vector and the slot that travel through the stream: all of them, or none where
        both ends share the memory.
    """

    def __init__(
        self,
        rank: int,
        stream: FrameStream,
        run_id: int,
        slot: NDArray[np.float64],
        *,
        wire_payload: memoryview,
        slot_payload: memoryview,
        kind: str,
        encryption: str,
    ) -> None:
        self.rank = rank
        self.kind = kind
        self.encryption = encryption
        self.payload_bytes = len(wire_payload) + len(slot_payload) + 2 * HEADER_BYTES
        self._stream = stream
        self._run_id = run_id
        self._slot = slot
        self._wire_payload, self._slot_payload = wire_payload, slot_payload
        self._asked = -1
        self._ends = (False, False)
        self._due: deque[tuple[Kind, memoryview, NDArray[np.float64]]] = deque()

    def join_chain(self, *, first: bool, last: bool) -> None:
        """Say that the rank is linked to its neighbours, and whether it is the first or the last of them."""
        self._ends = (first, last)
        # Parameters come from the rank before and go to the one after, sums likewise, each behind its header; only
        # the first rank has its parameters with the request, and only the last one passes none on.
        self.payload_bytes = (3 + 2 * (not first) + (not last)) * HEADER_BYTES
        self.payload_bytes += (2 - last) * len(self._wire_payload) + (2 - first) * len(self._slot_payload)

    def post(self, update: int, block: tuple[int, int]) -> None:
        """Send the request; see the base class."""
        self._due = deque([(Kind.SUM, self._slot_payload, self._slot)])
        self._post(Kind.REQUEST, update, block, self._wire_payload)

    def post_chained(self, update: int, block: tuple[int, int]) -> None:
        """Send the request; see the base class."""
        first, last = self._ends
        self._due = deque([(Kind.SUM, _NOTHING, self._slot[:0])])
        if last:
            self._due.append((Kind.TOTAL, self._slot_payload, self._slot))
        self._post(Kind.CHAINED, update, block, self._wire_payload if first else _NOTHING)

    def _post(self, kind: Kind, update: int, block: tuple[int, int], payload: memoryview) -> None:
        self._asked = update
        rows = block[1] - block[0]
        header = Header(kind, self._run_id, update, start=block[0], rows=rows, payload_bytes=len(payload))
        try:
            self._stream.send(header, payload)
        except _LOST as error:
            raise self._lost(error) from error

    def poll(self) -> GradientSum | None:
        """Return the reply once it is here; see the base class."""
        kind, into, gradient = self._due[0] if self._due else (None, _NOTHING, self._slot)
        try:
            header = self._stream.poll(into)
        except _LOST as error:
            raise self._lost(error) from error
        if header is None:
            return None
        if header.kind is not kind or header.update != self._asked:
            raise self._lost(FrameError(f"{header.kind.name} of update {header.update} is out of order"))
        self._due.popleft()
        return GradientSum(header.rows, header.loss_sum, gradient, header.phases_ns)

    def fileno(self) -> int:
        """Return the stream's descriptor."""
        return self._stream.fileno()

    def close(self) -> dict[str, object]:
        """Tell the rank that the run is over; return its closing report."""
        try:
            self._stream.send(Header(Kind.END, self._run_id), memoryview(b""))
            return self._stream.receive_document(_CLOSING_SECONDS)
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"the rank did not close within {_CLOSING_SECONDS:g} s.", where=f"rank {self.rank}"
            ) from error
        except _LOST as error:
            raise self._lost(error) from error
        finally:
            self._stream.close()

    def abort(self) -> None:
        """Close the socket: the rank's next read or write ends it."""
        self._stream.close()

    def _lost(self, error: Exception) -> RankLost:
        return RankLost(
            f"the connection ended in update {max(self._asked, 0)} ({error or type(error).__name__}).",
            where=f"rank {self.rank}",
            remedy="Look at that worker's log; the trial can be run again.",
        )


class StreamRankEnd(AbstractRankEnd):
    """The rank's end over a `FrameStream`; parameters as for `StreamChannel`."""

    def __init__(
        self,
        stream: FrameStream,
        run_id: int,
        wire: NDArray[np.floating],
        slot: NDArray[np.float64],
        *,
        wire_payload: memoryview,
        slot_payload: memoryview,
    ) -> None:
        self.slot = slot
        self._stream = stream
        self._run_id = run_id
        self._wire = wire
        self._wire_payload = wire_payload
        self._slot_payload = slot_payload
        self.arrived_ns = 0

    def take(self) -> tuple[int, tuple[int, int], NDArray[np.floating]] | None:
        """Wait for a request; see the base class."""
        with self._coordinator():
            header = self._stream.receive_header()
            self.arrived_ns = time.perf_counter_ns()
            if header.kind is Kind.END:
                return None
            self._receive_parameters(header)
        return header.update, (header.start, header.start + header.rows), self._wire

    def _receive_parameters(self, header: Header) -> None:
        if header.kind is not Kind.REQUEST:
            raise FrameError(f"{header.kind.name} came where a request was due.")
        self._stream.receive_payload(header, self._wire_payload)

    def give(self, update: int, part: GradientSum) -> None:
        """Send the reply; see the base class."""
        self._answer(update, part, self._slot_payload)

    def _answer(self, update: int, part: GradientSum, payload: memoryview) -> None:
        header = Header(
            Kind.SUM,
            self._run_id,
            update,
            rows=part.rows,
            loss_sum=part.loss_sum,
            phases_ns=part.phases_ns,
            payload_bytes=len(payload),
        )
        with self._coordinator():
            self._stream.send(header, payload)

    @contextlib.contextmanager
    def _coordinator(self) -> Generator[None]:
        """Take a broken connection for what it is."""
        try:
            yield
        except _LOST as error:
            raise RankLost(f"the coordinator is gone ({error}).") from error
