"""Missing values: what takes their place, learned from training rows alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aner_nb.errors import CaseError
from aner_nb.sources import Span

Blocks = Callable[[], Iterator[NDArray[np.float64]]]
"""Gives the training rows, raw, 256 at a time."""


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


def fit_filling(
    spans: Sequence[Span], blocks: Blocks, width: int, most_values: int | None = None
) -> Filling | None:
    """Return the filling that the training rows give, in one reading; None where no column asks for one.

    A mean is the sum of the values that are there, block of 256 rows by block, over their count. The most
    frequent value is the smallest of those that are equally frequent; of a category's, the first.

    Parameters
    ----------
    most_values
        Most different numbers that are counted in a column, for rows that are more than memory holds; None: any.

    Raises
    ------
    CaseError
        If a column has no value in any training row, or too many to count.
    """
    if not spans:
        return None
    fits = [_fit_of(span, most_values) for span in spans if span.indicators or span.fill]
    for block in blocks():
        for fit in fits:
            fit.add(block)
    values = np.zeros(width)
    absent = np.zeros(width, np.bool_)
    for fit in fits:
        fit.finish(values, absent)
    return Filling(values=values, absent=absent)


class _Indicators:
    """How many rows have each category."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._counts = np.zeros(span.stop - span.start)

    def add(self, block: NDArray[np.float64]) -> None:
        self._counts += np.nansum(block[:, self._span.start : self._span.stop], axis=0)

    def finish(self, values: NDArray[np.float64], absent: NDArray[np.bool_]) -> None:
        _check(bool(self._counts.any()), self._span)
        absent[self._span.start : self._span.stop] = self._counts == 0
        values[self._span.start + int(self._counts.argmax())] = 1.0


class _Mean:
    """Sum and count of the values that are there."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._total, self._count = 0.0, 0

    def add(self, block: NDArray[np.float64]) -> None:
        column = block[:, self._span.start]
        sums = column[~np.isnan(column)]
        self._count += len(sums)
        while len(sums) > 1:
            half = (len(sums) + 1) // 2
            sums[: len(sums) - half] += sums[half:]
            sums = sums[:half]
        self._total += float(sums[0]) if len(sums) else 0.0

    def finish(self, values: NDArray[np.float64], absent: NDArray[np.bool_]) -> None:  # noqa: ARG002
        _check(self._count > 0, self._span)
        values[self._span.start] = self._total / self._count


class _MostFrequent:
    """How often each number occurs."""

    def __init__(self, span: Span, most: int | None) -> None:
        self._span = span
        self._most = most
        self._counts: Counter[float] = Counter()

    def add(self, block: NDArray[np.float64]) -> None:
        column = block[:, self._span.start]
        self._counts.update(column[~np.isnan(column)].tolist())
        if self._most is not None and len(self._counts) > self._most:
            raise CaseError(
                f"the column {self._span.name!r} has over {self._most:,} different numbers, too many to count.",
                where="data.missing",
                remedy="Write missing='mean', or leave the column out.",
            )

    def finish(self, values: NDArray[np.float64], absent: NDArray[np.bool_]) -> None:  # noqa: ARG002
        _check(bool(self._counts), self._span)
        values[self._span.start] = min(self._counts, key=lambda value: (-self._counts[value], value))


def _fit_of(span: Span, most_values: int | None) -> _Indicators | _Mean | _MostFrequent:
    if span.indicators:
        return _Indicators(span)
    return _Mean(span) if span.fill == "mean" else _MostFrequent(span, most_values)


def _check(some: bool, span: Span) -> None:  # noqa: FBT001
    if not some:
        raise CaseError(
            f"the column {span.name!r} has no value in any training row.",
            where="data",
            remedy="Leave the column out, or give a larger fraction for training.",
        )
