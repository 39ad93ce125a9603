"""One trial from source to receipt, with inline ranks; three ways to write it; resuming to the bit."""

from __future__ import annotations

import contextlib
import datetime
import functools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aner_nb as aner
from aner_nb.backends.numpy import NumpyGradientFunction
from aner_nb.case import case_from_record
from aner_nb.checkpoints import CheckpointError
from aner_nb.events import EpochValidated, Event, TrialEnded, TrialStarted, UpdateDone
from aner_nb.ranks import Ranks, open_inline_ranks
from aner_nb.receipts import decode_receipt, encode_receipt
from aner_nb.sources import fingerprint

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


@functools.cache
def passed(case: aner.Case) -> aner.Trial:
    """Return a trial that several tests compare with; none of them changes it."""
    return aner.run(case).raise_unless_passed()


def vector(**changes: Any) -> np.ndarray:
    parameters = passed(iris(**changes)).parameters
    assert parameters is not None
    return parameters


def test_a_receipt_says_everything() -> None:
    receipt = aner.run(iris(ranks=["numpy", ("numpy", 2)])).receipt
    assert receipt.status == "passed"
    assert all(check.passed for check in receipt.checks)
    assert receipt.counts is not None
    assert (receipt.counts.train_rows, receipt.counts.validation_rows, receipt.counts.test_rows) == (
        90,
        30,
        30,
    )
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
    np.testing.assert_array_equal(resumed.parameters, passed(case).parameters)


def test_a_checkpoint_of_other_work_is_refused(tmp_path: Path) -> None:
    durability = aner.Durability(tmp_path / "state.safetensors")
    aner.run(iris(epochs=1), durability=durability)
    with pytest.raises(CheckpointError, match="belongs to other work"):
        aner.run(iris(epochs=1, seed=5), durability=durability).raise_unless_passed()


class InlineHost:
    """Hosts ranks in this process, as a cluster would elsewhere."""

    def open_ranks(
        self, setups: Any, partitions: Any, *, channel: str, stop: Any
    ) -> contextlib.AbstractContextManager[Ranks]:
        return contextlib.nullcontext(open_inline_ranks(setups, partitions))

    def available(self, placements: Any) -> tuple[int, ...]:
        return tuple(range(len(placements)))


# ---------------------------------------------------------------- three ways


def test_a_class_is_fitted_to_the_bits_of_the_function() -> None:
    class Flowers(aner.DenseNetwork):
        layers = (16, 3)
        batch = 30
        epochs = 40
        optimizer = aner.SGD(0.1, momentum=0.9)
        dtype = "float64"

    by_class = Flowers().fit(aner.iris(), ranks=["numpy"], cluster=InlineHost())
    simple = aner.fit(aner.iris(), [16, 3], **IRIS)
    developed = aner.develop(aner.iris(), [16, 3], **IRIS)
    assert by_class.parameters.tobytes() == simple.parameters.tobytes() == developed.parameters.tobytes()
    receipts = [fitted.trial.receipt for fitted in (by_class, simple, developed)]
    assert [receipt.case_name for receipt in receipts] == ["Flowers", "fit", "develop"]
    assert len({receipt.work_id for receipt in receipts}) == 1
    assert len({receipt.fingerprints.final_parameters for receipt in receipts if receipt.fingerprints}) == 1
    for fitted in (by_class, simple, developed):
        found = fitted.evaluate()
        assert found.rows == 30
        assert found.accuracy is not None and found.accuracy >= 0.9666
        assert fitted.trial.receipt.test is not None
        assert (found.loss, found.accuracy) == (
            fitted.trial.receipt.test.loss,
            fitted.trial.receipt.test.accuracy,
        )


@pytest.mark.parametrize("seed", range(5))
def test_iris_is_learned_whatever_the_seed(seed: int) -> None:
    accuracy = aner.fit(aner.iris(), [16, 3], **IRIS, seed=seed).evaluate().accuracy
    assert accuracy is not None and accuracy >= 0.9


def test_predictions_take_raw_features_and_give_classes() -> None:
    fitted = aner.fit(aner.iris(), [16, 3], **IRIS)
    flowers = [[5.1, 3.5, 1.4, 0.2], [6.0, 2.7, 4.2, 1.3], [6.9, 3.1, 5.8, 2.2]]
    assert fitted.predict(flowers).tolist() == [0, 1, 2]
    assert fitted.outputs(flowers).shape == (3, 3)
    assert fitted.outputs(flowers).dtype == np.float64
    with pytest.raises(
        aner.AnerError, match=r"predict: features of shape \(4,\) don't fit the model\. Give rows of 4"
    ):
        fitted.predict(flowers[0])
    with pytest.raises(aner.AnerError, match=r"shape \(1, 3\) don't fit"):
        fitted.predict([[1, 2, 3]])


def test_develop_computes_the_reference_at_the_same_parameters_and_rows() -> None:
    short = {**IRIS, "epochs": 2, "ranks": ["numpy", ("numpy", 7)]}
    group, alone = (
        aner.develop(aner.iris(), [16, 3], **{**short, **more}) for more in ({}, {"ranks": ["numpy"]})
    )
    assert [update.index for update in group.updates] == list(range(6))
    assert [update.batch for update in group.updates] == [update.batch for update in alone.updates]
    assert [update.gradient_difference for update in alone.updates] == [0.0] * 6
    assert alone.updates[0].parameters == group.updates[0].parameters
    steps = alone.trial.steps
    assert steps is not None
    assert [update.loss for update in alone.updates] == steps.loss.tolist()
    assert alone.updates[0].loss > alone.updates[-1].loss > 0


def test_an_argument_that_does_not_exist_is_refused() -> None:
    with pytest.raises(
        aner.AnerError, match=r"there is no argument 'momentum'\. Known: balance, batch, channel"
    ):
        aner.fit(aner.iris(), [16, 3], momentum=0.9)


def test_what_ended_a_fit_is_raised() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with pytest.raises(aner.AnerError, match="finite: losses and final parameters"):
            aner.fit(
                aner.arrays(np.arange(40.0).reshape(20, 2), np.arange(20.0)),
                [8, 1],
                **{**IRIS, "optimizer": aner.SGD(1e6), "batch": 4},
            )


# ---------------------------------------------------------------- receipts


def test_the_fixed_checks_are_named_and_pass() -> None:
    receipt = aner.run(iris(epochs=2, ranks=["numpy", ("numpy", 7)])).receipt
    assert {check.name: check.passed for check in receipt.checks} == {
        "updates": True,
        "rows of each rank": True,
        "partitions": True,
        "plan": True,
        "disjoint splits": True,
        "validations": True,
        "native gradients": True,
        "traces of each rank": True,
        "finite": True,
    }
    details = {check.name: check.detail for check in receipt.checks}
    assert details["updates"] == "6 of 6"
    assert details["rows of each rank"] == "[24, 156] of [24, 156]"


def test_a_receipt_repeats_the_case_and_its_identities() -> None:
    case = iris(epochs=1, ranks=["numpy", "numpy"])
    trial = aner.run(case, role="warm_up", repetition=2, round_number=3, position=4)
    receipt, steps = trial.receipt, trial.steps
    assert case_from_record(receipt.case) == case
    assert (receipt.contract_id, receipt.work_id) == (case.contract_id, case.work_id)
    assert (receipt.role, receipt.repetition, receipt.round, receipt.position) == ("warm_up", 2, 3, 4)
    assert receipt.counts is not None and receipt.fingerprints is not None and steps is not None
    assert (receipt.counts.parameters, receipt.counts.batches, receipt.counts.planned_updates) == (131, 3, 3)
    assert (receipt.counts.planned_rows, receipt.counts.rows) == (90, 90)
    assert receipt.fingerprints.plan == aner.make_plan(case, 90).plan_id
    assert receipt.fingerprints.final_parameters == fingerprint(trial.parameters)
    assert len(set(receipt.fingerprints.partitions)) == 2
    assert receipt.reduction == "star, rank order"
    assert steps.rows.tolist() == [[15, 15]] * 3
    assert receipt.validation[0].train_loss == steps.loss.mean()
    assert (receipt.validation[0].epoch, receipt.validation[0].update) == (0, 3)
    assert datetime.datetime.fromisoformat(receipt.started).utcoffset() == datetime.timedelta(0)


def test_the_clocks_are_parts_of_the_complete_command() -> None:
    clocks = aner.run(iris(epochs=3)).receipt.clocks
    assert clocks is not None
    parts = (
        clocks.source_ns,
        clocks.preprocess_ns,
        clocks.placement_ns,
        clocks.native_fit_ns,
        clocks.test_ns,
        clocks.shutdown_ns,
    )
    assert min(parts) > 0
    assert sum(parts) <= clocks.complete_command_ns
    assert 0 < clocks.validation_ns < clocks.native_fit_ns
    assert clocks.calibration_ns == 0


def test_a_result_is_the_same_every_time() -> None:
    first, second = (aner.run(iris(epochs=2, ranks=["numpy", "numpy"])).receipt for _ in range(2))
    assert first.fingerprints == second.fingerprints
    assert first.test == second.test
    assert [epoch.loss for epoch in first.validation] == [epoch.loss for epoch in second.validation]


def test_a_broken_contract_fails_the_trial_and_names_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NumpyGradientFunction, "__call__", _one_row_short(NumpyGradientFunction.__call__))
    trial = aner.run(iris(epochs=1))
    assert trial.receipt.status == "failed"
    assert trial.receipt.failure is not None
    assert trial.receipt.failure.kind == "contract_broken"
    assert trial.receipt.failure.reason == "the rank answered for 29 rows in update 0, its shard has 30."
    assert trial.parameters is None


def _one_row_short(compute: Any) -> Any:
    def short(self: Any, parameters: Any, block: tuple[int, int], out: Any, update: int) -> Any:
        return compute(self, parameters, (block[0], block[1] - 1), out, update)

    return short


# ---------------------------------------------------------------- groups


@pytest.mark.parametrize(
    "ranks", [["numpy"] * 2, ["numpy"] * 3, ["numpy", ("numpy", 7)], [("numpy", 7), "numpy"]]
)
@pytest.mark.parametrize("optimizer", [aner.SGD(0.1, momentum=0.9), aner.Adam(0.01)], ids=["sgd", "adam"])
def test_groups_do_the_updates_of_standalone(ranks: list[Any], optimizer: Any) -> None:
    alone, group = (passed(iris(optimizer=optimizer, ranks=some)) for some in (["numpy"], ranks))
    assert alone.receipt.work_id == group.receipt.work_id
    assert alone.receipt.counts == group.receipt.counts
    assert alone.receipt.counts is not None and alone.receipt.counts.updates == 120
    assert alone.receipt.fingerprints is not None and group.receipt.fingerprints is not None
    assert alone.receipt.fingerprints.initial_parameters == group.receipt.fingerprints.initial_parameters
    assert alone.parameters is not None and group.parameters is not None
    assert np.linalg.norm(alone.parameters - group.parameters) <= 1e-9 * np.linalg.norm(alone.parameters)
    assert sum(rank.rows for rank in group.receipt.ranks) == alone.receipt.ranks[0].rows == 3600


def test_a_short_last_batch_is_shared_too() -> None:
    alone, group = (
        aner.run(iris(batch=40, epochs=5, ranks=ranks)) for ranks in (["numpy"], ["numpy", ("numpy", 7)])
    )
    assert group.steps is not None and alone.steps is not None
    assert sorted(set(group.steps.rows.sum(axis=1).tolist())) == [10, 40]
    assert group.steps.rows.sum(axis=1).tolist() == alone.steps.rows[:, 0].tolist()
    np.testing.assert_allclose(group.parameters, alone.parameters, rtol=1e-9, atol=1e-12)


# ---------------------------------------------------------------- ends


@pytest.mark.parametrize("asked", [0, 2, 30])
def test_a_trial_can_be_stopped_at_any_epoch(asked: int) -> None:
    answers = iter(range(1000))
    trial = aner.run(iris(), stop=lambda: next(answers) >= asked)
    counts = trial.receipt.counts
    assert counts is not None and trial.receipt.failure is not None
    assert (trial.receipt.status, trial.receipt.failure.kind) == ("cancelled", "cancelled")
    assert counts.updates == 3 * (asked + 1)
    assert counts.planned_updates == 120
    assert len(trial.receipt.validation) == asked
    assert trial.parameters is None
    assert trial.receipt.clocks is None
    assert trial.receipt.checks == ()


def test_ctrl_c_ends_the_trial_with_a_receipt(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_arguments: object) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(NumpyGradientFunction, "__call__", interrupt)
    trial = aner.run(iris())
    assert trial.receipt.status == "cancelled"
    assert str(trial) == "iris, measured 1: cancelled: interrupted from the keyboard."


def test_a_case_that_does_not_fit_its_data_starts_nothing() -> None:
    seen: list[Event] = []
    case = aner.Case("iris", data=aner.iris(), layers=[16, 4], **IRIS)
    with pytest.raises(aner.AnerError, match="the last layer has 4 units, the data 3 classes"):
        aner.run(case, subscribers=[seen.append])
    assert seen == []


# ---------------------------------------------------------------- going on


def stopped_after(epochs: int, case: aner.Case, durability: aner.Durability) -> aner.Trial:
    answers = iter(range(1000))
    trial = aner.run(case, stop=lambda: next(answers) >= epochs, durability=durability)
    assert trial.receipt.status == "cancelled"
    return trial


@pytest.mark.parametrize("ranks", [["numpy"], ["numpy"] * 3, ["numpy", ("numpy", 7)]])
def test_a_checkpoint_goes_on_over_other_ranks(tmp_path: Path, ranks: list[Any]) -> None:
    durability = aner.Durability(tmp_path / "state.safetensors")
    stopped_after(20, iris(ranks=["numpy", "numpy"]), durability)
    resumed = aner.run(iris(ranks=ranks), durability=durability)
    assert (resumed.receipt.status, resumed.receipt.resumed_from) == ("passed", 60)
    np.testing.assert_allclose(resumed.parameters, vector(), rtol=1e-8, atol=1e-10)


def test_figures_of_a_resumed_trial_are_of_its_own_updates(tmp_path: Path) -> None:
    durability = aner.Durability(tmp_path / "state.safetensors", every=8)
    case = iris(batch=9, epochs=10)  # 10 updates an epoch: the checkpoint of update 56 lies within the sixth
    stopped_after(5, case, durability)
    resumed, whole = aner.run(case, durability=durability), aner.run(case)
    receipt, steps = resumed.receipt, whole.steps
    assert steps is not None and receipt.counts is not None
    assert (receipt.status, receipt.resumed_from, receipt.counts.updates) == ("passed", 56, 44)
    assert receipt.validation[0].epoch == 5
    assert receipt.validation[0].train_loss == pytest.approx(steps.loss[56:60].mean(), rel=1e-12)
    assert [epoch.train_loss for epoch in receipt.validation[1:]] == [
        epoch.train_loss for epoch in whole.receipt.validation[6:]
    ]
    assert receipt.coordinator_phases["total"].median_ns > 0
    assert receipt.ranks[0].phases["rank_compute"].median_ns > 0
    assert receipt.ranks[0].rows == 44 * 9
    np.testing.assert_array_equal(resumed.parameters, whole.parameters)


def test_a_checkpoint_of_the_end_leaves_nothing_to_do(tmp_path: Path) -> None:
    durability = aner.Durability(tmp_path / "state.safetensors")
    first = aner.run(iris(), durability=durability)
    again = aner.run(iris(), durability=durability)
    assert again.receipt.counts is not None
    assert (again.receipt.status, again.receipt.resumed_from, again.receipt.counts.updates) == (
        "passed",
        120,
        0,
    )
    np.testing.assert_array_equal(again.parameters, first.parameters)
    assert decode_receipt(encode_receipt(again.receipt)) == again.receipt


def test_checkpoints_change_no_bit(tmp_path: Path) -> None:
    kept = aner.run(iris(epochs=8), durability=aner.Durability(tmp_path / "state.safetensors", every=1))
    np.testing.assert_array_equal(kept.parameters, vector(epochs=8))
    assert [path.name for path in tmp_path.iterdir()] == ["state.safetensors"]


@pytest.mark.parametrize(
    "other",
    [{"seed": 5}, {"dtype": "float32"}, {"optimizer": aner.Adam(0.01)}, {"epochs": 50}, {"batch": 45}],
    ids=lambda changes: next(iter(changes)),
)
def test_a_checkpoint_of_any_other_work_is_refused_and_kept(tmp_path: Path, other: dict[str, Any]) -> None:
    path = tmp_path / "state.safetensors"
    aner.run(iris(epochs=1 if "epochs" not in other else 40), durability=aner.Durability(path))
    before = path.read_bytes()
    refused = aner.run(iris(**{"epochs": 1, **other}), durability=aner.Durability(path))
    assert refused.receipt.status == "failed"
    with pytest.raises(
        CheckpointError, match="safetensors: the checkpoint belongs to other work. Name another file"
    ):
        refused.raise_unless_passed()
    assert path.read_bytes() == before


def test_a_damaged_checkpoint_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    path.write_bytes(b"half")
    trial = aner.run(iris(epochs=1), durability=aner.Durability(path))
    assert trial.receipt.status == "failed"
    with pytest.raises(CheckpointError, match="not a readable checkpoint .* Start without it"):
        trial.raise_unless_passed()
    assert path.read_bytes() == b"half"


def test_a_checkpoint_that_cannot_be_written_fails_the_trial(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    trial = aner.run(iris(epochs=1), durability=aner.Durability(tmp_path / "file" / "state.safetensors"))
    assert trial.receipt.status == "failed"
    with pytest.raises(CheckpointError, match="the checkpoint cannot be written"):
        trial.raise_unless_passed()


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"every": 0}, "every: 0 is no interval. Give 'epoch' or a number of updates"),
        ({"every": True}, "every: True is no interval"),
        ({"every": "day"}, "every: 'day' is no interval"),
        ({"on_loss": "retry"}, "on_loss: 'retry' is not known. Choose fail or restart"),
    ],
)
def test_other_protection_is_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(aner.AnerError, match=sentence):
        aner.Durability(**fields)
