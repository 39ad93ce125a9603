"""One trial from source to receipt, with inline ranks; three ways to write it; resuming to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aner_nb as aner
from aner_nb.checkpoints import CheckpointError
from aner_nb.events import EpochValidated, Event, TrialEnded, TrialStarted, UpdateDone

IRIS: dict[str, Any] = {
    "batch": 30,
    "epochs": 40,
    "optimizer": aner.SGD(0.1, momentum=0.9),
    "dtype": "float64",
    "channel": "inline",
    "ranks": ["numpy"],
}


def iris(**changes: Any) -> aner.Case:
    return aner.Case("iris", data=aner.iris(), layers=[16, 3], **{**IRIS, **changes})


def vector(**changes: Any) -> np.ndarray:
    parameters = aner.run(iris(**changes)).raise_unless_passed().parameters
    assert parameters is not None
    return parameters


def test_a_receipt_says_everything() -> None:
    receipt = aner.run(iris(ranks=["numpy", ("numpy", 2)])).receipt
    assert receipt.status == "passed"
    assert all(check.passed for check in receipt.checks)
    assert receipt.counts is not None
    assert (receipt.counts.train_rows, receipt.counts.validation_rows, receipt.counts.test_rows) == (90, 30, 30)
    assert (receipt.counts.updates, receipt.counts.rows) == (120, 3600)
    assert [rank.rows for rank in receipt.ranks] == [1200, 2400]
    assert len(receipt.validation) == 40
    assert receipt.clocks is not None
    assert 0 < receipt.clocks.native_fit_ns < receipt.clocks.complete_command_ns
    assert receipt.ranks[0].proof.produced_on == ("CPU:0",)
    assert receipt.coordinator_phases["total"].total_ns <= receipt.clocks.native_fit_ns


def test_three_ways_agree_to_the_bit_and_learn_iris() -> None:
    class Flowers(aner.DenseNetwork):
        layers = (16, 3)
        batch = 30
        epochs = 40
        optimizer = aner.SGD(0.1, momentum=0.9)
        dtype = "float64"

    simple = aner.fit(aner.iris(), [16, 3], **IRIS)
    developed = aner.develop(aner.iris(), [16, 3], **IRIS)
    case = Flowers().case(aner.iris(), ["numpy"])
    by_class = aner.run(iris(seed=case.seed)).parameters
    assert case.work_id == iris().work_id
    np.testing.assert_array_equal(simple.parameters, developed.parameters)
    np.testing.assert_array_equal(simple.parameters, by_class)
    accuracy = simple.evaluate().accuracy
    assert accuracy is not None
    assert accuracy >= 29 / 30
    assert simple.predict([[5.1, 3.5, 1.4, 0.2]]).tolist() == [0]


def test_develop_shows_the_reference_graph_of_each_update() -> None:
    developed = aner.develop(aner.iris(), [16, 3], **{**IRIS, "ranks": ["numpy", "numpy"], "epochs": 2})
    assert len(developed.updates) == 6
    assert max(update.gradient_difference for update in developed.updates) < 1e-12
    assert developed.operations[0] == "dense_0/matmul"
    assert "6 updates of 13 operations" in str(developed)
    assert developed.updates[0].batch != developed.updates[1].batch


@pytest.mark.parametrize("ranks", [["numpy"] * 2, ["numpy"] * 3, ["numpy", ("numpy", 7)]])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 1e-4)])
def test_groups_end_where_standalone_ends(ranks: list[Any], dtype: str, tolerance: float) -> None:
    alone, together = vector(dtype=dtype), vector(dtype=dtype, ranks=ranks)
    assert np.abs(alone - together).max() <= tolerance * np.abs(alone).max()


def test_more_ranks_than_rows_in_a_batch_still_take_part() -> None:
    alone = vector(batch=2, epochs=2)
    together = vector(batch=2, epochs=2, ranks=["numpy"] * 5)
    np.testing.assert_allclose(together, alone, rtol=1e-9)


def test_regression_trains_as_well() -> None:
    random = np.random.default_rng(0)
    features = random.standard_normal((200, 3))
    data = aner.arrays(features, features @ np.array([1.0, -2.0, 0.5]))
    fitted = aner.fit(data, [1], **{**IRIS, "batch": 20})
    assert fitted.evaluate().accuracy is None
    assert fitted.evaluate().loss < 1e-3
    assert fitted.predict(features[:2]).shape == (2, 1)


def test_events_tell_the_whole_trial() -> None:
    seen: list[Event] = []
    aner.run(iris(epochs=2), subscribers=[seen.append])
    assert isinstance(seen[0], TrialStarted)
    assert isinstance(seen[-1], TrialEnded)
    assert sum(isinstance(event, UpdateDone) for event in seen) == 6
    assert sum(isinstance(event, EpochValidated) for event in seen) == 2


def test_a_stopped_trial_leaves_a_receipt() -> None:
    trial = aner.run(iris(epochs=1000), stop=lambda: True)
    assert trial.receipt.status == "cancelled"
    assert trial.receipt.failure is not None
    assert trial.receipt.failure.reason == "cancelled on request."
    with pytest.raises(aner.AnerError, match="cancelled"):
        trial.raise_unless_passed()


def test_a_cluster_is_asked_for_where_one_is_needed() -> None:
    with pytest.raises(aner.AnerError, match=r"no cluster was given\. Pass aner\.local_cluster"):
        aner.run(iris(channel="auto"))


@pytest.mark.parametrize("every", ["epoch", 7])
@pytest.mark.parametrize("optimizer", [aner.SGD(0.1, momentum=0.9), aner.Adam(0.01)])
def test_resuming_ends_with_the_same_bits(tmp_path: Path, every: Any, optimizer: Any) -> None:
    case = iris(optimizer=optimizer, ranks=["numpy", "numpy"])
    durability = aner.Durability(tmp_path / "state.safetensors", every=every)
    asked = iter(range(10_000))
    stopped = aner.run(case, stop=lambda: next(asked) > 13, durability=durability)
    assert stopped.receipt.status == "cancelled"
    resumed = aner.run(case, durability=durability)
    assert resumed.receipt.status == "passed"
    assert 0 < resumed.receipt.resumed_from < 120
    np.testing.assert_array_equal(resumed.parameters, aner.run(case).parameters)


def test_a_checkpoint_of_other_work_is_refused(tmp_path: Path) -> None:
    durability = aner.Durability(tmp_path / "state.safetensors")
    aner.run(iris(epochs=1), durability=durability)
    with pytest.raises(CheckpointError, match="belongs to other work"):
        aner.run(iris(epochs=1, seed=5), durability=durability).raise_unless_passed()
