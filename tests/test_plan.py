"""The plan: exact shards, equal rows for groups and standalone, seeded orders."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aner_nb.plan import Plan, shard_rows

weights = st.lists(st.integers(1, 1_000_000), min_size=1, max_size=9).map(tuple)
plans = st.builds(
    Plan,
    train_rows=st.integers(1, 80),
    batch=st.integers(1, 30),
    epochs=st.integers(1, 3),
    seed=st.integers(0, 5),
    weights=st.lists(st.integers(1, 9), min_size=1, max_size=5).map(tuple),
)


@given(st.integers(0, 10_000), weights)
def test_shards_partition_a_batch_exactly(rows: int, shares: tuple[int, ...]) -> None:
    counts = shard_rows(rows, shares)
    assert sum(counts) == rows
    assert all(abs(count - rows * share / sum(shares)) < 1 for count, share in zip(counts, shares, strict=True))


@pytest.mark.parametrize(
    ("rows", "shares", "expected"),
    [(30, (1, 7), (4, 26)), (8, (1, 7), (1, 7)), (1, (1, 1, 1), (1, 0, 0)), (5, (1, 1), (3, 2)), (0, (2, 3), (0, 0))],
)
def test_the_tail_goes_by_largest_remainder(rows: int, shares: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert shard_rows(rows, shares) == expected


@given(plans)
def test_partitions_are_disjoint_and_hold_every_row(plan: Plan) -> None:
    held = np.concatenate([plan.partition(rank) for rank in range(len(plan.weights))])
    assert sorted(held.tolist()) == list(range(plan.train_rows))


@given(plans)
def test_a_group_sees_the_rows_of_the_standalone_run_in_order(plan: Plan) -> None:
    alone = Plan(plan.train_rows, plan.batch, plan.epochs, plan.seed, (1,))
    partitions = [plan.partition(rank) for rank in range(len(plan.weights))]
    for ours, theirs in zip(plan.updates(), alone.updates(), strict=True):
        rows = [partitions[rank][start:stop] for rank, (start, stop) in enumerate(ours.shards)]
        expected = alone.partition(0)[slice(*theirs.shards[0])]
        assert np.concatenate(rows).tolist() == expected.tolist()
        assert ours.rows == len(expected)


@given(plans)
def test_counts_are_known_beforehand(plan: Plan) -> None:
    updates = list(plan.updates())
    assert len(updates) == plan.update_count
    assert sum(update.rows for update in updates) == plan.row_count
    assert [update.index for update in updates] == list(range(len(updates)))
    assert sum(update.ends_epoch for update in updates) == plan.epochs


@given(plans, st.integers(0, 30))
def test_going_on_is_a_suffix(plan: Plan, start: int) -> None:
    updates = list(plan.updates())
    assert list(plan.updates(start)) == updates[start:]
    assert plan.rows_from(start) == sum(update.rows for update in updates[start:])


def test_every_epoch_visits_every_batch_in_an_order_of_its_own() -> None:
    plan = Plan(100, 10, 2, 0, (1,))
    first, second = (plan.batch_order(epoch).tolist() for epoch in (0, 1))
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second


def test_the_plan_id_is_the_same_everywhere() -> None:
    assert Plan(90, 30, 5, 0, (1, 7)).plan_id == "8859ed20144858c8ba0ed528f28b31e4403cc0baa876c90b1ce7d49a52d0aa85"
    assert Plan(90, 30, 5, 1, (1, 7)).plan_id != Plan(90, 30, 5, 0, (1, 7)).plan_id


def test_a_plan_describes_itself() -> None:
    text = Plan(95, 30, 2, 0, (1, 7)).describe()
    assert "95 training rows in 4 batches of 30; 2 epochs, 8 updates" in text
    assert "largest remainder" in text
