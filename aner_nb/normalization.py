"""What makes features have mean 0 and standard deviation 1, learned from training rows alone, equal everywhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aner_nb.errors import CaseError
from aner_nb.filling import Filling

_BLOCK_ROWS: Final = 256
"""Rows that are summed or transformed at a time. Part of the declared order of summation: do not change."""


def blocks_of(
    values: NDArray[np.float64], rows: NDArray[np.int64] | None, filling: Filling | None = None
) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """Yield copies of up to 256 of the rows, with their places among the rows asked for."""
    for start in range(0, len(values) if rows is None else len(rows), _BLOCK_ROWS):
        part = slice(start, start + _BLOCK_ROWS)
        block = values[part].copy() if rows is None else values[rows[part]]
        yield part, (block if filling is None else filling.apply(block))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Normalization:
    """What makes training features have mean 0 and standard deviation 1: ``(features - mean) / scale``."""

    mean: NDArray[np.float64]
    """Shape (features,), float64, in the units of the features."""
    scale: NDArray[np.float64]
    """Shape (features,), float64, positive: the population standard deviation; 1 for a constant column."""
    filling: Filling | None = None
    """What takes the place of missing values first; None where none can be missing."""

    def apply(self, features: NDArray[Any]) -> NDArray[np.float64]:
        """Return the normalized features, shape (rows, features), float64, newly allocated."""
        filled = features if self.filling is None else self.filling.apply(features)
        result = np.subtract(filled, self.mean, dtype=np.float64)
        result /= self.scale
        return result


def fit_normalization(
    features: NDArray[np.float64], rows: NDArray[np.int64] | None = None, filling: Filling | None = None
) -> Normalization:
    """Return the normalization of these features, which must be training rows, or of the `rows` of them.

    Equal to the bit on every platform: columns are summed in blocks of 256 rows; within a block the second
    half is added to the first until one row is left (of an odd number the middle row waits); the blocks'
    sums are added in order. The variance is the mean square of the deviations from the mean.

    Parameters
    ----------
    features : ndarray
        Shape (rows, features), float64, finite. Not changed; copied 256 rows at a time.
    rows : ndarray, optional
        Shape (training rows,), int64, to leave the other rows out.
    filling : Filling, optional
        Applied first, and part of the result.

    Raises
    ------
    CaseError
        If a column's sum or variance is beyond float64.
    """
    count = len(features) if rows is None else len(rows)

    def blocks() -> Iterator[NDArray[np.float64]]:
        return (block for _, block in blocks_of(features, rows, filling))

    return dataclasses.replace(normalization_of(blocks, count, features.shape[1]), filling=filling)


def normalization_of(
    blocks: Callable[[], Iterator[NDArray[np.float64]]], count: int, width: int
) -> Normalization:
    """Return the normalization of rows that come 256 at a time; `blocks` is called twice, and its arrays are used up.

    Raises
    ------
    CaseError
        As `fit_normalization`, which says how sums are formed.
    """
    total, squares = np.zeros(width), np.zeros(width)
    least, most = np.full_like(total, np.inf), np.full_like(total, -np.inf)
    with np.errstate(over="ignore", invalid="ignore"):
        for block in blocks():
            np.minimum(least, block.min(axis=0), out=least)
            np.maximum(most, block.max(axis=0), out=most)
            total += _column_sums(block)
        # A constant column's mean is its value: the rounded mean could differ, and leave a tiny deviation.
        mean = np.where(least == most, least, total / count)
        for block in blocks():
            np.subtract(block, mean, out=block)
            squares += _column_sums(np.square(block, out=block))
        deviation = np.sqrt(squares / count)
    bad = np.flatnonzero(~np.isfinite(mean + deviation))
    if len(bad):
        raise CaseError(
            f"the values of column {bad[0]} are too large to normalize.",
            where="data.features",
            remedy="Rescale the column; columns count from 0.",
        )
    return Normalization(mean=mean, scale=np.where(deviation > 0, deviation, 1.0))


def _column_sums(block: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sum of each column by halving; overwrites the block."""
    while len(block) > 1:
        half = (len(block) + 1) // 2
        block[: len(block) - half] += block[half:]
        block = block[:half]
    return block[0]
