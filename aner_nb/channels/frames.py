"""The bytes of a message: a fixed header, then a payload whose length is known and bounded beforehand."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from aner_nb.backends.base import RANK_PHASES
from aner_nb.errors import AnerError

PROTOCOL_VERSION: Final = 2
MAX_DOCUMENT_BYTES: Final = 16 * 2**20
"""Largest JSON document (set-up, report, failure) that is accepted."""

_MAGIC: Final = b"ANER"
_HEADER: Final = struct.Struct(f"<4sHHQQQQd{len(RANK_PHASES)}qQ")
HEADER_BYTES: Final = _HEADER.size


class Kind(IntEnum):
    """What a message is."""

    DOCUMENT = 1
    """A JSON document: set-up, readiness, closing report."""
    ARRAY = 2
    """Raw bytes of an array whose size the set-up declared."""
    REQUEST = 3
    """Coordinator to rank: compute this block of rows for this update."""
    SUM = 4
    """Rank to coordinator: the gradient sum of this update."""
    END = 5
    """Coordinator to rank: the run is over."""
    FAILURE = 6
    """Rank to coordinator: an error, as a JSON document."""
    CHAINED = 7
    """Coordinator to rank: as a request, but parameters come down the chain, and the sum goes on along it."""
    PARAMETERS = 8
    """Rank to the next rank: the parameters of this update."""
    RUNNING = 9
    """Rank to the next rank: the sum of the ranks so far, and of their rows."""
    TOTAL = 10
    """Last rank to coordinator: the sum of all ranks, and of their rows."""


class FrameError(AnerError):
    """Bytes that are not a message of this protocol."""

    kind = "frame_error"


@dataclass(frozen=True, slots=True)
class Header:
    """The fixed part of a message."""

    kind: Kind
    run_id: int
    """64 random bits of the run: a message of another run is refused."""
    update: int = 0
    start: int = 0
    """First row of the block, in the rank's partition."""
    rows: int = 0
    loss_sum: float = 0.0
    phases_ns: tuple[int, ...] = (0,) * len(RANK_PHASES)
    payload_bytes: int = 0

    def encode(self) -> bytes:
        """Return the header's bytes, little-endian."""
        return _HEADER.pack(
            _MAGIC,
            PROTOCOL_VERSION,
            self.kind,
            self.run_id,
            self.update,
            self.start,
            self.rows,
            self.loss_sum,
            *self.phases_ns,
            self.payload_bytes,
        )


def decode_header(data: bytes | bytearray | memoryview) -> Header:
    """Read a header.

    Raises
    ------
    FrameError
        If the length, the magic bytes, the version or the kind is wrong.
    """
    if len(data) != HEADER_BYTES:
        raise FrameError(f"a header has {HEADER_BYTES} bytes, not {len(data)}.")
    magic, version, kind, run_id, update, start, rows, loss, *rest = _HEADER.unpack(data)
    if magic != _MAGIC:
        raise FrameError("the other end does not speak the protocol of aner_nb.", remedy="Check the address.")
    if version != PROTOCOL_VERSION:
        raise FrameError(
            f"the other end speaks protocol {version}, this one {PROTOCOL_VERSION}.",
            remedy="Install the same version of aner-nb on both machines.",
        )
    if kind not in Kind.__members__.values():
        raise FrameError(f"{kind} is not a kind of message.")
    return Header(Kind(kind), run_id, update, start, rows, loss, tuple(rest[:-1]), rest[-1])
