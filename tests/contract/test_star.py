"""The star: sums in rank order whatever the order of arrival, and nothing goes missing."""

from __future__ import annotations

import numpy as np
import pytest

from aner_nb.backends.base import GradientSum
from aner_nb.channels.base import AbstractChannel
from aner_nb.collectives.star import StarCollective
from aner_nb.errors import ContractBroken, DeadlineExceeded
from aner_nb.plan import Plan, Update


class Scripted(AbstractChannel):
    """Answers after a number of polls."""

    kind = "scripted"
    encryption = ""
    payload_bytes = 0

    def __init__(self, rank: int, gradient: np.ndarray, after: int, lie: int = 0) -> None:
        self.rank = rank
        self._gradient, self._after, self._lie, self._block = gradient, after, lie, (0, 0)

    def post(self, update: int, block: tuple[int, int]) -> None:
        self._block = block

    def poll(self) -> GradientSum | None:
        self._after -= 1
        if self._after >= 0:
            return None
        rows = self._block[1] - self._block[0] + self._lie
        return GradientSum(rows, float(rows), self._gradient, (0, 0, 0, 0))

    def fileno(self) -> int:
        return -1

    def close(self) -> dict[str, object]:
        return {}

    def abort(self) -> None:
        pass


def first_update(ranks: int) -> Update:
    return next(Plan(10, 10, 1, 0, (1,) * ranks).updates())


def star(channels: list[Scripted], deadline: float = 5) -> StarCollective:
    return StarCollective(np.zeros(8, np.float32), channels, deadline_seconds=deadline)


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 40])
def test_the_sum_is_that_of_rank_order_to_the_bit(ranks: int) -> None:
    random = np.random.default_rng(ranks)
    gradients = random.standard_normal((ranks, 8)) * 10.0 ** random.integers(-8, 8, (ranks, 8))
    expected = gradients[0].copy()
    for gradient in gradients[1:]:
        expected += gradient
    for arrival in (range(ranks), reversed(range(ranks)), random.permutation(ranks)):
        channels = [Scripted(rank, gradients[rank], int(after)) for rank, after in enumerate(arrival)]
        exchange = star(channels).exchange(first_update(ranks))
        total = np.empty(8)
        exchange.sum_into(slice(None), total)
        np.testing.assert_array_equal(total, expected)
        half = np.empty(3)
        exchange.sum_into(slice(2, 5), half)
        np.testing.assert_array_equal(half, expected[2:5])
        assert exchange.rows == 10
        assert exchange.loss_sum == 10.0


def test_ranks_without_rows_take_part() -> None:
    update = next(Plan(2, 2, 1, 0, (1, 1, 1)).updates())
    channels = [Scripted(rank, np.ones(8), 0) for rank in range(3)]
    assert star(channels).exchange(update).rows == 2


def test_a_wrong_count_of_rows_breaks_the_contract() -> None:
    channels = [Scripted(0, np.ones(8), 0), Scripted(1, np.ones(8), 0, lie=1)]
    with pytest.raises(
        ContractBroken, match="rank 1: the rank answered for 6 rows in update 0, its shard has 5"
    ):
        star(channels).exchange(first_update(2))


def test_a_silent_rank_is_named_after_the_deadline() -> None:
    channels = [Scripted(0, np.ones(8), 0), Scripted(1, np.ones(8), 10**9)]
    with pytest.raises(DeadlineExceeded, match="rank 1: no reply in update 0 for 0.2 s"):
        star(channels, deadline=0.2).exchange(first_update(2))


def test_the_check_can_end_the_waiting() -> None:
    def check() -> None:
        raise ContractBroken("stop")

    channels = [Scripted(0, np.ones(8), 10**9)]
    collective = StarCollective(np.zeros(8), channels, deadline_seconds=9, check=check)
    with pytest.raises(ContractBroken, match="stop"):
        collective.exchange(first_update(1))
