"""How long an update will take, and which shares make it shortest: pure, from measured costs.

The model of one update of a star with ranks r that take n_r of the batch's rows:

    T = max over r of (overhead_r + n_r * row_r)  +  apply  +  exchange * (ranks - 1)

A rank's cost is a straight line in its rows, fitted to a calibration. ``apply`` is the coordinator's pass over the
parameters and ``exchange`` what each further rank adds to writing and reading.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

_MAX_RANKS: Final = 8
_WEIGHT_STEPS: Final = 1000


@dataclass(frozen=True, slots=True)
class RankCost:
    """What a rank needs for a request of n rows: ``overhead_s + n * row_s`` seconds."""

    overhead_s: float
    row_s: float
    error_s: float = 0.0
    """Root mean square of the calibration's residuals."""

    def seconds(self, rows: float) -> float:
        """Return the predicted time for so many rows; a rank with no rows still answers."""
        return self.overhead_s + rows * self.row_s

    @property
    def rows_per_second(self) -> float:
        """Speed without overhead."""
        return 1.0 / self.row_s


@dataclass(frozen=True, slots=True)
class CoordinatorCost:
    """What the coordinator adds to an update."""

    apply_s: float
    exchange_s: float
    """For each rank after the first."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted update of one choice of ranks."""

    ranks: tuple[int, ...]
    """Indices into the costs that were given."""
    shares: tuple[int, ...]
    """Rows of each of them."""
    update_s: float
    error_s: float
    bottleneck: str
    """In words: what most of the update goes to."""


def fit_cost(samples: Sequence[tuple[int, float]]) -> RankCost:
    """Fit a rank's cost to (rows, seconds) samples by least squares on relative errors.

    With one distinct number of rows, all of the time counts as proportional to the rows.

    Raises
    ------
    ValueError
        If there are no samples with rows.
    """
    usable = [(rows, seconds) for rows, seconds in samples if rows > 0]
    if not usable:
        raise ValueError("no samples with rows")
    rows = np.array([item[0] for item in usable], float)
    seconds = np.array([item[1] for item in usable], float)
    if len(set(rows.tolist())) == 1:
        return RankCost(0.0, float(np.median(seconds) / rows[0]), float(seconds.std()))
    weights = 1.0 / seconds
    columns = np.stack([weights, rows * weights], axis=1)
    (overhead, row), *_ = np.linalg.lstsq(columns, np.ones(len(rows)), rcond=None)
    if overhead < 0:
        overhead, row = 0.0, float(np.median(seconds / rows))
    row = max(float(row), 1e-12)
    residuals = seconds - (overhead + row * rows)
    return RankCost(float(overhead), row, float(np.sqrt(np.mean(residuals**2))))


def fit_together(alone: RankCost, samples: Sequence[tuple[int, float]]) -> RankCost:
    """Fit a rank's cost while all ranks compute, to (rows, seconds) samples.

    Company shares memory, caches and cores, so it adds to the cost alone and never takes from it: without that
    bound, the noise of two separate fits would let a group pay at any batch. The extra cost ``d + c * rows`` is
    fitted by least squares on relative errors with d and c not negative.
    """
    rows = np.array([item[0] for item in samples], float)
    seconds = np.array([item[1] for item in samples], float)
    extra = (seconds - alone.overhead_s - alone.row_s * rows) / seconds
    fixed, growing = 1.0 / seconds, rows / seconds
    candidates = [
        (0.0, max(0.0, float(extra @ growing / (growing @ growing)))),
        (max(0.0, float(extra @ fixed / (fixed @ fixed))), 0.0),
    ]
    if len(set(rows.tolist())) > 1:
        (d, c), *_ = np.linalg.lstsq(np.stack([fixed, growing], axis=1), extra, rcond=None)
        if d >= 0 and c >= 0:
            candidates = [(float(d), float(c))]
    d, c = min(candidates, key=lambda pair: float(np.sum((extra - pair[0] * fixed - pair[1] * growing) ** 2)))
    residuals = seconds - (alone.overhead_s + d + (alone.row_s + c) * rows)
    return RankCost(alone.overhead_s + d, alone.row_s + c, float(np.sqrt(np.mean(residuals**2))))


def best_shares(costs: Sequence[RankCost], rows: int) -> tuple[int, ...]:
    """Return the whole-number shares of `rows` that make the slowest rank as quick as can be.

    A rank whose overhead alone is more than the balanced time gets 0. Shares sum to `rows`. The balanced time is
    where sum over r of max(0, (T - overhead_r) / row_r) equals the rows; it is found by adding ranks in order of
    overhead, and rounded to whole rows greedily, each next row to the rank that it makes finish first.

    Examples
    --------
    >>> best_shares([RankCost(0.0, 1e-4), RankCost(0.0, 3e-4)], 400)
    (300, 100)
    """
    order = sorted(range(len(costs)), key=lambda rank: costs[rank].overhead_s)
    balanced = math.inf
    speed = backlog = 0.0
    for rank in order:
        if costs[rank].overhead_s >= balanced:
            break
        speed += costs[rank].rows_per_second
        backlog += costs[rank].rows_per_second * costs[rank].overhead_s
        balanced = (rows + backlog) / speed
    shares = [max(0, math.floor((balanced - cost.overhead_s) / cost.row_s + 1e-9)) for cost in costs]
    while sum(shares) > rows:
        shares[max(range(len(costs)), key=lambda rank: shares[rank])] -= 1
    for _ in range(rows - sum(shares)):
        shares[min(range(len(costs)), key=lambda rank: costs[rank].seconds(shares[rank] + 1))] += 1
    return tuple(shares)


def weights_for(shares: Sequence[int]) -> tuple[int, ...]:
    """Return the smallest whole-number weights in the proportion of the shares; every weight at least 1."""
    if max(shares) > _WEIGHT_STEPS:
        total = sum(shares)
        shares = [round(share * _WEIGHT_STEPS / total) for share in shares]
    positive = [max(1, share) for share in shares]
    divisor = math.gcd(*positive)
    return tuple(share // divisor for share in positive)


def predict(
    costs: Sequence[RankCost],
    coordinator: CoordinatorCost,
    rows: int,
    ranks: Sequence[int],
    shares: Sequence[int] | None = None,
) -> Prediction:
    """Predict the update of some of the ranks; with the best shares unless `shares` says which."""
    own = [costs[rank] for rank in ranks]
    chosen = tuple(shares) if shares is not None else best_shares(own, rows)
    times = [cost.seconds(share) for cost, share in zip(own, chosen, strict=True)]
    slowest = max(range(len(own)), key=lambda index: times[index])
    central = coordinator.apply_s + coordinator.exchange_s * (len(own) - 1)
    total = times[slowest] + central
    return Prediction(
        tuple(ranks),
        chosen,
        total,
        own[slowest].error_s,
        _bottleneck(own[slowest], chosen[slowest], central, total),
    )


def _bottleneck(cost: RankCost, rows: int, central: float, total: float) -> str:
    parts = {
        "computing the rows": rows * cost.row_s,
        "fixed cost of a request": cost.overhead_s,
        "coordinator and exchange": central,
    }
    name = max(parts, key=lambda part: parts[part])
    return f"{name} ({parts[name] / total:.0%} of the update)"


def rank_choices(count: int) -> list[tuple[int, ...]]:
    """Return every standalone and every group of `count` ranks, smaller ones first.

    Raises
    ------
    ValueError
        For more than 8 ranks: there would be too many groups to be of use.
    """
    if count > _MAX_RANKS:
        raise ValueError(f"{count} ranks make too many groups; give at most {_MAX_RANKS}")
    return [choice for size in range(1, count + 1) for choice in itertools.combinations(range(count), size)]


def break_even_rows(
    costs: Sequence[RankCost],
    coordinator: CoordinatorCost,
    *,
    together: Sequence[RankCost] | None = None,
    least: int = 1,
    limit: int = 2**22,
) -> int | None:
    """Return the smallest batch, from `least` on, from which the group of all ranks beats its fastest member alone.

    `costs` are the ranks' while the others idle, `together` while all compute; None: the same. The result is None
    if it is not below `limit` rows. Found by doubling and bisection, since the advantage grows with the rows.
    """
    everyone = tuple(range(len(costs)))

    def pays(rows: int) -> bool:
        group = predict(together or costs, coordinator, rows, everyone).update_s
        alone = min(predict(costs, coordinator, rows, (rank,)).update_s for rank in everyone)
        return group < alone

    low, high = least - 1, least
    while not pays(high):
        low, high = high, high * 2
        if high > limit:
            return None
    while high - low > 1 and high > least:
        middle = (low + high) // 2
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high
