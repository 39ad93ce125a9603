"""What can be trained, whatever computes it: a flat vector with a layout, outputs for rows, a loss, an evaluation."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Generator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from aner_nb.case import Case, Loss
from aner_nb.errors import CaseError
from aner_nb.layers import Layer

Array = NDArray[np.floating]
Labels = NDArray[Any]
"""(rows,) whole-number classes, or (rows, outputs) numbers."""
Masks = Sequence[NDArray[np.bool_]]
"""(rows, units) of each Dropout layer: whether a unit is kept."""

_EVALUATION_ROWS: Final = 512
_EVALUATORS: Final = 2


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each array of the network lies in the flat vector."""

    shapes: tuple[tuple[int, ...], ...]
    """Of each array in turn; in a Dense layer weights (inputs, units) and then biases (units,)."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Elements of each array."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @property
    def size(self) -> int:
        """Elements of the flat vector."""
        return sum(self.sizes)

    def views(self, vector: Array) -> tuple[Array, ...]:
        """Return the arrays as views of `vector`, shape (size,); nothing is copied."""
        views: list[Array] = []
        start = 0
        for shape, size in zip(self.shapes, self.sizes, strict=True):
            views.append(vector[start : start + size].reshape(shape))
            start += size
        return tuple(views)


class Network(Protocol):
    """What the coordinator, the ranks and the reference need of whatever is trained.

    The Dense stack (`aner_nb.model.Model`) computes these with NumPy, a Keras model with TensorFlow on CPU.
    """

    @property
    def features(self) -> int:
        """Columns of the rows."""
        ...

    @property
    def loss(self) -> Loss:
        """What the gradients are of."""
        ...

    @property
    def class_weights(self) -> tuple[float, ...]:
        """What a row counts in the training loss, by class; empty: every row counts 1."""
        ...

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Layers whose Dropout masks the coordinator's and the ranks' own random numbers draw; may be empty."""
        ...

    @property
    def layout(self) -> Layout:
        """The layout of the parameters."""
        ...

    def l2(self) -> NDArray[np.float64] | None:
        """Return what each parameter's square counts in the loss, shape (parameters,); None: nothing."""
        ...

    def initial(self, seed: int) -> NDArray[np.float64]:
        """Return the initial flat vector, float64, shape (parameters,); the same for one seed."""
        ...

    def outputs(self, parameters: Array, features: Array) -> Array:
        """Return the last layer's outputs, (rows, outputs), computed on CPU in the parameters' dtype."""
        ...

    def gradient_sum(
        self, parameters: Array, features: Array, targets: Labels, out: Array, masks: Masks = ()
    ) -> float:
        """Write the gradient summed over the rows into `out`, (parameters,) float64; return the loss sum."""
        ...

    def operations(self) -> tuple[str, ...]:
        """Return the names of the reference graph's operations, in the order in which they run."""
        ...

    def to_record(self) -> dict[str, Any]:
        """Return the network as plain JSON values, for the ranks."""
        ...


def loss_of(case: Case, task: str) -> Loss:
    """Return the loss of a case for classes or numbers.

    Raises
    ------
    CaseError
        If the case names one that does not fit the targets.
    """
    natural: Loss = "softmax_cross_entropy" if task == "classification" else "mean_squared_error"
    loss = case.loss or natural
    if loss != natural:
        raise CaseError(
            f"{loss} does not fit the data's {task} targets.",
            where=f"case {case.name!r}: loss",
            remedy=f"Write {natural}, or leave the field out.",
        )
    return loss


def loss_and_slope(
    loss: Loss, output: Array, targets: Labels, class_weights: tuple[float, ...] = ()
) -> tuple[float, Array]:
    """Return the loss summed over the rows, and its derivative by the last layer's output."""
    if loss == "mean_squared_error":
        difference = output - targets
        width = output.shape[1]
        return float(np.sum(difference * difference) / width), difference * (2.0 / width)
    shifted = output - output.max(axis=1, keepdims=True, initial=-np.inf)
    exponents = np.exp(shifted)
    totals = exponents.sum(axis=1, keepdims=True)
    rows = np.arange(len(output))
    losses = np.log(totals[:, 0]) - shifted[rows, targets]
    slope = exponents / totals
    slope[rows, targets] -= 1.0
    if class_weights:
        weights = np.array(class_weights, output.dtype)[targets]
        losses = losses * weights
        slope *= weights[:, np.newaxis]
    return float(np.sum(losses)), slope


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How well parameters do on a set of rows."""

    rows: int
    loss: float
    """Mean over the rows."""
    accuracy: float | None
    """Share of rows whose largest output is their class; None for regression."""


@contextlib.contextmanager
def evaluators() -> Generator[Executor]:
    """Yield the threads that share a validation's rows, with NumPy's BLAS held to one thread for each.

    BLAS's own threads spin for a while after a product, on the cores of the ranks.
    """
    with threadpool_limits(1, "blas"), ThreadPoolExecutor(_EVALUATORS, "aner-evaluation") as pool:
        yield pool


def evaluate(
    network: Network,
    parameters: NDArray[np.float64],
    features: Array,
    targets: Labels,
    *,
    pool: Executor | None = None,
) -> Evaluation:
    """Evaluate on CPU in float64, in blocks of rows so that memory stays bounded.

    Parameters
    ----------
    pool
        Threads that share the blocks. The blocks' sums are added in the order of the rows: the result does not
        depend on it.
    """

    def evaluate_block(start: int) -> tuple[float, int]:
        block = slice(start, start + _EVALUATION_ROWS)
        output = network.outputs(parameters, features[block])
        loss = loss_and_slope(network.loss, output, targets[block])[0]
        if network.loss == "mean_squared_error":
            return loss, 0
        return loss, int(np.sum(output.argmax(axis=1) == targets[block]))

    starts = range(0, len(features), _EVALUATION_ROWS)
    blocks = list((pool.map if pool is not None else map)(evaluate_block, starts))
    rows = len(features)
    hits = sum(block_hits for _, block_hits in blocks)
    accuracy = hits / rows if network.loss == "softmax_cross_entropy" else None
    return Evaluation(rows, sum(loss for loss, _ in blocks) / rows, accuracy)
