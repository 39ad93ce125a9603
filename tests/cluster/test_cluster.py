"""Real worker processes: channels make no difference, groups agree, and what cannot be hosted is said."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import aner_nb as aner
from aner_nb.case import Placement
from aner_nb.errors import BackendUnavailable, ClusterError
from aner_nb.matching import hostable, match_offers

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def iris(**changes: Any) -> aner.Case:
    fields: dict[str, Any] = {
        "layers": [16, 3],
        "batch": 30,
        "epochs": 4,
        "optimizer": aner.SGD(0.1, momentum=0.9),
        "ranks": ["numpy", "numpy"],
    }
    return aner.Case("iris", data=aner.iris(), **{**fields, **changes})


def vector(case: aner.Case, cluster: aner.Cluster) -> np.ndarray:
    parameters = aner.run(case, cluster).raise_unless_passed().parameters
    assert parameters is not None
    return parameters


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_channel_makes_no_difference_to_a_single_bit(cluster: aner.Cluster, dtype: str) -> None:
    inline = aner.run(iris(channel="inline", dtype=dtype)).parameters
    for channel in ("shared_memory", "socket"):
        np.testing.assert_array_equal(vector(iris(channel=channel, dtype=dtype), cluster), inline)


@pytest.mark.tensorflow
def test_tensorflow_ranks_do_not_depend_on_the_channel_and_agree_with_standalone(
    cluster: aner.Cluster,
) -> None:
    pair = ["cpu:1", ("cpu:1", 7)]
    shared = vector(iris(ranks=pair, dtype="float64", channel="shared_memory"), cluster)
    socket = vector(iris(ranks=pair, dtype="float64", channel="socket"), cluster)
    alone = vector(iris(ranks=["cpu:1"], dtype="float64"), cluster)
    np.testing.assert_array_equal(shared, socket)
    assert np.abs(shared - alone).max() <= 1e-9 * np.abs(alone).max()


@pytest.mark.tensorflow
def test_a_tensorflow_trial_proves_where_and_how_it_ran(cluster: aner.Cluster) -> None:
    receipt = aner.run(iris(ranks=["cpu:1"]), cluster).receipt
    (rank,) = receipt.ranks
    assert receipt.status == "passed"
    assert rank.proof.framework.startswith("tensorflow 2.")
    assert rank.proof.operations_on.keys() == {"CPU:0"}
    assert rank.trace_count == 1
    assert rank.fresh_process
    assert rank.channel == "shared_memory"
    assert rank.placement == "Atlas-01/cpu:1"
    assert rank.backend_start_ns > 0
    assert rank.memory.worker_rss_high_water_bytes >= rank.memory.rss_ready_bytes > 0
    assert rank.memory.process_vram_reason == "cpu has no video memory of its own"


def test_measured_trials_start_in_fresh_processes(cluster: aner.Cluster) -> None:
    receipts = [aner.run(iris(), cluster).receipt for _ in range(2)]
    assert all(rank.fresh_process for receipt in receipts for rank in receipt.ranks)


def test_trials_leave_no_descriptors_behind(cluster: aner.Cluster) -> None:
    counts = []
    for _ in range(5):
        aner.run(iris(epochs=1), cluster)
        counts.append(psutil.Process().num_fds())
    assert counts[-1] <= counts[1] + 2


def test_what_the_cluster_has_not_is_not_run_and_says_so(cluster: aner.Cluster) -> None:
    for ranks, message in (
        (["cuda:0"], "no CUDA device on any machine of the cluster"),
        (["Atlas-09/cpu"], "the cluster has no placement Atlas-09/cpu"),
        (["cpu:1"] * 4, "4 ranks ask for cpu:1; the cluster has 3 of it"),
    ):
        trial = aner.run(iris(ranks=ranks), cluster)
        assert trial.receipt.status == "not_run"
        assert trial.receipt.failure is not None
        assert message in trial.receipt.failure.reason


def test_an_unreachable_scheduler_is_named_within_ten_seconds() -> None:
    began = time.monotonic()
    with pytest.raises(ClusterError, match=r"tcp://127\.0\.0\.1:1: no scheduler answered within 10 s"):
        aner.connect("tcp://127.0.0.1:1")
    assert time.monotonic() - began < 12


def test_a_nonsense_address_is_named() -> None:
    with pytest.raises(ClusterError, match="no scheduler answered"):
        aner.connect("nonsense")


def test_a_second_client_sees_the_same_platforms_and_runs(cluster: aner.Cluster) -> None:
    with aner.connect(cluster._client.scheduler.address) as other:
        assert other.platforms == cluster.platforms
        assert aner.run(iris(), other).receipt.status == "passed"


def test_workers_with_another_tensorflow_are_refused(cluster: aner.Cluster) -> None:
    (offer, *_) = cluster.offers
    wanted = [Placement.parse("cpu:1")]
    for version, message in (
        ("", "TensorFlow is not installed in the worker's environment. Install it there"),
        ("2.15.0", "the worker has TensorFlow 2.15.0; 2.18 to 2.21 are supported"),
    ):
        with pytest.raises(BackendUnavailable, match=message):
            match_offers(wanted, [dataclasses.replace(offer, tensorflow=version)])
    mixed = [
        dataclasses.replace(offer, tensorflow=version, worker=version) for version in ("2.20.0", "2.21.0")
    ]
    with pytest.raises(BackendUnavailable, match=r"different TensorFlow versions \(2\.20\.0, 2\.21\.0\)"):
        match_offers(wanted * 2, mixed)
    assert len(match_offers([Placement.parse("numpy")] * 2, mixed)) == 2
    assert hostable(wanted * 2, mixed) == (0,)


def test_weights_are_chosen_by_measuring(cluster: aner.Cluster) -> None:
    case = iris(balance="auto", ranks=["numpy", ("numpy", 5)])
    receipt = aner.run(case, cluster).receipt
    assert receipt.status == "passed"
    assert sum(cost.share for cost in receipt.calibration) == 30
    assert receipt.clocks is not None
    assert receipt.clocks.calibration_ns > 0


def test_advice_covers_every_choice_of_ranks(cluster: aner.Cluster) -> None:
    advice = aner.advise(iris(), cluster, ["numpy", "numpy", "numpy"])
    assert len(advice.predictions) == 7
    assert advice.best.update_s == min(found.update_s for found in advice.predictions)
    assert "Use Atlas-01/numpy" in str(advice)


def test_a_suite_resumes_and_runs_nothing_twice(cluster: aner.Cluster, tmp_path: Any) -> None:
    suite = aner.Suite(
        "tiny", (iris(), dataclasses.replace(iris(), name="solo", ranks=["numpy"])), repetitions=2
    )
    ended: list[str] = []

    def watch(event: Any) -> None:
        if type(event).__name__ == "TrialEnded":
            ended.append(f"{event.case} {event.role} {event.repetition} {event.status}")

    with pytest.raises(aner.AnerError, match="cancelled"):
        aner.run_suite(suite, cluster, out=tmp_path, subscribers=[watch], stop=lambda: len(ended) >= 2)
    before = [line for line in ended if line.endswith("passed")]
    study = aner.run_suite(suite, cluster, out=tmp_path, subscribers=[watch])
    assert study.complete
    passed = [line for line in ended if line.endswith("passed")]
    assert len(passed) == len(set(passed)) == 6
    assert before
    assert aner.open_study(tmp_path).complete


def test_a_script_without_its_guard_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import aner_nb as aner\naner.local_cluster(['numpy:1'])\n")
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    last = ended.stderr.strip().splitlines()[-1]
    assert "ClusterError: local_cluster: the worker processes could not start" in last
    assert 'if __name__ == "__main__":' in last
