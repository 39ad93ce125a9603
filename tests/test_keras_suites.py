"""A Keras model beyond one trial: in a suite's file, a results folder, a public bundle; killed, and resumed to the bit."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aner_nb as aner
from aner_nb.errors import CaseError
from aner_nb.keras_models import keras_model
from aner_nb.verification import verify
from tests.study_fixtures import make_study

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(300)]

SUITE = """\
name: nets
warm_ups: 0
repetitions: 1
defaults:
  data: digits
  model: conv.json
  batch: 256
  epochs: 1
  seed: 4
  channel: inline
cases:
  - {name: solo, ranks: [cpu:1]}
  - {name: pair, ranks: [cpu:1, cpu:1]}
"""


@pytest.fixture(scope="module")
def net() -> str:
    """Return the JSON of a small convolution."""
    from aner_nb.backends.keras import keras, prepare_coordinator

    prepare_coordinator()
    layers: Any = keras.layers
    return keras.Sequential(
        [layers.Input((8, 8, 1)), layers.Conv2D(3, 3, activation="relu"), layers.Flatten(), layers.Dense(10)]
    ).to_json()


@pytest.fixture
def written(net: str, tmp_path: Path) -> Path:
    (tmp_path / "conv.json").write_text(net, encoding="utf-8")
    path = tmp_path / "nets.yaml"
    path.write_text(SUITE, encoding="utf-8")
    return path


def test_a_suite_names_the_file_of_its_model(written: Path, net: str) -> None:
    suite = aner.suite(written)
    assert [case.model for case in suite.cases] == [keras_model(net)] * 2
    inline = json.loads(json.dumps(suite.to_record()))
    from aner_nb.suites import suite_from_record

    assert suite_from_record(inline).cases == suite.cases
    whole = aner.Case(
        "solo", data=aner.digits(), model=net, batch=256, epochs=1, seed=4, channel="inline", ranks=["cpu:1"]
    )
    assert suite.cases[0].contract_id == whole.contract_id


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "model: conv.json cannot be read .No such file.*Write what model.to_json"),
        (b"\xff\xfe", "model: conv.json cannot be read"),
        (b"{", "this is not the configuration of a Keras 3 model"),
        (b" " * (2**20 + 1), "model: conv.json is over 1,048,576 bytes"),
    ],
)
def test_a_file_that_is_no_model_is_refused(written: Path, content: bytes | None, sentence: str) -> None:
    model = written.parent / "conv.json"
    if content is None:
        model.unlink()
    else:
        model.write_bytes(content)
    with pytest.raises(CaseError, match=sentence):
        aner.suite(written)


def test_a_study_of_it_is_stored_published_verified_and_gone_on_with(written: Path, tmp_path: Path) -> None:
    suite = aner.suite(written)
    out = tmp_path / "results"
    study = make_study(out, chosen=suite, repetitions=1)
    receipts = {receipt.case_name: receipt for receipt in study.receipts}
    assert {receipt.status for receipt in receipts.values()} == {"passed"}
    # Opened again, it has the model; another study in the folder runs only what is missing.
    assert aner.open_study(out).suite.cases == suite.cases
    (out / "receipts" / "pair" / "trial-1.json").unlink()
    again = make_study(out, chosen=suite, repetitions=1)
    told = {receipt.case_name: receipt for receipt in again.receipts}
    assert told["solo"] == receipts["solo"]
    assert told["pair"].started is not None and told["pair"].fingerprints == receipts["pair"].fingerprints
    bundle = again.publish(tmp_path / "public")
    assert verify(bundle) == []
    summary = aner.open_study(bundle).summary()
    assert {case.case: case.agreement.agrees for case in summary.cases if case.agreement} == {
        "solo": True,
        "pair": True,
    }
    text = (bundle / "trials.jsonl").read_text(encoding="utf-8")
    (bundle / "trials.jsonl").write_text(text.replace('"filters":3', '"filters":4'), encoding="utf-8")
    assert verify(bundle)


KILLED = """
import os, signal, sys
from pathlib import Path
import aner_nb as aner
from aner_nb import durability

inner, left = durability.save_checkpoint, int(sys.argv[3])

def save(path, checkpoint):
    global left
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    inner(path, checkpoint)

durability.save_checkpoint = save
case = aner.suite(sys.argv[1]).cases[1]
aner.run(case, durability=aner.Durability(Path(sys.argv[2]), every=1))
"""


def test_a_killed_training_goes_on_from_its_checkpoint_to_the_same_bits(
    written: Path, tmp_path: Path
) -> None:
    """SIGKILL between two updates, in the second of three epochs; then the rest, in another process."""
    written.write_text(SUITE.replace("epochs: 1", "epochs: 3\n  optimizer: {kind: adam}"), encoding="utf-8")
    state = tmp_path / "state.safetensors"
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(written), str(state), "7"], capture_output=True, text=True
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    case = aner.suite(written).cases[1]
    rest = aner.run(case, durability=aner.Durability(state, every=1)).raise_unless_passed()
    assert rest.receipt.resumed_from == 7
    whole = aner.run(case).raise_unless_passed()
    assert rest.parameters is not None and whole.parameters is not None
    np.testing.assert_array_equal(rest.parameters, whole.parameters)
    assert rest.receipt.test == whole.receipt.test
