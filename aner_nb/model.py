"""The Dense stack in NumPy: layout of the flat vector, initial values, forward, backward, evaluation.

This is the canonical CPU reference: the coordinator evaluates with it, and `develop` compares with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aner_nb.case import Case, Loss
from aner_nb.counter import uniform
from aner_nb.errors import CaseError
from aner_nb.layers import Activation, Layer

Array = NDArray[np.floating]
Labels = NDArray[Any]
"""(rows,) whole-number classes, or (rows, outputs) numbers."""

_EVALUATION_ROWS: Final = 512


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each array of the model lies in the flat vector."""

    shapes: tuple[tuple[int, ...], ...]
    """Weights (inputs, units) and biases (units,) of each layer in turn."""

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


@dataclass(frozen=True, slots=True)
class Model:
    """A Dense stack and its loss."""

    features: int
    layers: tuple[Layer, ...]
    loss: Loss
    class_weights: tuple[float, ...] = ()
    """What a row counts in the training loss, by class; empty: every row counts 1."""

    @property
    def layout(self) -> Layout:
        """The layout of the parameters."""
        shapes: list[tuple[int, ...]] = []
        inputs = self.features
        for layer in self.layers:
            shapes += [(inputs, layer.units), (layer.units,)]
            inputs = layer.units
        return Layout(tuple(shapes))

    def initial(self, seed: int) -> NDArray[np.float64]:
        """Return the initial flat vector, float64, shape (parameters,); equal on every platform."""
        layout = self.layout
        vector = np.zeros(layout.size)
        views = layout.views(vector)
        for index, layer in enumerate(self.layers):
            inputs, units = layout.shapes[2 * index]
            limit = _INITIALISER_LIMIT[layer.initialiser](inputs, units)
            drawn = uniform(seed, f"weights of layer {index}", (inputs, units))
            views[2 * index][:] = (2.0 * drawn - 1.0) * limit
        return vector

    def l2(self) -> NDArray[np.float64] | None:
        """Return what each parameter's square counts in the loss, shape (parameters,); None: nothing."""
        if not any(layer.l2 for layer in self.layers):
            return None
        vector = np.zeros(self.layout.size)
        views = self.layout.views(vector)
        for index, layer in enumerate(self.layers):
            views[2 * index][:] = layer.l2
        return vector


_INITIALISER_LIMIT: Final[dict[str, Callable[[int, int], float]]] = {
    # Glorot and Bengio 2010, equation 16; He et al. 2015, equation 10, as a uniform distribution.
    "glorot_uniform": lambda inputs, units: math.sqrt(6.0 / (inputs + units)),
    "he_uniform": lambda inputs, _units: math.sqrt(6.0 / inputs),
    "zeros": lambda _inputs, _units: 0.0,
}


def make_model(case: Case, *, features: int, outputs: int, task: str) -> Model:
    """Return the model of a case for data with `features` columns and `outputs` classes or columns.

    Raises
    ------
    CaseError
        If the layers or the loss don't fit the data.
    """
    where = f"case {case.name!r}"
    natural: Loss = "softmax_cross_entropy" if task == "classification" else "mean_squared_error"
    loss = case.loss or natural
    if loss != natural:
        raise CaseError(
            f"{loss} does not fit the data's {task} targets.",
            where=f"{where}: loss",
            remedy=f"Write {natural}, or leave the field out.",
        )
    last = case.dense_layers[-1]
    if last.units != outputs:
        what = "classes" if task == "classification" else "target columns"
        raise CaseError(
            f"the last layer has {last.units} units, the data {outputs} {what}.",
            where=f"{where}: layers",
            remedy=f"End the list with {outputs}.",
        )
    if loss == "softmax_cross_entropy" and last.activation != "linear":
        raise CaseError(
            f"the last layer's activation is {last.activation}, but the loss applies softmax itself.",
            where=f"{where}: layers",
            remedy="Leave the last activation out, or write linear.",
        )
    return Model(features, case.dense_layers, loss)


def class_weights_of(case: Case, targets: Labels, outputs: int, task: str) -> tuple[float, ...]:
    """Return the weight of each class for a case's training rows; empty: every row counts 1.

    Raises
    ------
    CaseError
        If there are no classes, or not as many as weights, or one without a row to balance.
    """
    if case.class_weights is None:
        return ()
    where = f"case {case.name!r}: class_weights"
    if task != "classification":
        raise CaseError("the targets are numbers, not classes.", where=where, remedy="Leave the field out.")
    if case.class_weights == "balanced":
        counts = np.bincount(targets, minlength=outputs)
        if not counts.all():
            raise CaseError(
                f"class {int(counts.argmin())} has no training row, so nothing can balance it.",
                where=where,
                remedy="Give the weights as numbers, or bring rows of that class.",
            )
        return tuple((len(targets) / (outputs * counts)).tolist())
    if len(case.class_weights) != outputs:
        raise CaseError(
            f"there are {len(case.class_weights)} weights for {outputs} classes.",
            where=where,
            remedy=f"Give {outputs} numbers, or balanced.",
        )
    return tuple(map(float, case.class_weights))


# Activations: value from z, and derivative from the value (so that z need not be kept).


def _sigmoid(z: Array) -> Array:
    with np.errstate(over="ignore"):  # of a large exponential comes the right 0
        return np.reciprocal(1.0 + np.exp(-z)).astype(z.dtype, copy=False)


_ACTIVATIONS: Final[dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]]] = {
    "linear": (lambda z: z, np.ones_like),
    "relu": (lambda z: np.maximum(z, 0), lambda a: (a > 0).astype(a.dtype)),
    "tanh": (np.tanh, lambda a: 1 - a * a),
    "sigmoid": (_sigmoid, lambda a: a * (1 - a)),
}


def forward(model: Model, parameters: Array, features: Array) -> list[Array]:
    """Return the input and every layer's output, each (rows, units), in the parameters' dtype."""
    views = model.layout.views(parameters)
    outputs = [features]
    for index, layer in enumerate(model.layers):
        activation: Activation = layer.activation or "linear"
        z = outputs[-1] @ views[2 * index] + views[2 * index + 1]
        outputs.append(_ACTIVATIONS[activation][0](z))
    return outputs


def _loss_and_slope(
    model: Model, output: Array, targets: Labels, class_weights: tuple[float, ...] = ()
) -> tuple[float, Array]:
    """Return the loss summed over the rows, and its derivative by the last layer's output."""
    if model.loss == "mean_squared_error":
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


def gradient_sum(model: Model, parameters: Array, features: Array, targets: Labels, out: Array) -> float:
    """Write the gradient summed over the rows into `out`, shape (parameters,); return the loss sum.

    Computed in the dtype of `parameters`; `out` is float64. Zero rows give zeros.
    """
    outputs = forward(model, parameters, features)
    loss, slope = _loss_and_slope(model, outputs[-1], targets, model.class_weights)
    weights = model.layout.views(parameters)
    gradients = model.layout.views(out)
    for index in reversed(range(len(model.layers))):
        activation = model.layers[index].activation or "linear"
        if activation != "linear":
            slope = slope * _ACTIVATIONS[activation][1](outputs[index + 1])
        gradients[2 * index][:] = outputs[index].T @ slope
        gradients[2 * index + 1][:] = slope.sum(axis=0)
        if index:
            slope = slope @ weights[2 * index].T
    return loss


def operations(model: Model) -> tuple[str, ...]:
    """Return the names of the reference graph's operations, in the order in which they run."""
    names: list[str] = []
    for index, layer in enumerate(model.layers):
        names += [f"dense_{index}/matmul", f"dense_{index}/bias_add"]
        if layer.activation != "linear":
            names.append(f"dense_{index}/{layer.activation}")
    names += [model.loss, f"{model.loss}/gradient"]
    for index in reversed(range(len(model.layers))):
        if model.layers[index].activation != "linear":
            names.append(f"dense_{index}/{model.layers[index].activation}/gradient")
        names += [f"dense_{index}/matmul/weights_gradient", f"dense_{index}/bias_add/gradient"]
        if index:
            names.append(f"dense_{index}/matmul/input_gradient")
    return tuple(names)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How well parameters do on a set of rows."""

    rows: int
    loss: float
    """Mean over the rows."""
    accuracy: float | None
    """Share of rows whose largest output is their class; None for regression."""


def evaluate(
    model: Model,
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
        output = forward(model, parameters, features[block])[-1]
        loss = _loss_and_slope(model, output, targets[block])[0]
        if model.loss == "mean_squared_error":
            return loss, 0
        return loss, int(np.sum(output.argmax(axis=1) == targets[block]))

    starts = range(0, len(features), _EVALUATION_ROWS)
    blocks = list((pool.map if pool is not None else map)(evaluate_block, starts))
    rows = len(features)
    hits = sum(block_hits for _, block_hits in blocks)
    accuracy = hits / rows if model.loss == "softmax_cross_entropy" else None
    return Evaluation(rows, sum(loss for loss, _ in blocks) / rows, accuracy)
