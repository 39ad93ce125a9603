"""Rows that lie in a file and are read block by block: as much memory as a block, whatever the file holds."""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aner_nb.errors import CaseError


@dataclass(frozen=True, slots=True)
class RowsFile:
    """Where rows lie: little-endian values in C order, and nothing else in the file."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    """(rows,) or (rows, columns)."""


class FileRows:
    """Rows of a file in an order of runs, with what is used of an array: length, type, shape, and slices.

    A slice is read when it is asked for; nothing is mapped, so that memory is bounded by the slice.

    Parameters
    ----------
    runs
        (first row in the file, count) of each run; None: the whole file in its order.

    Raises
    ------
    CaseError
        If there is no such file, or it has another size.
    """

    def __init__(self, file: RowsFile, runs: Sequence[tuple[int, int]] | None = None) -> None:
        self.file = file
        self.dtype = np.dtype(file.dtype)
        self._runs = np.array([(0, file.shape[0])] if runs is None else runs, np.int64).reshape(-1, 2)
        self._starts = np.concatenate([[0], np.cumsum(self._runs[:, 1])])
        self.shape = (int(self._starts[-1]), *file.shape[1:])
        self._row_bytes = self.dtype.itemsize * math.prod(file.shape[1:])
        try:
            self._descriptor = os.open(file.path, os.O_RDONLY)
        except OSError as error:
            raise CaseError(
                f"rows cannot be read ({error.strerror}).",
                where=file.path,
                remedy="Put the cache folder where all processes of this host can read it.",
            ) from error
        weakref.finalize(self, os.close, self._descriptor)
        if os.fstat(self._descriptor).st_size != self._row_bytes * file.shape[0]:
            raise CaseError(
                "the file of rows has another size.", where=file.path, remedy="Remove its folder."
            )

    @property
    def ndim(self) -> int:
        """Dimensions: 1 or 2."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, of which few are in memory."""
        return self.shape[0] * self._row_bytes

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, wanted: slice | NDArray[np.int64]) -> NDArray[Any]:
        """Read rows: a slice of step 1, or rows by their numbers."""
        if not isinstance(wanted, slice):
            return np.concatenate([self[row : row + 1] for row in wanted.tolist()] or [self[0:0]])
        start, stop, _ = wanted.indices(len(self))
        count = max(0, stop - start)
        rows = np.empty((count, *self.shape[1:]), self.dtype)
        into = rows.reshape(-1).view(np.uint8).data
        run = int(np.searchsorted(self._starts, start, side="right")) - 1
        done = 0
        while done < count:
            first, length = self._runs[run].tolist()
            within = start + done - int(self._starts[run])
            take = min(length - within, count - done)
            self._read(into[done * self._row_bytes : (done + take) * self._row_bytes], first + within)
            done += take
            run += 1
        return rows

    def _read(self, into: memoryview, row: int) -> None:
        got = 0
        while got < len(into):
            count = os.preadv(self._descriptor, [into[got:]], row * self._row_bytes + got)
            if not count:
                raise CaseError(
                    "the file of rows was cut.", where=self.file.path, remedy="Remove its folder."
                )
            got += count

    def in_runs(self, runs: Sequence[tuple[int, int]]) -> FileRows:
        """Return rows of the same file in other runs."""
        return FileRows(self.file, runs)


def write_rows(path: Path, rows: NDArray[Any]) -> RowsFile:
    """Write an array as a file of rows."""
    plain = np.ascontiguousarray(rows, rows.dtype.newbyteorder("<"))
    plain.tofile(path)
    return RowsFile(str(path), rows.dtype.name, rows.shape)
