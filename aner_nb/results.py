"""What a person does with a trained network: a file for Keras, a confusion matrix, curves, a comparison."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from aner_nb.agreement import TOLERANCE
from aner_nb.errors import CaseError
from aner_nb.model import Model
from aner_nb.networks import KerasNetwork
from aner_nb.receipts import TrialReceipt
from aner_nb.trial import Trial
from aner_nb.views import table, text
from aner_nb.work import Work

if TYPE_CHECKING:
    import pandas


def save(work: Work, parameters: NDArray[np.float64], path: str | Path) -> Path:
    """Write a trained network as a ``.keras`` file that takes raw rows and loads without aner_nb.

    Raises
    ------
    CaseError
        If the name does not end in ``.keras``, or the file cannot be written.
    """
    target = Path(path)
    if target.suffix != ".keras":
        raise CaseError(
            f"{target.name!r} does not end in .keras.", where="save", remedy="Write 'name.keras'."
        )
    from aner_nb.backends import keras

    network, dtype = work.model, work.case.dtype
    if isinstance(network, KerasNetwork):
        layers = keras.network_layers(network.text, dtype)
    else:
        layers = keras.dense_layers(cast("Model", network), dtype)
    normalization = work.data.normalization
    keras.save_model(
        target, layers, normalization.mean, normalization.scale, network.layout.views(parameters)
    )
    return target


@dataclass(frozen=True, slots=True)
class ConfusionMatrix:
    """How often rows of each class were taken for each class."""

    counts: NDArray[np.int64]
    """(classes, classes): row is the true class, column the predicted one."""
    class_names: tuple[str, ...]

    def _rows(self) -> list[list[str]]:
        return [
            [name, *map(str, row)] for name, row in zip(self.class_names, self.counts.tolist(), strict=True)
        ]

    def __str__(self) -> str:
        lines = [["true \\ predicted", *self.class_names], *self._rows()]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines
        )

    def _repr_html_(self) -> str:
        return table(("true \\ predicted", *self.class_names), self._rows())


def confusion(truth: NDArray[Any], predicted: NDArray[Any], class_names: tuple[str, ...]) -> ConfusionMatrix:
    """Return how often rows of each class, by number, were taken for each."""
    count = len(class_names)
    pairs = truth.astype(np.int64) * count + predicted
    return ConfusionMatrix(np.bincount(pairs, minlength=count * count).reshape(count, count), class_names)


def learning_curves(receipt: TrialReceipt) -> pandas.DataFrame:
    """Return one row an epoch: training loss, validation loss and accuracy, seconds since the first request."""
    import pandas

    rows = [
        {
            "epoch": record.epoch,
            "update": record.update,
            "seconds": record.elapsed_ns / 1e9,
            "train_loss": record.train_loss,
            "validation_loss": record.loss,
            "validation_accuracy": record.accuracy,
        }
        for record in receipt.validation
    ]
    return pandas.DataFrame(rows).set_index("epoch") if rows else pandas.DataFrame()


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two trials beside each other."""

    names: tuple[str, str]
    same_work: bool
    """Whether both train the same thing, so that equal parameters can be expected."""
    maximum_absolute: float | None
    """Of the difference of the final parameters; None where they have not the same number."""
    root_mean_square: float | None
    cosine: float | None
    """Between the vectors; 1 is the same direction."""
    agrees: bool | None
    """Whether the largest difference, over the first's largest magnitude, is within the dtype's tolerance; None:
    not the same work."""
    losses: tuple[float | None, float | None]
    """On the test rows."""
    accuracies: tuple[float | None, float | None]
    native_fit_s: tuple[float | None, float | None]

    def _rows(self) -> list[tuple[str, str, str]]:
        def shown(value: float | None) -> str:
            return "–" if value is None else f"{value:.6g}"

        pairs = (
            ("test loss", self.losses),
            ("test accuracy", self.accuracies),
            ("native fit (s)", self.native_fit_s),
        )
        return [(label, shown(first), shown(second)) for label, (first, second) in pairs]

    def _summary(self) -> str:
        work = "the same work" if self.same_work else "different work"
        if self.maximum_absolute is None:
            return f"{work}; their parameters have not the same number"
        verdict = {True: ", which agrees", False: ", which does not agree", None: ""}[self.agrees]
        return (
            f"{work}; parameters differ by at most {self.maximum_absolute:.3g} (RMS {self.root_mean_square:.3g}, "
            f"cosine {self.cosine:.12g}){verdict}"
        )

    def __str__(self) -> str:
        lines = [("", *self.names), *self._rows()]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        body = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        ]
        return "\n".join([*body, f"{self._summary()}."])

    def _repr_html_(self) -> str:
        return table(("", *self.names), self._rows()) + f"<p>{text(self._summary())}.</p>"


def compare(first: Any, second: Any) -> Comparison:
    """Compare two results of `run` or `fit`: parameters, losses, accuracies, native fit.

    Raises
    ------
    CaseError
        If one of them has no parameters, because its trial did not pass.
    """
    trials = [_trial(first), _trial(second)]
    vectors = [trial.parameters for trial in trials]
    receipts = [trial.receipt for trial in trials]
    a, b = vectors
    if a is None or b is None:
        raise CaseError(
            "a trial that did not pass has no final parameters.",
            where="compare",
            remedy="Compare trials that passed.",
        )
    same = receipts[0].work_id == receipts[1].work_id
    distance: tuple[float, float, float] | None = None
    agrees = None
    if a.shape == b.shape:
        norms = float(np.linalg.norm(a) * np.linalg.norm(b))
        cosine = float(a @ b) / norms if norms else 1.0
        distance = float(np.abs(a - b).max()), float(np.sqrt(np.mean((a - b) ** 2))), cosine
        if same:
            scale = float(np.abs(a).max()) or 1.0
            agrees = distance[0] / scale <= TOLERANCE[str(receipts[0].case["dtype"])]
    maximum, rms, direction = distance or (None, None, None)
    tests = [receipt.test for receipt in receipts]
    clocks = [receipt.clocks for receipt in receipts]
    return Comparison(
        (receipts[0].case_name, receipts[1].case_name),
        same,
        maximum,
        rms,
        direction,
        agrees,
        (tests[0].loss if tests[0] else None, tests[1].loss if tests[1] else None),
        (tests[0].accuracy if tests[0] else None, tests[1].accuracy if tests[1] else None),
        (
            clocks[0].native_fit_ns / 1e9 if clocks[0] else None,
            clocks[1].native_fit_ns / 1e9 if clocks[1] else None,
        ),
    )


def _trial(item: Any) -> Trial:
    trial = item if isinstance(item, Trial) else getattr(item, "trial", None)
    if not isinstance(trial, Trial):
        raise CaseError(
            f"{type(item).__name__} is no result of a run.",
            where="compare",
            remedy="Give a Fitted or a Trial.",
        )
    return trial
