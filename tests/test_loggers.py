"""Curves in TensorBoard and MLflow, read back with their own packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import aner_nb as aner
from aner_nb.errors import CaseError


def case(**fields: Any) -> aner.Case:
    given = {"layers": [8, 3], "batch": 30, "epochs": 3, "ranks": ["numpy"], "channel": "inline"}
    return aner.Case("iris", data=aner.iris(), **{**given, **fields})


READ = """
import json, sys
sys.modules["tensorflow"] = None  # where it is there, the reader would load it
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
kept = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0}).Reload()
print(json.dumps({tag: [(e.step, e.value) for e in kept.Scalars(tag)] for tag in kept.Tags()["scalars"]}))
"""


def test_tensorboard_reads_back_what_the_receipt_says(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    import json

    wanted = case()
    trial = aner.run(wanted, subscribers=[aner.log_to_tensorboard(tmp_path)]).raise_unless_passed()
    (folder,) = tmp_path.glob("*/*")
    assert (folder.parent.name, folder.name) == ("iris", "measured-1")
    said = subprocess.run(
        [sys.executable, "-c", READ, str(folder)], check=True, capture_output=True, text=True
    )
    found = json.loads(said.stdout)
    assert set(found) == {"train/loss", "validation/loss", "validation/accuracy"}
    epochs = trial.receipt.validation
    assert [step for step, _ in found["validation/loss"]] == [epoch.update for epoch in epochs]
    assert [value for _, value in found["validation/loss"]] == pytest.approx([epoch.loss for epoch in epochs])
    assert [value for _, value in found["validation/accuracy"]] == pytest.approx(
        [epoch.accuracy for epoch in epochs]
    )
    assert trial.steps is not None
    assert [value for _, value in found["train/loss"]] == pytest.approx(trial.steps.loss.tolist())


def test_the_logger_loads_no_tensorflow(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    code = (
        "import sys, aner_nb as aner\n"
        "case = aner.Case('a', data=aner.iris(), layers=[3], batch=30, epochs=1, ranks=['numpy'], channel='inline')\n"
        "aner.run(case, subscribers=[aner.log_to_tensorboard(sys.argv[1])]).raise_unless_passed()\n"
        "assert 'tensorflow' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert list(tmp_path.glob("a/measured-1/events.out.tfevents.*"))


def test_each_trial_has_a_folder_and_a_cancelled_one_is_closed(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    watch = aner.log_to_tensorboard(tmp_path)
    aner.run(case(), role="warm_up", subscribers=[watch])
    aner.run(case(), repetition=2, subscribers=[watch], stop=lambda: True)
    assert sorted(path.name for path in tmp_path.glob("*/*")) == ["measured-2", "warm_up-1"]
    assert watch._file is None  # pyright: ignore[reportFunctionMemberAccess]


@pytest.mark.long
@pytest.mark.filterwarnings("default")
def test_mlflow_reads_back_what_the_receipt_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database would take more packages
    place = (tmp_path / "runs").as_uri()
    watch = aner.log_to_mlflow("flowers", tracking_uri=place)
    trial = aner.run(case(), subscribers=[watch]).raise_unless_passed()
    aner.run(
        case(),
        repetition=2,
        subscribers=[aner.log_to_mlflow("flowers", tracking_uri=place)],
        stop=lambda: True,
    )
    client = mlflow.MlflowClient(tracking_uri=place)
    number = client.get_experiment_by_name("flowers").experiment_id
    runs = {run.info.run_name: run for run in client.search_runs([number])}
    run, ended = runs["iris measured 1"], runs["iris measured 2"]
    assert (run.info.status, ended.info.status) == ("FINISHED", "KILLED")
    assert run.data.params["ranks"] == "numpy"
    epochs = trial.receipt.validation
    told = client.get_metric_history(run.info.run_id, "validation/loss")
    assert [(item.step, item.value) for item in told] == [(epoch.update, epoch.loss) for epoch in epochs]
    assert trial.steps is not None
    losses = client.get_metric_history(run.info.run_id, "train/loss")
    assert [item.value for item in losses] == trial.steps.loss.tolist()
    assert trial.receipt.test is not None
    assert run.data.metrics["test/accuracy"] == trial.receipt.test.accuracy


@pytest.mark.parametrize(
    ("package", "make", "extra"),
    [
        ("tensorboard", lambda: aner.log_to_tensorboard("logs"), "tensorboard"),
        ("mlflow", aner.log_to_mlflow, "mlflow"),
    ],
)
def test_what_is_not_installed_is_told_with_the_way(
    monkeypatch: pytest.MonkeyPatch, package: str, make: Any, extra: str
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)  # what an import finds of a package that is not there
    with pytest.raises(
        CaseError, match=rf"is not installed. Install it with: pip install 'aner-nb\[{extra}\]'"
    ):
        make()
