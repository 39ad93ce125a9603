"""The plan: exact shards, equal rows for groups and standalone, seeded orders."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import aner_nb as aner
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
    assert all(
        abs(count - rows * share / sum(shares)) < 1 for count, share in zip(counts, shares, strict=True)
    )


@pytest.mark.parametrize(
    ("rows", "shares", "expected"),
    [
        (30, (1, 7), (4, 26)),
        (8, (1, 7), (1, 7)),
        (1, (1, 1, 1), (1, 0, 0)),
        (5, (1, 1), (3, 2)),
        (0, (2, 3), (0, 0)),
    ],
)
def test_the_tail_goes_by_largest_remainder(
    rows: int, shares: tuple[int, ...], expected: tuple[int, ...]
) -> None:
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
    assert (
        Plan(90, 30, 5, 0, (1, 7)).plan_id
        == "8859ed20144858c8ba0ed528f28b31e4403cc0baa876c90b1ce7d49a52d0aa85"
    )
    assert Plan(90, 30, 5, 1, (1, 7)).plan_id != Plan(90, 30, 5, 0, (1, 7)).plan_id


def test_a_plan_describes_itself() -> None:
    text = Plan(95, 30, 2, 0, (1, 7)).describe()
    assert "95 training rows in 4 batches of 30; 2 epochs, 8 updates" in text
    assert "largest remainder" in text


# ---------------------------------------------------------------- shards


@given(st.integers(0, 10_000), weights)
def test_a_larger_weight_never_takes_fewer_rows(rows: int, shares: tuple[int, ...]) -> None:
    counts = shard_rows(rows, shares)
    by_weight = sorted(zip(shares, counts, strict=True))
    assert [count for _, count in by_weight] == sorted(counts)


@given(st.integers(0, 10_000), weights, st.integers(2, 9))
def test_only_the_ratio_of_the_weights_counts(rows: int, shares: tuple[int, ...], factor: int) -> None:
    assert shard_rows(rows, [share * factor for share in shares]) == shard_rows(rows, shares)


@pytest.mark.parametrize(
    ("rows", "shares", "expected"),
    [
        (8, (1, 1, 1), (3, 3, 2)),
        (10, (1, 2, 4), (1, 3, 6)),  # 1.43, 2.86, 5.71: the tail to ranks 1 and 2
        (3, (1, 1, 1, 1, 1), (1, 1, 1, 0, 0)),
        (2, (1, 1_000_000), (0, 2)),
        (10**15, (1, 2), (333333333333333, 666666666666667)),
    ],
)
def test_shares_are_exact_whole_numbers(
    rows: int, shares: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert shard_rows(rows, shares) == expected


# ---------------------------------------------------------------- batches


def test_one_to_seven() -> None:
    plan = Plan(90, 30, 1, 0, (1, 7))
    assert [update.shards for update in sorted(plan.updates(), key=lambda update: update.batch)] == [
        ((0, 4), (0, 26)),
        ((4, 8), (26, 52)),
        ((8, 12), (52, 78)),
    ]
    assert [len(plan.partition(rank)) for rank in (0, 1)] == [12, 78]


def test_a_rank_without_rows_still_has_its_empty_shard() -> None:
    plan = Plan(4, 2, 1, 0, (1, 1, 1, 1))
    assert {update.shards for update in plan.updates()} == {
        ((0, 1), (0, 1), (0, 0), (0, 0)),
        ((1, 2), (1, 2), (0, 0), (0, 0)),
    }
    assert [plan.partition(rank).tolist() for rank in (2, 3)] == [[], []]


def test_the_last_batch_is_short_and_visited_in_its_turn() -> None:
    plan = Plan(95, 30, 8, 0, (1, 1))
    assert [plan.batch_rows(batch) for batch in range(plan.batch_count)] == [30, 30, 30, 5]
    updates = list(plan.updates())
    assert {update.rows for update in updates if update.batch == 3} == {5}
    assert {update.shards for update in updates if update.batch == 3} == {((45, 48), (45, 47))}
    assert len({update.index % 4 for update in updates if update.batch == 3}) > 1
    assert (plan.update_count, plan.row_count) == (32, 760)


def test_a_short_batch_may_give_a_rank_more_than_a_full_one() -> None:
    # Largest remainder does so at times (the Alabama paradox); the shards still lie side by side.
    assert (shard_rows(3, (1, 3, 3)), shard_rows(4, (1, 3, 3))) == ((1, 1, 1), (0, 2, 2))
    plan = Plan(7, 4, 1, 0, (1, 3, 3))
    partitions = [plan.partition(rank).tolist() for rank in range(3)]
    assert sorted(sum(partitions, [])) == list(range(7))
    last = next(update for update in plan.updates() if update.rows == 3)
    assert [stop for _, stop in last.shards] == [len(rows) for rows in partitions]


@given(plans)
def test_the_shards_of_a_rank_tile_its_partition(plan: Plan) -> None:
    for rank in range(len(plan.weights)):
        blocks = plan.blocks(rank)
        assert len(blocks) == plan.batch_count
        assert [start for start, _ in blocks] == [0, *(stop for _, stop in blocks[:-1])]
        assert blocks[-1][1] == len(plan.partition(rank))
        for update in plan.updates():
            assert update.shards[rank] == blocks[update.batch]


@given(plans)
def test_every_epoch_takes_every_row_once(plan: Plan) -> None:
    partitions = [plan.partition(rank) for rank in range(len(plan.weights))]
    for epoch in range(plan.epochs):
        updates = [update for update in plan.updates() if update.epoch == epoch]
        assert sorted(update.batch for update in updates) == list(range(plan.batch_count))
        assert [update.ends_epoch for update in updates] == [False] * (plan.batch_count - 1) + [True]
        rows = [
            partitions[rank][start:stop]
            for update in updates
            for rank, (start, stop) in enumerate(update.shards)
        ]
        assert sorted(np.concatenate(rows).tolist()) == list(range(plan.train_rows))


# ---------------------------------------------------------------- seeds and identity


def test_orders_are_pinned() -> None:
    plan = Plan(10, 3, 2, 7, (1,))
    assert plan.order().tolist() == [6, 0, 9, 4, 2, 7, 5, 1, 3, 8]
    assert [plan.batch_order(epoch).tolist() for epoch in (0, 1)] == [[3, 2, 0, 1], [2, 3, 0, 1]]


def test_weights_change_neither_the_order_nor_the_batches() -> None:
    alone, group = Plan(95, 30, 3, 4, (1,)), Plan(95, 30, 3, 4, (3, 1, 9))
    np.testing.assert_array_equal(alone.order(), group.order())
    assert [update.batch for update in alone.updates()] == [update.batch for update in group.updates()]


@pytest.mark.parametrize(
    "other",
    [
        Plan(91, 30, 5, 0, (1, 7)),
        Plan(90, 31, 5, 0, (1, 7)),
        Plan(90, 30, 6, 0, (1, 7)),
        Plan(90, 30, 5, 1, (1, 7)),
        Plan(90, 30, 5, 0, (7, 1)),
        Plan(90, 30, 5, 0, (2, 14)),
    ],
)
def test_any_other_input_has_another_plan_id(other: Plan) -> None:
    assert other.plan_id != Plan(90, 30, 5, 0, (1, 7)).plan_id


def test_the_plan_of_a_case_has_no_batch_beyond_its_rows() -> None:
    case = aner.Case(
        "a", data=aner.iris(), layers=[3], batch=512, epochs=2, seed=3, ranks=["cpu", ("cpu", 7)]
    )
    assert aner.make_plan(case, 90) == Plan(90, 90, 2, 3, (1, 7))
    assert aner.make_plan(case, 600) == Plan(600, 512, 2, 3, (1, 7))


# ---------------------------------------------------------------- in words


def test_the_description_is_pinned() -> None:
    assert Plan(1095, 300, 2, 0, (1, 7)).describe() == (
        "1,095 training rows in 4 batches of 300; 2 epochs, 8 updates. "
        "Tail: largest remainder, ties to the lower rank.\n"
        "rank  weight  rows a batch  in the last batch  partition\n"
        "   0       1            38                 24        138\n"
        "   1       7           262                171        957"
    )


@given(plans)
def test_the_description_adds_up(plan: Plan) -> None:
    lines = plan.describe().splitlines()[2:]
    held = [int(line.split()[-1].replace(",", "")) for line in lines]
    assert held == [len(plan.partition(rank)) for rank in range(len(plan.weights))]


# ---------------------------------------------------------------- going on


@pytest.mark.parametrize(("start", "expected"), [(0, 190), (1, None), (4, 95), (7, None), (8, 0), (99, 0)])
def test_the_rows_that_are_left(start: int, expected: int | None) -> None:
    plan = Plan(95, 30, 2, 0, (1, 7))
    left = [update.rows for update in plan.updates(start)]
    assert plan.rows_from(start) == sum(left)
    assert expected is None or plan.rows_from(start) == expected
    assert len(left) == max(8 - start, 0)
