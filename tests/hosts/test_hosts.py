"""Groups across hosts: a TLS cluster over three network namespaces, delay and loss, one host cut off."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import aner_nb as aner
from aner_nb.errors import ClusterError
from aner_nb.events import StageEntered
from tests.hosts.network import HOSTS, Hosts, hosts, why_not

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with hosts(tmp_path_factory.mktemp("hosts")) as made:
        yield made


@pytest.fixture(scope="module")
def far(network: Hosts) -> Iterator[aner.Cluster]:
    deadline = time.monotonic() + 60
    while True:
        try:
            cluster = aner.connect(network.scheduler, network.security)
            if len(cluster.offers) == HOSTS:
                break
            cluster.close()
        except ClusterError:
            assert time.monotonic() < deadline
        time.sleep(0.5)
    with cluster:
        yield cluster


def case(**changes: Any) -> aner.Case:
    fields: dict[str, Any] = {
        "layers": [32, 10],
        "dtype": "float64",
        "batch": 60,
        "epochs": 2,
        "ranks": ["numpy"] * HOSTS,
        "channel": "socket",
    }
    return aner.Case("far", data=aner.digits(), **{**fields, **changes})


def passed(far: aner.Cluster) -> aner.Trial:
    """Run the case until it passes, for at most a minute: links that were out take their time."""
    deadline = time.monotonic() + 60
    while True:
        trial = aner.run(case(), far)
        if trial.receipt.status == "passed":
            return trial
        assert time.monotonic() < deadline, trial.error
        time.sleep(1)


@pytest.fixture(scope="module")
def bits() -> Any:
    return aner.run(case(channel="inline")).parameters


def test_a_group_across_hosts_is_encrypted_and_ends_with_the_same_bits(far: aner.Cluster, bits: Any) -> None:
    trial = aner.run(case(), far).raise_unless_passed()
    assert {rank.channel for rank in trial.receipt.ranks} == {"socket"}
    assert all(rank.encryption.startswith("TLSv1.3") for rank in trial.receipt.ranks)
    assert all(rank.payload_bytes > 8 * trial.receipt.counts.parameters for rank in trial.receipt.ranks)
    np.testing.assert_array_equal(trial.parameters, bits)


def test_without_the_certificates_nobody_gets_in(network: Hosts, far: aner.Cluster) -> None:
    with pytest.raises(ClusterError, match="no scheduler answered"):
        aner.connect(network.scheduler)


def test_delay_and_loss_change_the_time_and_not_the_result(
    network: Hosts, far: aner.Cluster, bits: Any
) -> None:
    with network.lossy(delay=0.01, jitter=0.002, loss=0.01) as lost:
        trial = aner.run(case(), far).raise_unless_passed()
    phases = trial.receipt.coordinator_phases
    assert phases["exchange"].median_ns > 20e6  # there and back
    assert sum(lost) > 0
    np.testing.assert_array_equal(trial.parameters, bits)


def test_a_host_that_is_cut_off_is_named_and_the_next_trial_runs_when_it_is_back(
    network: Hosts, far: aner.Cluster, bits: Any
) -> None:
    times: list[float] = []

    def cut(event: object) -> None:
        if isinstance(event, StageEntered) and event.stage == "training" and not times:
            times.append(0.0)
            threading.Thread(target=act).start()

    def act() -> None:
        time.sleep(0.5)
        network.cut(2)
        times.append(time.monotonic())

    passed(far)  # every link is up again after the tests before
    trial = aner.run(case(epochs=5000), far, subscribers=[cut])
    ended = time.monotonic()
    network.mend(2)
    assert len(times) == 2, f"the trial ended before the cable was out: {trial.error}"
    seconds = ended - times[1]
    assert trial.receipt.failure is not None
    assert (trial.receipt.status, trial.receipt.failure.kind) == ("failed", "rank_lost")
    assert trial.receipt.failure.where.startswith("rank ")
    assert "update" in trial.receipt.failure.what
    assert seconds < 8  # 5 s of silence, and the end of the trial
    np.testing.assert_array_equal(passed(far).parameters, bits)
