"""Results people can use: a file that Keras loads alone, a confusion matrix, curves, a comparison."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aner_nb as aner
from aner_nb.errors import CaseError

LOADS = """
import sys
sys.modules["aner_nb"] = None  # an import of it raises
import keras, numpy
model = keras.models.load_model(sys.argv[1])
rows = numpy.load(sys.argv[2])
numpy.save(sys.argv[3], numpy.asarray(model(rows)))
print(type(model.layers[0]).__name__)
"""


def iris(**changes: Any) -> aner.Fitted:
    fields: dict[str, Any] = {"batch": 30, "epochs": 3, "ranks": ["numpy"], "channel": "inline", **changes}
    return aner.fit(aner.iris(), [8, 3], **fields)


def loaded(fitted: aner.Fitted, rows: np.ndarray, folder: Path) -> np.ndarray:
    from aner_nb.backends.keras import prepare_coordinator

    prepare_coordinator()  # as a trial of this process would: saving starts TensorFlow, and its threads stay
    path = fitted.save(folder / "net.keras")
    np.save(folder / "rows.npy", rows)
    names = [str(folder / name) for name in ("rows.npy", "out.npy")]
    done = subprocess.run(
        [sys.executable, "-P", "-c", LOADS, str(path), *names],
        capture_output=True, text=True, check=True, cwd=folder,
    )  # fmt: skip
    assert done.stdout.split() == ["Normalization"]
    assert sorted(item.name for item in folder.iterdir()) == ["net.keras", "out.npy", "rows.npy"]
    return np.load(folder / "out.npy")


@pytest.mark.tensorflow
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 1e-5)])
def test_keras_alone_gives_the_same_outputs_from_raw_rows(
    tmp_path: Path, dtype: str, tolerance: float
) -> None:
    fitted = iris(dtype=dtype)
    rows = aner.iris().load().features
    np.testing.assert_allclose(loaded(fitted, rows, tmp_path), fitted.outputs(rows), atol=tolerance, rtol=0)


@pytest.mark.tensorflow
def test_a_stack_with_other_layers_and_a_far_column_is_saved(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = random.standard_normal((200, 3)) * [1.0, 1e-3, 1e4] + [1e7, 0.0, -3.0]
    layers = [aner.Dense(6, "tanh"), aner.LayerNorm(), aner.Dropout(0.2), aner.Dense(2)]
    fitted = aner.fit(
        aner.arrays(rows, random.standard_normal((200, 2))), layers,
        epochs=2, ranks=["numpy"], channel="inline", dtype="float64",
    )  # fmt: skip
    np.testing.assert_allclose(loaded(fitted, rows, tmp_path), fitted.outputs(rows), atol=1e-9, rtol=0)


def test_a_file_must_be_called_keras(tmp_path: Path) -> None:
    with pytest.raises(CaseError, match=r"'net\.h5' does not end in \.keras"):
        iris().save(tmp_path / "net.h5")


def test_a_confusion_matrix_counts_test_rows_by_true_and_predicted_class() -> None:
    fitted = iris(epochs=20)
    matrix = fitted.confusion_matrix()
    test = fitted.work.data.test
    assert matrix.counts.sum(axis=1).tolist() == np.bincount(test.targets).tolist()
    accuracy = np.trace(matrix.counts) / matrix.counts.sum()
    assert accuracy == pytest.approx(fitted.evaluate().accuracy)
    assert "true \\ predicted" in str(matrix)
    assert all(name in matrix._repr_html_() for name in fitted.work.data.class_names)


def test_learning_curves_have_a_row_an_epoch() -> None:
    fitted = iris(epochs=5)
    curves = fitted.learning_curves()
    assert curves.index.tolist() == [0, 1, 2, 3, 4]
    assert curves.validation_loss.tolist() == [record.loss for record in fitted.trial.receipt.validation]


def test_two_results_are_compared() -> None:
    alone, group = iris(), iris(ranks=["numpy", ("numpy", 3)])
    found = aner.compare(alone, group.trial)
    assert found.same_work and found.agrees
    assert found.maximum_absolute is not None and found.maximum_absolute < 1e-5
    assert found.cosine == pytest.approx(1.0)
    assert "the same work" in str(found) and "test loss" in found._repr_html_()
    other = aner.compare(alone, iris(seed=5))
    assert not other.same_work and other.agrees is None
    with pytest.raises(CaseError, match="int is no result of a run"):
        aner.compare(alone, 3)
