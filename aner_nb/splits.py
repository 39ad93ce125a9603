"""Which rows train, which validate, which test: by class, by group, or by time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aner_nb.counter import words
from aner_nb.errors import CaseError
from aner_nb.sources import Source

PARTS: Final = ("train", "validation", "test")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Split:
    """Row numbers of the source, int64 and ascending; each row is in exactly one part."""

    train: NDArray[np.int64]
    validation: NDArray[np.int64]
    test: NDArray[np.int64]


def split(source: Source, fractions: Sequence[float] = (0.6, 0.2, 0.2), *, seed: int = 0) -> Split:
    """Divide the rows into training, validation and test.

    Rows that have groups are divided by them, rows that have an order by it, all others by class where there are
    classes; the seed has no say where there is an order.

    **By class.** The three totals are the shares of all rows, rounded by largest remainder (ties: training first). Each
    class gives each part the whole number of rows in its share; its 0 to 2 rows left over go to the parts
    that are still short of most rows (ties: training first), the smallest class choosing first. A class
    with no training row yet gives training its next one while training is short of any. So the totals are
    exact, a class is at most 2 rows off its share, and a class of one or two rows may be absent from a part.
    Which rows of a class go where is a seeded order. A fraction means the decimal that it is written as.

    **By group.** Groups come in a seeded order; each goes whole to the part that is still short of most rows (ties:
    training first), but the last ones to parts that have none yet. So no part has more rows than its share and one
    group.

    **By order.** The first rows train and the last ones test. Rows with an equal place in the order stay together, in
    the earlier part.

    Raises
    ------
    CaseError
        If the fractions do not divide the rows, or leave a part without any.
    """
    shares = _shares(fractions)
    rows = len(source.features)
    totals = _largest_remainder(rows, shares)
    for name, total in zip(PARTS, totals, strict=True):
        if total == 0:
            raise CaseError(
                f"{rows} rows leave none for {name}.",
                where="split",
                remedy="Give more rows or a larger fraction.",
            )
    if source.order is not None:
        return _by_order(source.order, totals)
    if source.groups is not None:
        return _by_group(source.groups, totals, seed)
    classes = source.targets if source.task == "classification" else np.zeros(rows, dtype=np.int64)
    counts = _counts(np.bincount(classes.astype(np.int64)).tolist(), shares, totals)
    # Class by class, and within a class in the order of the seeded words.
    order = np.lexsort((words(seed, "split", rows), classes)).astype(np.int64)
    pieces = np.split(order, np.cumsum(counts.reshape(-1))[:-1])
    train, validation, test = (np.sort(np.concatenate(pieces[part::3])) for part in range(3))
    return Split(train=train, validation=validation, test=test)


def _by_order(order: NDArray[np.int64], totals: Sequence[int]) -> Split:
    rows = np.argsort(order, kind="stable").astype(np.int64)
    places = order[rows]
    cuts = [
        int(np.searchsorted(places, places[end - 1], side="right")) for end in (totals[0], sum(totals[:2]))
    ]
    parts = np.split(rows, cuts)
    for name, part in zip(PARTS, parts, strict=True):
        if not len(part):
            raise CaseError(
                f"too many rows have one place in the order, so that none is left for {name}.",
                where="split",
                remedy="Name a column with finer values as order=, or change the fractions.",
            )
    train, validation, test = map(np.sort, parts)
    return Split(train=train, validation=validation, test=test)


def _by_group(groups: NDArray[np.int64], totals: Sequence[int], seed: int) -> Split:
    sizes = np.bincount(groups)
    if len(sizes) < len(PARTS):
        raise CaseError(
            f"{len(sizes)} group{'s' * (len(sizes) != 1)} cannot give rows to {len(PARTS)} parts.",
            where="split",
            remedy="Name a column with three values or more as groups=.",
        )
    short = np.array(totals, np.int64)
    members = np.zeros(len(PARTS), np.int64)
    part_of = np.empty(len(sizes), np.int64)
    visited = np.argsort(words(seed, "split", len(sizes)), kind="stable")
    for left, group in zip(range(len(sizes), 0, -1), visited.tolist(), strict=True):
        empty = np.flatnonzero(members == 0)
        part = int(empty[0]) if len(empty) >= left else int(short.argmax())
        part_of[group] = part
        members[part] += 1
        short[part] -= sizes[group]
    parts = part_of[groups]
    train, validation, test = (np.flatnonzero(parts == part).astype(np.int64) for part in range(len(PARTS)))
    return Split(train=train, validation=validation, test=test)


def _shares(fractions: Sequence[float]) -> list[Fraction]:
    good = len(fractions) == 3 and all(math.isfinite(part) and part > 0 for part in fractions)
    if not good or abs(sum(fractions) - 1) >= 1e-9:
        raise CaseError(
            f"{tuple(fractions)} does not divide the rows.",
            where="split",
            remedy="Give three positive fractions (training, validation, test) that add up to 1.",
        )
    exact = [Fraction(repr(float(part))) for part in fractions]
    return [part / sum(exact) for part in exact]


def _largest_remainder(rows: int, shares: Sequence[Fraction]) -> list[int]:
    counts = [math.floor(rows * share) for share in shares]
    remainders = [count - rows * share for count, share in zip(counts, shares, strict=True)]
    for part in sorted(range(3), key=remainders.__getitem__)[: rows - sum(counts)]:
        counts[part] += 1
    return counts


def _counts(sizes: list[int], shares: list[Fraction], totals: list[int]) -> NDArray[np.int64]:
    """Return how many rows each class gives to each part, shape (classes, 3)."""
    counts = np.array([[math.floor(size * share) for share in shares] for size in sizes])
    short = np.array(totals) - counts.sum(axis=0)
    for label in sorted(range(len(sizes)), key=lambda label: (sizes[label], label)):
        for _ in range(sizes[label] - int(counts[label].sum())):
            untrained = counts[label, 0] == 0 and short[0] > 0
            part = 0 if untrained else int(short.argmax())
            counts[label, part] += 1
            short[part] -= 1
    return counts
