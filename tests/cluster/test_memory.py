"""A rank's memory: flat over thousands of updates, and no more than a few copies of its parameters."""

from __future__ import annotations

import pytest

import aner_nb as aner

pytestmark = [pytest.mark.cluster, pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(300)]


def test_memory_is_flat_over_ten_thousand_updates(cluster: aner.Cluster) -> None:
    case = aner.Case(
        "steady",
        data=aner.iris(),
        layers=[16, 3],
        batch=9,
        epochs=1000,
        split=(0.6, 0.2, 0.2),
        ranks=["cpu:1"],
    )
    receipt = aner.run(case, cluster).raise_unless_passed().receipt
    assert receipt.counts is not None
    assert receipt.counts.updates == 10_000
    resident = receipt.ranks[0].memory.rss_by_epoch_bytes
    half = len(resident) // 2  # threads get their arenas, and caches fill, in the first seconds
    assert (
        resident[-1] - resident[half]
    ) / 5000 < 100  # bytes an update; a leak of one gradient would be 460


@pytest.mark.long
def test_a_rank_holds_its_rows_and_few_copies_of_the_parameters(cluster: aner.Cluster) -> None:
    small, large = (
        aner.Case(
            f"units-{units}",
            data=aner.teacher(2000, 1000, 10),
            layers=[units, 10],
            batch=100,
            epochs=2,
            ranks=["cpu:1"],
        )
        for units in (8, 6000)
    )
    peaks = []
    for case in (small, large):
        receipt = aner.run(case, cluster).raise_unless_passed().receipt
        peaks.append(receipt.ranks[0].memory.worker_rss_high_water_bytes)
        parameters = receipt.counts.parameters if receipt.counts else 0
    # The shared mapping counts as well: the wire in float32 and the slot in float64 are three of the copies.
    bytes_of_parameters = parameters * 4
    slack = 40 * 2**20  # code that the larger case loads, activations, allocator
    assert peaks[1] - peaks[0] <= 7 * bytes_of_parameters + slack
