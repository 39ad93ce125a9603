"""Whole trials through the emulated accelerator: the paths that only a machine with a card takes, taken here.

They show placement, memory, proof and refusals. They say nothing of CUDA or Metal themselves, nor of speed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import aner_nb as aner
from aner_nb.agreement import TOLERANCE
from aner_nb.bundle import BundleError
from aner_nb.errors import BackendUnavailable
from aner_nb.verification import verify
from tests.emulated_device.runtime import PLUGGABLE_DEVICE, Counters, read_counters, tf32_enabled

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.tensorflow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        sys.platform != "linux" or shutil.which("gcc") is None, reason="needs Linux and gcc for the plug-in"
    ),
]


@pytest.fixture(scope="module")
def plugged(library: Path) -> Iterator[Path]:
    """Every worker that starts meanwhile finds two emulated devices; the coordinator loads nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PLUGGABLE_DEVICE, str(library))
        yield library


@pytest.fixture(scope="module")
def emulated(plugged: Path) -> Iterator[aner.Cluster]:
    """A worker for each of two emulated devices, and one for the CPU."""
    with aner.local_cluster(["cuda:0", "cuda:1", "cpu:1"]) as cluster:
        yield cluster


def iris(ranks: list[Any], **changes: Any) -> aner.Case:
    fields: dict[str, Any] = {"layers": [16, 3], "batch": 30, "epochs": 4, "optimizer": aner.SGD(0.1)}
    return aner.Case("iris", data=aner.iris(), ranks=ranks, **{**fields, **changes})


def in_worker(cluster: aner.Cluster, placement: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function gives in the process that offers a placement."""
    (offer,) = [offer for offer in cluster.offers if str(offer.placement).endswith(placement)]
    (address,) = [address for address, worker in cluster._workers().items() if worker["name"] == offer.worker]
    return cluster._client.run(function, *arguments, workers=[address])[address]


@pytest.mark.parametrize(
    ("ranks", "dtype"),
    [
        pytest.param(["cuda:0"], "float64", marks=pytest.mark.long),
        (["cuda:1"], "float32"),
        (["cuda:0", "cuda:1"], "float64"),
        pytest.param(["cuda:1", ("cuda:0", 7)], "float32", marks=pytest.mark.long),
        pytest.param(["cpu:1", "cuda:1"], "float64", marks=pytest.mark.long),
        (["cpu:1", ("cuda:0", 7)], "float32"),
    ],
    ids=str,
)
def test_a_trial_passes_and_learns_what_the_cpu_learns(
    emulated: aner.Cluster, plugged: Path, ranks: list[Any], dtype: str
) -> None:
    reference = aner.run(iris(["numpy"], dtype=dtype, channel="inline")).parameters
    trial = aner.run(iris(ranks, dtype=dtype), emulated).raise_unless_passed()
    receipt = trial.receipt
    assert all(check.passed for check in receipt.checks)
    (probe,) = [check for check in receipt.checks if check.name == "accelerators' small gradients"]
    assert probe.detail.endswith("of 1e-03" if dtype == "float32" else "of 1e-09")
    assert reference is not None
    assert trial.parameters is not None
    assert np.abs(trial.parameters - reference).max() <= TOLERANCE[dtype] * np.abs(reference).max()
    for rank in receipt.ranks:
        device = rank.placement.split("/")[1]
        assert all(rank.phases[f"rank_{name}"].median_ns > 0 for name in ("upload", "compute", "readback"))
        parts = sum(rank.phases[f"rank_{name}"].total_ns for name in ("upload", "compute", "readback"))
        assert 0 < parts <= rank.phases["rank_total"].total_ns
        if device == "cpu:1":
            assert not rank.proof.emulated
            assert rank.proof.produced_on == ("CPU:0",)
            continue
        assert rank.proof.emulated
        assert rank.proof.produced_on == (rank.proof.requested,) == ("GPU:0",)
        assert set(rank.proof.operations_on) == {"GPU:0"}
        memory = rank.memory
        assert memory.device_bytes is not None and memory.device_peak_bytes is not None
        assert 0 < memory.partition_bytes <= memory.device_bytes <= memory.device_peak_bytes
        assert memory.device_bytes_after_close == 0
        assert (memory.process_vram_bytes, memory.process_vram_reason) == (
            None,
            "the device is emulated in the host's memory",
        )
        assert not in_worker(emulated, device, tf32_enabled)
        own = int(device[-1])
        counted = [in_worker(emulated, device, read_counters, plugged, index) for index in (0, 1)]
        updates = receipt.counts.updates if receipt.counts else 0
        assert counted[own].uploads > updates
        assert counted[own].readbacks > updates
        assert counted[own].kernel_runs > updates
        assert counted[1 - own] == Counters(*[0] * 9)


def test_a_missing_kernel_fails_the_trial_by_name_and_is_not_published(
    plugged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANER_EMULATED_OMIT", "ReluGrad")
    suite = aner.Suite("tiny", (iris(["cuda:0"]),), warm_ups=0, repetitions=1)
    with aner.local_cluster(["cuda:0"]) as cluster:
        study = aner.run_suite(suite, cluster, out=tmp_path / "study")
    (receipt,) = study.receipts
    assert receipt.status == "failed"
    assert receipt.failure is not None
    assert receipt.failure.kind == "contract_broken"
    assert "cuda:0 has no kernel for ReluGrad (" in receipt.failure.reason
    assert "falling back to the CPU is not allowed" in receipt.failure.reason
    with pytest.raises(BundleError, match="a trial ran on an emulated device"):
        study.publish()


def test_a_wrong_kernel_is_refused_with_the_figures(plugged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANER_EMULATED_WRONG", "ReluGrad")
    with aner.local_cluster(["cuda:0"]) as cluster:
        receipt = aner.run(iris(["cuda:0"]), cluster).receipt
    assert receipt.status == "failed"
    assert receipt.failure is not None
    assert receipt.failure.kind == "contract_broken"
    found = re.search(r"on 4 rows they differ by (\S+) of the largest, where 1e-03", receipt.failure.reason)
    assert found is not None
    assert 0.005 < float(found[1]) < 0.06


def test_tf32_is_on_where_a_case_asks_and_nothing_of_an_emulated_device_is_published(
    emulated: aner.Cluster, tmp_path: Path
) -> None:
    """In the rank's process, by what TensorFlow says; an emulated device has no such rounding to show."""
    suite = aner.Suite("tiny", (iris(["cuda:0"], tf32=True),), warm_ups=0, repetitions=1)
    study = aner.run_suite(suite, emulated, out=tmp_path / "study")
    (receipt,) = study.receipts
    assert receipt.case["tf32"] is True
    assert any(check.detail.endswith("of 3e-02") for check in receipt.checks)
    assert in_worker(emulated, "cuda:0", tf32_enabled)
    with pytest.raises(BundleError, match="a trial ran on an emulated device"):
        study.publish()
    with mock.patch("aner_nb.bundle._refuse"):
        smuggled = study.publish(tmp_path / "public")
    found = "\n".join(map(str, verify(smuggled)))
    assert "trials.jsonl:1 ranks[0].proof.emulated: is not for publication" in found
    assert "trials.jsonl:1 software: names an emulated-accelerator, which is not for publication" in found
    assert "has an emulated-accelerator, which is not for publication" in found


def test_one_process_computes_on_one_device(plugged: Path) -> None:
    """Two devices in one process would both be the first one that TensorFlow was started with."""
    script = (
        "from aner_nb.backends.tensorflow import configure, tf\n"
        "from aner_nb.case import Placement\n"
        "for text in ('cuda:1', 'cuda:1', 'cuda:0'):\n"
        "    print(configure(Placement.parse(text)), len(tf.config.list_logical_devices('GPU')), flush=True)\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ,
    )
    assert finished.stdout.split() == ["GPU:0", "1"] * 2
    assert BackendUnavailable.__name__ in finished.stderr
    assert "TensorFlow already runs in this process with other settings" in finished.stderr
