"""One anonymous piece of memory that the coordinator and the ranks of its host all map.

It has no name: its descriptor is passed over the Unix socket, and the kernel frees it with the last process
that maps it, however that ends. So nothing can be left over, and "same host" is found out by really mapping it.
"""

from __future__ import annotations

import mmap
import os
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

_PAGE: Final = mmap.PAGESIZE


@dataclass(frozen=True, slots=True)
class Arena:
    """The wire vector and one float64 slot a rank, as views of one mapping."""

    wire: NDArray[np.floating]
    """(parameters,) in the case's dtype, aligned to 64 bytes."""
    slots: tuple[NDArray[np.float64], ...]
    """Each (parameters,), aligned to a page."""
    descriptor: int
    """Of the mapped memory; closed by `release`."""

    def release(self) -> None:
        """Close the descriptor. The mapping goes with the last view of it."""
        os.close(self.descriptor)


def make_arena(parameters: int, dtype: str, ranks: int) -> Arena:
    """Return a new arena, zeroed.

    Raises
    ------
    OSError
        If there is not enough memory.
    """
    size = _offset(parameters, dtype, ranks)
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("aner_nb")
    else:
        handle, path = tempfile.mkstemp()
        Path(path).unlink()
        descriptor = handle
    os.ftruncate(descriptor, size)
    return _map(descriptor, parameters, dtype, ranks)


def send_arena(connection: socket.socket, arena: Arena) -> None:
    """Pass the arena's descriptor to the process at the other end of a Unix socket."""
    socket.send_fds(connection, [b"A"], [arena.descriptor])


def receive_arena(connection: socket.socket, parameters: int, dtype: str, ranks: int) -> Arena:
    """Map the arena whose descriptor the other end of a Unix socket passes.

    Raises
    ------
    OSError
        If no descriptor came, or it is smaller than the arena must be.
    """
    _, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
    if len(descriptors) != 1 or os.fstat(descriptors[0]).st_size < _offset(parameters, dtype, ranks):
        raise OSError("no usable shared memory was passed")
    return _map(descriptors[0], parameters, dtype, ranks)


def _offset(parameters: int, dtype: str, slot: int) -> int:
    """Return where a rank's slot begins; for ``slot == ranks``, the arena's size."""
    wire = -(-parameters * np.dtype(dtype).itemsize // _PAGE) * _PAGE
    each = -(-parameters * 8 // _PAGE) * _PAGE
    return wire + slot * each


def _map(descriptor: int, parameters: int, dtype: str, ranks: int) -> Arena:
    memory = mmap.mmap(descriptor, _offset(parameters, dtype, ranks))
    wire: NDArray[np.floating] = np.frombuffer(memory, dtype, parameters)
    slots = tuple(
        np.frombuffer(memory, np.float64, parameters, _offset(parameters, dtype, rank))
        for rank in range(ranks)
    )
    return Arena(wire, slots, descriptor)


def aligned_wire(parameters: int, dtype: str) -> NDArray[np.floating]:
    """Return a private wire vector with the arena's alignment, for a rank on another host."""
    size = parameters * np.dtype(dtype).itemsize
    memory = np.zeros(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype)
