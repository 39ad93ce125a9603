"""Missing values: what takes their place, learned from training rows alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aner_nb.errors import CaseError
from aner_nb.sources import Source, Span

_BLOCK_ROWS = 256


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Filling:
    """What stands for a missing value, and which indicators no training row has."""

    values: NDArray[np.float64]
    """Shape (features,), float64."""
    absent: NDArray[np.bool_]
    """Shape (features,): indicators of categories that no training row has; they are 0 in every row."""

    def apply(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the features with nothing missing, newly allocated."""
        filled = np.where(np.isnan(features), self.values, features)
        filled[:, self.absent] = 0.0
        return filled


def fit_filling(source: Source, rows: NDArray[np.int64]) -> Filling | None:
    """Return the filling that these rows, the training rows, give; None where the source has no such columns.

    A mean is the sum of the values that are there, block of 256 rows by block, over their count. The most
    frequent value is the smallest of those that are equally frequent; of a category's, the first.

    Raises
    ------
    CaseError
        If a column has no value in any training row.
    """
    if not source.spans:
        return None
    values = np.zeros(source.features.shape[1])
    absent = np.zeros(len(values), np.bool_)
    for span in source.spans:
        if span.indicators:
            _fit_indicators(source, rows, span, values, absent)
        elif span.fill:
            values[span.start] = _fit_number(source, rows, span)
    return Filling(values=values, absent=absent)


def _fit_indicators(
    source: Source,
    rows: NDArray[np.int64],
    span: Span,
    values: NDArray[np.float64],
    absent: NDArray[np.bool_],
) -> None:
    block = source.features[rows, span.start : span.stop]
    counts = np.nansum(block, axis=0)
    _check(bool(counts.any()), span)
    absent[span.start : span.stop] = counts == 0
    values[span.start + int(counts.argmax())] = 1.0


def _fit_number(source: Source, rows: NDArray[np.int64], span: Span) -> float:
    column = source.features[rows, span.start]
    present = column[~np.isnan(column)]
    _check(len(present) > 0, span)
    if span.fill == "most_frequent":
        distinct, counts = np.unique(present, return_counts=True)
        return float(distinct[counts.argmax()])
    return mean_of(column)


def mean_of(column: NDArray[np.float64]) -> float:
    """Return the mean of the values that are not missing, summed in the declared order."""
    total, count = 0.0, 0
    for start in range(0, len(column), _BLOCK_ROWS):
        block = column[start : start + _BLOCK_ROWS]
        there = block[~np.isnan(block)]
        count += len(there)
        sums = there.copy()
        while len(sums) > 1:
            half = (len(sums) + 1) // 2
            sums[: len(sums) - half] += sums[half:]
            sums = sums[:half]
        total += float(sums[0]) if len(sums) else 0.0
    return total / count


def _check(some: bool, span: Span) -> None:  # noqa: FBT001
    if not some:
        raise CaseError(
            f"the column {span.name!r} has no value in any training row.",
            where="data",
            remedy="Leave the column out, or give a larger fraction for training.",
        )
