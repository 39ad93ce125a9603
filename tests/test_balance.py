"""Shares, predictions and break-even of the balance model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aner_nb.balance import (
    CoordinatorCost,
    RankCost,
    best_shares,
    break_even_rows,
    fit_cost,
    fit_together,
    predict,
    rank_choices,
    weights_for,
)

costs = st.builds(RankCost, st.floats(0, 0.01), st.floats(1e-7, 1e-3))


def test_equal_ranks_share_equally() -> None:
    assert best_shares([RankCost(1e-3, 1e-5)] * 2, 512) == (256, 256)


def test_a_rank_whose_overhead_exceeds_the_balanced_time_gets_nothing() -> None:
    assert best_shares([RankCost(0, 1e-5), RankCost(1.0, 1e-5)], 100) == (100, 0)


@given(st.lists(costs, min_size=1, max_size=5), st.integers(0, 5000))
def test_shares_sum_to_the_rows(ranks: list[RankCost], rows: int) -> None:
    shares = best_shares(ranks, rows)
    assert sum(shares) == rows
    assert min(shares) >= 0


@given(st.lists(costs, min_size=2, max_size=3), st.integers(1, 60))
def test_no_single_row_moved_makes_it_quicker(ranks: list[RankCost], rows: int) -> None:
    shares = best_shares(ranks, rows)
    busy = [rank.seconds(share) for rank, share in zip(ranks, shares, strict=True) if share]
    for giver in range(len(ranks)):
        for taker in range(len(ranks)):
            if giver != taker and shares[giver]:
                moved = list(shares)
                moved[giver] -= 1
                moved[taker] += 1
                other = [rank.seconds(share) for rank, share in zip(ranks, moved, strict=True) if share]
                assert max(busy) <= max(other) * (1 + 1e-9) + 1e-12


def test_fit_recovers_the_line() -> None:
    cost = fit_cost([(rows, 2e-4 + rows * 3e-6) for rows in (64, 128, 256, 512)])
    assert cost.overhead_s == pytest.approx(2e-4)
    assert cost.row_s == pytest.approx(3e-6)
    assert cost.error_s == pytest.approx(0, abs=1e-12)


def test_fit_never_gives_a_negative_overhead() -> None:
    assert fit_cost([(100, 1.0), (200, 3.0)]).overhead_s == 0.0


def test_fit_needs_rows() -> None:
    with pytest.raises(ValueError, match="no samples"):
        fit_cost([(0, 1.0)])


def test_weights_are_reduced_and_at_least_one() -> None:
    assert weights_for((256, 256)) == (1, 1)
    assert weights_for((0, 7)) == (1, 7)
    assert weights_for((300, 100)) == (3, 1)
    assert max(weights_for((100_000, 50_001))) <= 1000


def test_prediction_of_a_pair() -> None:
    found = predict([RankCost(1e-3, 1e-5)] * 2, CoordinatorCost(1e-3, 5e-4), 1000, (0, 1))
    assert found.shares == (500, 500)
    assert found.update_s == pytest.approx(1e-3 + 5e-3 + 1e-3 + 5e-4)
    assert found.bottleneck == "computing the rows (67% of the update)"


def test_choices_are_all_subsets_small_ones_first() -> None:
    assert rank_choices(3) == [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)]
    with pytest.raises(ValueError, match="too many"):
        rank_choices(9)


def test_break_even_is_where_half_the_rows_save_the_exchange() -> None:
    pair = [RankCost(0, 1e-5)] * 2
    assert break_even_rows(pair, CoordinatorCost(0, 1e-3)) == 202
    assert break_even_rows([RankCost(0, 1e-5)], CoordinatorCost(0, 1e-3)) is None


def test_break_even_is_not_looked_for_below_what_was_measured() -> None:
    pair = [RankCost(0.0, 1e-5)] * 2
    free = CoordinatorCost(0.0, 0.0)
    assert break_even_rows(pair, free, least=64) == 64
    assert break_even_rows(pair, free) == 2
    assert break_even_rows(pair, CoordinatorCost(0.0, 1e-3), least=64) == 202


def test_company_never_makes_a_rank_cheaper() -> None:
    alone = RankCost(1e-3, 1e-5)
    noisy = fit_together(alone, [(64, 1.5e-3), (128, 2.9e-3), (256, 5.6e-3)])
    assert noisy.overhead_s >= alone.overhead_s
    assert noisy.row_s > alone.row_s
    assert fit_together(alone, [(64, 1e-4), (128, 1e-4)]).seconds(100) == alone.seconds(100)


def test_the_extra_cost_of_company_is_recovered() -> None:
    alone = RankCost(1e-3, 1e-5)
    line = [(rows, 1.5e-3 + rows * 1.4e-5) for rows in (64, 128, 256)]
    found = fit_together(alone, line)
    assert found.overhead_s == pytest.approx(1.5e-3)
    assert found.row_s == pytest.approx(1.4e-5)
    assert found.error_s < 1e-12
