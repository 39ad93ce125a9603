"""Rows of Parquet files, batch by batch, in the order of the files' names and numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar, TypeVarTuple

from aner_nb.errors import CaseError
from aner_nb.frames import missing_package

_BATCH_ROWS: Final = 2**16
_BATCH_VALUES: Final = 2**21

Given = TypeVarTuple("Given")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class ParquetFrames:
    """Parquet files: one, or a folder of them. What is held at a time is a batch, and never a file."""

    path: Path
    near: ClassVar[bool] = True

    def names(self) -> list[str]:
        """Return the names of the columns."""
        return list(_dataset(self.path).schema.names)

    def run(self, function: Callable[[Any, *Given], Result], *args: *Given) -> Result:
        """Call the function in this process."""
        return function(self, *args)

    def frames(self, columns: Sequence[str]) -> Iterator[Any]:
        """Yield batches of rows.

        Raises
        ------
        CaseError
            If the files cannot be read.
        """
        from pyarrow import parquet  # pyright: ignore[reportMissingImports] -- an extra

        rows = batch_rows(len(columns))
        files: Any = _dataset(self.path).files
        for name in sorted(files, key=_by_numbers):
            # Neither mapped nor read ahead: what the reader holds is a batch, and not the file.
            with parquet.ParquetFile(name, memory_map=False, pre_buffer=False, buffer_size=2**20) as file:
                for batch in file.iter_batches(rows, columns=list(columns), use_threads=False):
                    yield batch.to_pandas()


def batch_rows(columns: int) -> int:
    """Return how many rows of so many columns are taken at a time."""
    return max(256, min(_BATCH_ROWS, _BATCH_VALUES // max(1, columns)))


def _dataset(path: Path) -> Any:
    try:
        from pyarrow import parquet  # pyright: ignore[reportMissingImports] -- an extra
    except ImportError as error:
        raise missing_package("pyarrow", "reading Parquet") from error
    try:
        return parquet.ParquetDataset(path)
    except Exception as error:  # the reader's errors have no common base
        raise CaseError(
            f"{path.name} cannot be read ({type(error).__name__}: {str(error)[:200]}).",
            where="data",
            remedy="Give a Parquet file, or a folder of them.",
        ) from error


def _by_numbers(name: str) -> list[tuple[int, str]]:
    """Return what sorts part.2 before part.10: the order of rows must not depend on how many parts there are."""
    return [(int(piece), "") if piece.isdigit() else (0, piece) for piece in re.split(r"(\d+)", name)]
