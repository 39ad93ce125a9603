"""Early stopping: Keras's rule, whole trials, resuming, groups, verification, summaries."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import aner_nb as aner
from aner_nb.analysis import summarise
from aner_nb.case import case_from_record
from aner_nb.checkpoints import load_checkpoint
from aner_nb.durability import Durability
from aner_nb.errors import CaseError
from aner_nb.events import Event
from aner_nb.progress import Progress
from aner_nb.receipts import TrialReceipt
from aner_nb.sources import fingerprint
from aner_nb.stopping import EarlyStopping, StopWatch
from aner_nb.tables import rows_of
from aner_nb.trial_verification import receipt_findings
from aner_nb.verification import verify

NOISY = aner.SGD(2.0)  # too large a step: the validation loss soon ceases to fall


def case_of(**changes: Any) -> aner.Case:
    fields: dict[str, Any] = {
        "data": aner.iris(),
        "layers": [8, 3],
        "batch": 30,
        "epochs": 60,
        "optimizer": NOISY,
        "dtype": "float64",
        "channel": "inline",
        "ranks": ["numpy"],
        "stop_early": EarlyStopping(patience=4),
    }
    return aner.Case("early", **{**fields, **changes})


def run(**changes: Any) -> aner.Trial:
    return aner.run(case_of(**changes)).raise_unless_passed()


def losses_of(trial: aner.Trial) -> list[float]:
    return [math.nan if epoch.loss is None else epoch.loss for epoch in trial.receipt.validation]


def keras_epochs(losses: list[float], rule: EarlyStopping) -> int:
    """Return the epochs after which Keras's callback stops."""
    from keras.callbacks import EarlyStopping as Theirs

    theirs = Theirs("val_loss", min_delta=rule.min_delta, patience=rule.patience, mode="min")

    class Model:
        stop_training = False

    model = Model()
    theirs.set_model(model)
    theirs.on_train_begin()
    for epoch, loss in enumerate(losses):
        theirs.on_epoch_end(epoch, {"val_loss": loss})
        if model.stop_training:
            return epoch + 1
    return len(losses)


def our_epochs(losses: list[float], rule: EarlyStopping) -> int:
    watch = StopWatch(rule)
    for loss in losses:
        watch.validated(loss, np.zeros(1))
        if watch.over():
            break
    end = rule.end(losses) or len(losses)
    assert len(watch.losses) == end
    assert watch.best_epoch == rule.best(losses[:end])
    return end


@pytest.mark.tensorflow
@given(
    st.lists(st.integers(0, 40).map(float), min_size=1, max_size=30),
    st.integers(1, 6),
    st.integers(0, 5).map(float),
)
def test_the_rule_is_that_of_keras(losses: list[float], patience: int, min_delta: float) -> None:
    rule = EarlyStopping(patience, min_delta)
    assert our_epochs(losses, rule) == keras_epochs(losses, rule)


def test_many_epochs_are_decided_in_one_pass() -> None:
    losses = [1.0 / (1 + epoch) for epoch in range(200_000)]
    assert EarlyStopping(5).end([*losses, *[1.0] * 5]) == 200_005


@given(st.lists(st.floats(allow_nan=True), min_size=1, max_size=12), st.integers(1, 4))
def test_a_loss_that_is_no_number_is_never_the_best(losses: list[float], patience: int) -> None:
    best = EarlyStopping(patience).best(losses)
    assert math.isnan(losses[best]) == all(map(math.isnan, losses))
    assert all(losses[best] <= loss for loss in losses if not math.isnan(loss))


@pytest.mark.parametrize("ranks", [["numpy"], [("numpy", 1), ("numpy", 3)], ["numpy"] * 3])
def test_a_trial_stops_and_passes_and_says_where(ranks: list[Any]) -> None:
    trial = run(ranks=ranks)
    stopping, counts = trial.receipt.stopping, trial.receipt.counts
    assert stopping is not None
    assert counts is not None
    assert stopping.stopped
    assert stopping.epochs == our_epochs(losses_of(trial), EarlyStopping(4)) < 60
    assert stopping.epochs == len(trial.receipt.validation) == stopping.best_epoch + 5
    assert (counts.updates, counts.rows) == (3 * stopping.epochs, 90 * stopping.epochs)
    assert (counts.planned_updates, counts.planned_rows) == (180, 5400)
    assert trial.steps is not None
    assert len(trial.steps.loss) == len(trial.steps.rows) == counts.updates
    assert f"stopped early after {stopping.epochs} epochs" in str(trial)
    assert f"stopped early after {stopping.epochs}; the best was epoch" in trial._repr_html_()
    assert all(check.passed for check in trial.receipt.checks)
    assert "epochs by the rule for stopping early" in [check.name for check in trial.receipt.checks]


def test_groups_stop_where_standalone_stops() -> None:
    ends = {
        run(ranks=ranks).receipt.stopping for ranks in (["numpy"], ["numpy", ("numpy", 3)], ["numpy"] * 3)
    }
    assert len(ends) == 1


def test_a_case_that_never_stops_says_so() -> None:
    trial = run(epochs=3)
    assert trial.receipt.stopping is not None
    assert (trial.receipt.stopping.epochs, trial.receipt.stopping.stopped) == (3, False)
    assert run(stop_early=None, epochs=2).receipt.stopping is None


@pytest.mark.parametrize("epochs", [60, 8])
def test_the_best_parameters_come_back(epochs: int) -> None:
    trial = run(epochs=epochs, stop_early=EarlyStopping(4, restore_best=True))
    stopping = trial.receipt.stopping
    assert stopping is not None
    assert stopping.restored
    best = run(epochs=stopping.best_epoch + 1, stop_early=None)
    assert trial.parameters is not None
    assert best.parameters is not None
    np.testing.assert_array_equal(trial.parameters, best.parameters)
    assert trial.receipt.test == best.receipt.test
    assert trial.receipt.fingerprints is not None
    assert trial.receipt.fingerprints.final_parameters == fingerprint(best.parameters)


@pytest.mark.parametrize("cut", [1, 4, 6])
@pytest.mark.parametrize("every", ["epoch", 2])
def test_a_resumed_trial_stops_at_the_same_epoch(tmp_path: Path, cut: int, every: Any) -> None:
    rule = EarlyStopping(4, restore_best=True)
    whole = run(stop_early=rule)
    asked = iter([False] * cut)
    durability = Durability(tmp_path / "state", every=every)
    case = case_of(stop_early=rule)
    halted = aner.run(case, stop=lambda: next(asked, True), durability=durability)
    assert halted.receipt.status == "cancelled"
    resumed = aner.run(case, durability=durability).raise_unless_passed()
    assert resumed.receipt.resumed_from > 0
    assert resumed.receipt.stopping == whole.receipt.stopping
    np.testing.assert_array_equal(resumed.parameters, whole.parameters)
    assert list(receipt_findings("t", public(resumed))) == []
    # The file says that training is over: nothing is left to do.
    again = aner.run(case, durability=durability).raise_unless_passed()
    assert again.receipt.counts is not None
    assert again.receipt.counts.updates == 0
    np.testing.assert_array_equal(again.parameters, whole.parameters)
    assert len(load_checkpoint(tmp_path / "state").losses) == whole.receipt.stopping.epochs  # type: ignore[union-attr]


def public(trial: aner.Trial) -> TrialReceipt:
    return trial.receipt


def changed(trial: aner.Trial, **changes: Any) -> TrialReceipt:
    return msgspec.structs.replace(trial.receipt, **changes)


def test_verification_accepts_an_early_stop_and_finds_a_wrong_one() -> None:
    trial = run()
    receipt = trial.receipt
    assert list(receipt_findings("t", receipt)) == []
    assert receipt.stopping is not None
    longer = msgspec.structs.replace(receipt.stopping, epochs=receipt.stopping.epochs + 1)
    found = {finding.field for finding in receipt_findings("t", changed(trial, stopping=longer))}
    assert {"stopping.epochs", "counts.updates", "validation"} <= found
    other = msgspec.structs.replace(receipt.stopping, best_epoch=0)
    found = {finding.field for finding in receipt_findings("t", changed(trial, stopping=other))}
    assert found == {"stopping.best_epoch"}
    found = {finding.field for finding in receipt_findings("t", changed(trial, stopping=None))}
    assert "stopping" in found
    case = {**receipt.case, "stop_early": {"patience": -1}}
    found = {finding.field for finding in receipt_findings("t", changed(trial, case=case))}
    assert "case.stop_early" in found
    losses = [msgspec.structs.replace(epoch, loss=1.0 / (1 + epoch.epoch)) for epoch in receipt.validation]
    found = {finding.field for finding in receipt_findings("t", changed(trial, validation=tuple(losses)))}
    assert "stopping.epochs" in found


def test_different_ends_show_and_are_not_compared() -> None:
    alone = run().receipt
    assert alone.stopping is not None
    group = case_of(ranks=["numpy", "numpy"])
    group = dataclasses.replace(group, name="group")
    other = aner.run(group).raise_unless_passed().receipt
    same = summarise([alone, other], ["early", "group"])
    assert [case.epochs for case in same.cases] == [(alone.stopping.epochs,)] * 2
    assert same.cases[1].fit_comparison is not None
    cells = [row.cells()[-1] for row in rows_of(same, [case_of(), group])]
    assert cells == [f"1, after {alone.stopping.epochs} epochs"] * 2
    assert not [line for line in same.warnings if "stopped after" in line]
    ended = msgspec.structs.replace(other.stopping, epochs=alone.stopping.epochs + 1)  # type: ignore[type-var]
    apart = summarise([alone, msgspec.structs.replace(other, stopping=ended)], ["early", "group"])
    assert apart.cases[1].fit_comparison is None
    assert "stopped after the same number of epochs" in apart.cases[1].no_baseline
    assert any("group after" in line and "early after" in line for line in apart.warnings)
    unsteady = msgspec.structs.replace(alone, repetition=2, stopping=ended)
    twice = summarise([alone, unsteady], ["early"])
    assert any("its trials stopped after different epochs" in line for line in twice.warnings)


def test_progress_says_that_a_trial_was_stopped_early() -> None:
    progress = Progress([], [], {})
    events: list[Event] = []
    aner.run(case_of(), subscribers=[events.append])
    for event in events:
        progress.see(event)
    shown = progress.snapshot()["current"]
    assert shown["ended"]
    assert shown["stage"] == f"passed, stopped early after {shown['epoch']} epochs"
    assert shown["epoch"] < 60


def test_the_rule_survives_its_record() -> None:
    case = case_of(stop_early=EarlyStopping(3, 0.125, restore_best=True))
    assert case_from_record(case.to_record()) == case


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        (5, "case 'early': stop_early: 5 is no rule"),
        ({}, "stop_early needs 'patience'"),
        ({"patience": 0}, "stop_early.patience: 0 is not a whole number"),
        ({"patience": 1, "min_delta": -1}, "stop_early.min_delta: -1 is out of range"),
        ({"patience": 1, "restore_best": 1}, "stop_early.restore_best: 1 is neither"),
        ({"patience": 1, "monitor": "x"}, "stop_early has no 'monitor'"),
    ],
)
def test_what_is_no_rule_is_refused(rule: object, sentence: str) -> None:
    with pytest.raises(CaseError, match=sentence):
        case_of(stop_early=rule)


def test_the_shipped_bundle_is_older_than_early_stopping_and_still_verifies() -> None:
    folder = Path(__file__).parent.parent / "docs" / "results" / "cpu"
    assert b'"stopping"' not in (folder / "trials.jsonl").read_bytes()
    assert verify(folder) == []
