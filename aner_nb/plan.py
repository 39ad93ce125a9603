"""Who computes which rows in which update: pure, known before the run, equal on coordinator and ranks.

One seeded permutation cuts the training rows into global batches; each epoch visits all batches in a seeded
order of its own. A batch is cut among the ranks by their weights. Because the batches are fixed, so are the
rows of a rank: its *partition* can stay on its device, each shard being a contiguous block of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aner_nb.case import Case, canonical_json
from aner_nb.counter import permutation

TAIL_RULE = "largest remainder, ties to the lower rank"


def shard_rows(rows: int, weights: Sequence[int]) -> tuple[int, ...]:
    """Return how many of a batch's rows each rank takes.

    Each rank takes the whole part of ``rows * weight / sum(weights)``; the tail goes, one row each, to the
    ranks with the largest remainders, ties to the lower rank. Whole numbers throughout, so exact.

    Examples
    --------
    >>> shard_rows(30, (1, 7))
    (4, 26)
    >>> shard_rows(1, (1, 1, 1))
    (1, 0, 0)
    """
    total = sum(weights)
    counts = [rows * weight // total for weight in weights]
    remainders = [rows * weight % total for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda rank: (-remainders[rank], rank))
    for rank in by_remainder[: rows - sum(counts)]:
        counts[rank] += 1
    return tuple(counts)


@dataclass(frozen=True, slots=True)
class Update:
    """One optimizer step: which batch, and which block of its partition each rank computes."""

    index: int
    """0 for the first update of the run."""
    epoch: int
    batch: int
    """Which of the fixed batches."""
    rows: int
    """Rows of the global batch."""
    shards: tuple[tuple[int, int], ...]
    """Per rank the half-open block (start, stop) of its partition; may be empty."""
    ends_epoch: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole run, as data. Equal inputs give an equal plan on every platform."""

    train_rows: int
    batch: int
    epochs: int
    seed: int
    weights: tuple[int, ...]

    @property
    def batch_count(self) -> int:
        """Batches, and so updates, of one epoch; the last may be short."""
        return -(-self.train_rows // self.batch)

    @property
    def update_count(self) -> int:
        """Updates of the whole run."""
        return self.batch_count * self.epochs

    @property
    def row_count(self) -> int:
        """Rows that produce a gradient over the whole run, counted once an epoch."""
        return self.train_rows * self.epochs

    def rows_from(self, update: int) -> int:
        """Return the rows of all updates from number `update` on."""
        return sum(item.rows for item in self.updates(update)) if update else self.row_count

    def batch_rows(self, batch: int) -> int:
        """Return the rows of one global batch."""
        return min(self.batch, self.train_rows - batch * self.batch)

    def order(self) -> NDArray[np.int64]:
        """Return the seeded permutation of the training rows that the batches are cut from."""
        return permutation(self.seed, "rows", self.train_rows)

    def batch_order(self, epoch: int) -> NDArray[np.int64]:
        """Return the order in which an epoch visits the batches."""
        return permutation(self.seed, f"batches of epoch {epoch}", self.batch_count)

    def partition(self, rank: int) -> NDArray[np.int64]:
        """Return the training rows that a rank holds, in the order of its shards."""
        order = self.order()
        pieces = [order[:0]]
        for batch in range(self.batch_count):
            counts = shard_rows(self.batch_rows(batch), self.weights)
            start = batch * self.batch + sum(counts[:rank])
            pieces.append(order[start : start + counts[rank]])
        return np.concatenate(pieces)

    def runs(self, rank: int) -> list[tuple[int, int]]:
        """Return the rows of `partition` as (first, count), where the training rows lie in the plan's order."""
        runs: list[tuple[int, int]] = []
        for batch in range(self.batch_count):
            counts = shard_rows(self.batch_rows(batch), self.weights)
            runs.append((batch * self.batch + sum(counts[:rank]), counts[rank]))
        return runs

    def updates(self, start: int = 0) -> Iterator[Update]:
        """Yield the updates from number `start` on; cheap, and repeatable."""
        blocks = self._blocks()
        for epoch in range(start // self.batch_count, self.epochs):
            for position, batch in enumerate(self.batch_order(epoch).tolist()):
                index = epoch * self.batch_count + position
                if index >= start:
                    yield Update(
                        index=index,
                        epoch=epoch,
                        batch=batch,
                        rows=self.batch_rows(batch),
                        shards=blocks[batch],
                        ends_epoch=position == self.batch_count - 1,
                    )

    def rank_rows(self) -> tuple[int, ...]:
        """Return the rows that each rank answers for in one epoch, without going through the batches."""
        full = shard_rows(self.batch, self.weights)
        last = shard_rows(self.batch_rows(self.batch_count - 1), self.weights)
        return tuple(whole * (self.batch_count - 1) + rest for whole, rest in zip(full, last, strict=True))

    def blocks(self, rank: int) -> list[tuple[int, int]]:
        """Return the block of a rank's partition for each batch, by number of batch."""
        return [shards[rank] for shards in self._blocks()]

    def _blocks(self) -> list[tuple[tuple[int, int], ...]]:
        full = shard_rows(self.batch, self.weights)
        blocks: list[tuple[tuple[int, int], ...]] = []
        for batch in range(self.batch_count):
            rows = self.batch_rows(batch)
            counts = full if rows == self.batch else shard_rows(rows, self.weights)
            blocks.append(
                tuple((batch * full[rank], batch * full[rank] + count) for rank, count in enumerate(counts))
            )
        return blocks

    @property
    def plan_id(self) -> str:
        """SHA-256 over the plan's inputs, its tail rule and the order of its rows, hexadecimal."""
        inputs = [self.train_rows, self.batch, self.epochs, self.seed, list(self.weights), TAIL_RULE]
        digest = hashlib.sha256(canonical_json(inputs))
        digest.update(self.order().astype("<i8").tobytes())
        return digest.hexdigest()

    def _repr_html_(self) -> str:
        from aner_nb.views import plan_html

        return plan_html(self)

    def describe(self) -> str:
        """Return the plan in words and one table: who gets which share of which batch."""
        full = shard_rows(min(self.batch, self.train_rows), self.weights)
        last = shard_rows(self.batch_rows(self.batch_count - 1), self.weights)
        held = self.rank_rows()
        lines = [
            f"{self.train_rows:,} training rows in {self.batch_count:,} batches of {self.batch:,}; "
            f"{self.epochs:,} epochs, {self.update_count:,} updates. Tail: {TAIL_RULE}.",
            f"{'rank':>4} {'weight':>7} {'rows a batch':>13} {'in the last batch':>18} {'partition':>10}",
        ]
        for rank, weight in enumerate(self.weights):
            lines.append(f"{rank:>4} {weight:>7} {full[rank]:>13,} {last[rank]:>18,} {held[rank]:>10,}")
        return "\n".join(lines)


def make_plan(case: Case, train_rows: int) -> Plan:
    """Return the plan of a case over `train_rows` training rows."""
    return Plan(train_rows, min(case.batch, train_rows), case.epochs, case.seed, case.weights)
