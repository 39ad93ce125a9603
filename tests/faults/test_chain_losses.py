"""Five ranks over sockets form a chain: the star's bits, and a rank killed in the middle is the one that is named."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import aner_nb as aner
from aner_nb import session
from aner_nb.events import StageEntered

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
RANKS = 5
MIDDLE = 2


@pytest.fixture(scope="module")
def five() -> Iterator[aner.Cluster]:
    """A cluster on which small sums are chained too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "SMALLEST_CHAINED", 1)
        with aner.local_cluster(["numpy:1"] * RANKS) as started:
            yield started


def case(**changes: Any) -> aner.Case:
    fields: dict[str, Any] = {
        "layers": [33, 10],
        "batch": 60,
        "epochs": 2,
        "dtype": "float64",
        "ranks": ["numpy"] * RANKS,
        "channel": "socket",
    }
    return aner.Case("chain", data=aner.digits(), **{**fields, **changes})


def test_a_chain_ends_with_the_bits_of_the_star(five: aner.Cluster) -> None:
    trial = aner.run(case(), five).raise_unless_passed()
    assert trial.receipt.reduction == "chain, rank order"
    assert {rank.channel for rank in trial.receipt.ranks} == {"socket"}
    star = aner.run(case(channel="inline")).raise_unless_passed()
    assert star.receipt.reduction == "star, rank order"
    np.testing.assert_array_equal(trial.parameters, star.parameters)
    assert trial.steps is not None and star.steps is not None
    np.testing.assert_array_equal(trial.steps.loss, star.steps.loss)
    np.testing.assert_array_equal(trial.steps.rows, star.steps.rows)
    alone = aner.run(case(channel="inline", ranks=["numpy"])).raise_unless_passed()
    np.testing.assert_allclose(trial.parameters, alone.parameters, rtol=1e-9, atol=1e-12)


def test_small_sums_and_few_ranks_stay_a_star(five: aner.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    assert aner.run(case(epochs=1, ranks=["numpy"] * 4), five).receipt.reduction == "star, rank order"
    monkeypatch.setattr(session, "SMALLEST_CHAINED", 33 * 64 + 33 + 330 + 10 + 1)
    assert aner.run(case(epochs=1), five).receipt.reduction == "star, rank order"


def test_a_rank_killed_in_the_middle_is_named_within_seconds(five: aner.Cluster) -> None:
    killed: list[float] = []

    def kill() -> None:
        time.sleep(0.3)
        client: Any = five._client
        worker = five.match([aner.Placement("numpy")] * RANKS)[MIDDLE].worker
        addresses = [
            at
            for at, facts in client.scheduler_info(n_workers=-1)["workers"].items()
            if facts["name"] == worker
        ]
        (pid,) = client.run(os.getpid, workers=addresses).values()
        killed.append(time.monotonic())
        os.kill(pid, signal.SIGKILL)

    def see(event: object) -> None:
        if isinstance(event, StageEntered) and event.stage == "training" and not killed:
            threading.Thread(target=kill).start()

    trial = aner.run(case(epochs=3000), five, subscribers=[see])
    assert killed, trial.error
    assert time.monotonic() - killed[0] < 5
    assert trial.receipt.failure is not None
    assert trial.receipt.failure.kind == "rank_lost"
    assert trial.receipt.failure.where == f"rank {MIDDLE}"
    assert aner.run(case(epochs=1), five).receipt.status == "passed"
