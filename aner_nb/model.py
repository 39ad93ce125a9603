"""The Dense stack in NumPy: layout of the flat vector, initial values, forward, backward.

This is the canonical CPU reference: the coordinator evaluates with it, and `develop` compares with it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from aner_nb.case import Case, Loss
from aner_nb.counter import uniform
from aner_nb.errors import CaseError
from aner_nb.layers import Dense, Dropout, Layer, LayerNorm, layer_from_record, layer_to_record
from aner_nb.network import Array, Labels, Layout, Masks, loss_and_slope, loss_of


@dataclass(frozen=True, slots=True)
class Model:
    """A Dense stack and its loss."""

    features: int
    layers: tuple[Layer, ...]
    loss: Loss
    class_weights: tuple[float, ...] = ()
    """What a row counts in the training loss, by class; empty: every row counts 1."""

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of the rows, and units of each layer's output."""
        widths = [self.features]
        for layer in self.layers:
            widths.append(layer.units if isinstance(layer, Dense) else widths[-1])
        return tuple(widths)

    @property
    def places(self) -> tuple[int, ...]:
        """For each layer the place of its first array in the layout."""
        arrays = (0 if isinstance(layer, Dropout) else 2 for layer in self.layers[:-1])
        return tuple(itertools.accumulate(arrays, initial=0))

    @property
    def layout(self) -> Layout:
        """The layout of the parameters."""
        shapes: list[tuple[int, ...]] = []
        for layer, inputs in zip(self.layers, self.widths, strict=False):
            if isinstance(layer, Dense):
                shapes += [(inputs, layer.units), (layer.units,)]
            elif isinstance(layer, LayerNorm):
                shapes += [(inputs,), (inputs,)]
        return Layout(tuple(shapes))

    def initial(self, seed: int) -> NDArray[np.float64]:
        """Return the initial flat vector, float64, shape (parameters,); equal on every platform.

        Weights don't depend on the Dropout and LayerNorm layers between them.
        """
        layout = self.layout
        vector = np.zeros(layout.size)
        views = layout.views(vector)
        number = 0
        for place, layer in zip(self.places, self.layers, strict=True):
            if isinstance(layer, LayerNorm):
                views[place][:] = 1.0
            elif isinstance(layer, Dense):
                inputs, units = layout.shapes[place]
                limit = _INITIALISER_LIMIT[layer.initialiser](inputs, units)
                drawn = uniform(seed, f"weights of layer {number}", (inputs, units))
                views[place][:] = (2.0 * drawn - 1.0) * limit
                number += 1
        return vector

    def l2(self) -> NDArray[np.float64] | None:
        """Return what each parameter's square counts in the loss, shape (parameters,); None: nothing."""
        if not any(isinstance(layer, Dense) and layer.l2 for layer in self.layers):
            return None
        vector = np.zeros(self.layout.size)
        views = self.layout.views(vector)
        for place, layer in zip(self.places, self.layers, strict=True):
            if isinstance(layer, Dense):
                views[place][:] = layer.l2
        return vector

    def outputs(self, parameters: Array, features: Array) -> Array:
        return forward(self, parameters, features)[-1]

    def gradient_sum(
        self, parameters: Array, features: Array, targets: Labels, out: Array, masks: Masks = ()
    ) -> float:
        return gradient_sum(self, parameters, features, targets, out, masks)

    def operations(self) -> tuple[str, ...]:
        return operations(self)

    def to_record(self) -> dict[str, Any]:
        """Return the stack as plain JSON values."""
        return {
            "features": self.features,
            "layers": [layer_to_record(layer) for layer in self.layers],
            "loss": self.loss,
            "class_weights": list(self.class_weights),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Model:
        """Read the stack back."""
        layers = [cast("Layer", layer_from_record(layer, "model")) for layer in record["layers"]]
        return cls(record["features"], tuple(layers), record["loss"], tuple(record["class_weights"]))


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
    loss = loss_of(case, task)
    last = cast("Dense", case.stack[-1])
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
    return Model(features, case.stack, loss)


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


def _normalized(layer: LayerNorm, features: Array) -> tuple[Array, Array]:
    """Return the rows with mean 0 and variance 1 over their units, and what they were multiplied by for it."""
    centred = features - features.mean(axis=1, keepdims=True)
    variance = np.mean(centred * centred, axis=1, keepdims=True)
    inverse = 1.0 / np.sqrt(variance + variance.dtype.type(layer.epsilon))
    return centred * inverse, inverse


def kept(layer: Dropout, mask: NDArray[np.bool_], dtype: np.dtype[Any]) -> Array:
    """Return what a Dropout layer multiplies its units by, shape (rows, units)."""
    return mask.astype(dtype) * dtype.type(layer.scale)


def forward(model: Model, parameters: Array, features: Array, masks: Masks | None = None) -> list[Array]:
    """Return the input and every layer's output, each (rows, units), in the parameters' dtype.

    Parameters
    ----------
    masks
        One for each Dropout layer, while training; None: nothing is dropped.
    """
    views = model.layout.views(parameters)
    outputs = [features]
    for place, layer, drawn in zip(model.places, model.layers, _by_layer(model, masks), strict=True):
        inputs = outputs[-1]
        match layer:
            case Dense():
                z = inputs @ views[place] + views[place + 1]
                outputs.append(_ACTIVATIONS[layer.activation or "linear"][0](z))
            case LayerNorm():
                outputs.append(_normalized(layer, inputs)[0] * views[place] + views[place + 1])
            case Dropout():
                outputs.append(inputs if drawn is None else inputs * kept(layer, drawn, inputs.dtype))
    return outputs


def _by_layer(model: Model, masks: Masks | None) -> list[NDArray[np.bool_] | None]:
    """Return each layer's mask; None for all but Dropout layers, and for all without masks."""
    found: list[NDArray[np.bool_] | None] = [None] * len(model.layers)
    if masks is not None:
        places = [index for index, layer in enumerate(model.layers) if isinstance(layer, Dropout)]
        for index, mask in zip(places, masks, strict=True):
            found[index] = mask
    return found


def gradient_sum(
    model: Model, parameters: Array, features: Array, targets: Labels, out: Array, masks: Masks = ()
) -> float:
    """Write the gradient summed over the rows into `out`, shape (parameters,); return the loss sum.

    Computed in the dtype of `parameters`; `out` is float64. Zero rows give zeros.

    Parameters
    ----------
    masks
        One for each Dropout layer.
    """
    outputs = forward(model, parameters, features, masks)
    loss, slope = loss_and_slope(model.loss, outputs[-1], targets, model.class_weights)
    weights = model.layout.views(parameters)
    gradients = model.layout.views(out)
    drawn, places = _by_layer(model, masks), model.places
    for index in reversed(range(len(model.layers))):
        layer, place, inputs = model.layers[index], places[index], outputs[index]
        match layer:
            case Dense():
                activation = layer.activation or "linear"
                if activation != "linear":
                    slope = slope * _ACTIVATIONS[activation][1](outputs[index + 1])
                gradients[place][:] = inputs.T @ slope
                gradients[place + 1][:] = slope.sum(axis=0)
                if index:
                    slope = slope @ weights[place].T
            case LayerNorm():
                unit, inverse = _normalized(layer, inputs)
                gradients[place][:] = (slope * unit).sum(axis=0)
                gradients[place + 1][:] = slope.sum(axis=0)
                scaled = slope * weights[place]
                along = np.mean(scaled * unit, axis=1, keepdims=True)
                slope = (scaled - scaled.mean(axis=1, keepdims=True) - unit * along) * inverse
            case Dropout():
                mask = drawn[index]
                assert mask is not None
                slope = slope * kept(layer, mask, slope.dtype)
    return loss


def operations(model: Model) -> tuple[str, ...]:
    """Return the names of the reference graph's operations, in the order in which they run."""
    names: list[str] = []
    for index, layer in enumerate(model.layers):
        match layer:
            case Dense():
                names += [f"dense_{index}/matmul", f"dense_{index}/bias_add"]
                if layer.activation != "linear":
                    names.append(f"dense_{index}/{layer.activation}")
            case LayerNorm() | Dropout():
                names.append(f"{layer.kind}_{index}")
    names += [model.loss, f"{model.loss}/gradient"]
    for index in reversed(range(len(model.layers))):
        layer = model.layers[index]
        match layer:
            case Dense():
                if layer.activation != "linear":
                    names.append(f"dense_{index}/{layer.activation}/gradient")
                names += [f"dense_{index}/matmul/weights_gradient", f"dense_{index}/bias_add/gradient"]
                if index:
                    names.append(f"dense_{index}/matmul/input_gradient")
            case LayerNorm() | Dropout():
                names.append(f"{layer.kind}_{index}/gradient")
    return tuple(names)
