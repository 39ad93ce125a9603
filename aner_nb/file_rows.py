"""Rows that lie in a file and are read block by block: as much memory as a block, whatever the file holds."""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Iterator, Sequence
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


class PlacedRows:
    """Training rows that lie where the ranks are: this process knows where, and has no way to read them.

    Parameters
    ----------
    token
        Digest of the record of the folder that the file is in: tells it from another with its name.
    known
        The rows' values where this process has them nevertheless, as it has the labels that decided the split.
    """

    def __init__(
        self,
        file: RowsFile,
        token: str,
        runs: Sequence[tuple[int, int]] | None = None,
        known: NDArray[Any] | None = None,
    ) -> None:
        self.file = file
        self.token = token
        self.dtype = np.dtype(file.dtype)
        self.runs = tuple(runs) if runs is not None else ((0, file.shape[0]),)
        self.shape = (sum(count for _, count in self.runs), *file.shape[1:])
        self._known = known

    @property
    def ndim(self) -> int:
        """Dimensions: 1 or 2."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.dtype.itemsize * math.prod(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, wanted: slice | NDArray[np.int64]) -> NDArray[Any]:
        """Return values that are known; refuse all others."""
        if self._known is None:
            raise CaseError(
                "training rows of a Dask collection lie with the ranks and do not come to this process.",
                where="data",
                remedy="Take run(…) or fit(…) with a cluster; develop(…) and channel='inline' need stored(path) or "
                "table(…).",
            )
        return self._known[wanted]

    def in_runs(self, runs: Sequence[tuple[int, int]]) -> PlacedRows:
        """Return rows of the same file in other runs."""
        return PlacedRows(self.file, self.token, runs)


def read_pieces(file: RowsFile, runs: Sequence[tuple[int, int]]) -> list[NDArray[Any]]:
    """Return the rows of each run."""
    rows = FileRows(file)
    return [rows[first : first + count] for first, count in runs]


def write_pieces(file: RowsFile, runs: Sequence[tuple[int, int]], pieces: Sequence[NDArray[Any]]) -> None:
    """Write the rows of each run to their places in a file of full length: what nobody wrote takes no space."""
    path = Path(file.path)
    path.parent.mkdir(parents=True, exist_ok=True)
    row = np.dtype(file.dtype).itemsize * math.prod(file.shape[1:])
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.ftruncate(descriptor, row * file.shape[0])
        for (first, _), rows in zip(runs, pieces, strict=True):
            os.pwrite(descriptor, np.ascontiguousarray(rows).data, first * row)
    finally:
        os.close(descriptor)


def blocks_of_rows(
    file: RowsFile, runs: Sequence[tuple[int, int]], most_bytes: int = 2**25
) -> Iterator[list[tuple[int, int]]]:
    """Yield the runs in lists that are not larger than so many bytes, cut where they must be."""
    row = max(1, np.dtype(file.dtype).itemsize * math.prod(file.shape[1:]))
    most = max(1, most_bytes // row)
    block: list[tuple[int, int]] = []
    room = most
    for first, count in runs:
        done = 0
        while done < count:
            take = min(room, count - done)
            block.append((first + done, take))
            done += take
            room -= take
            if not room:
                yield block
                block, room = [], most
    if block:
        yield block
