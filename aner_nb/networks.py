"""The network of a case: the Dense stack, or a Keras model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aner_nb.case import Case, Loss
from aner_nb.errors import CaseError
from aner_nb.layers import Layer
from aner_nb.model import Model, make_model
from aner_nb.network import Array, Labels, Layout, Masks, Network, loss_of


@dataclass(frozen=True, slots=True)
class KerasNetwork:
    """A Keras model and its loss. TensorFlow is loaded when something is computed, and not before."""

    features: int
    text: str
    """Canonical JSON of its configuration."""
    layout: Layout
    """Of its trainable variables, in Keras's order."""
    loss: Loss
    class_weights: tuple[float, ...] = ()

    @property
    def layers(self) -> tuple[Layer, ...]:
        return ()

    def initial(self, seed: int) -> NDArray[np.float64]:
        from aner_nb.backends.keras import reference

        return reference(self.text).initial(seed)

    def outputs(self, parameters: Array, features: Array) -> Array:
        from aner_nb.backends.keras import reference

        return reference(self.text).outputs(parameters, features)

    def gradient_sum(
        self, parameters: Array, features: Array, targets: Labels, out: Array, masks: Masks = ()
    ) -> float:
        from aner_nb.backends.keras import gradient_sum

        assert not masks
        return gradient_sum(self.text, self.loss, self.class_weights, parameters, features, targets, out)

    def operations(self) -> tuple[str, ...]:
        from aner_nb.backends.keras import operations

        return operations(self.text, self.loss, self.class_weights)

    def open_forward(self, dtype: str) -> Any:
        """Return what computes the outputs in a rank's graph."""
        from aner_nb.backends.keras import forward_of

        return forward_of(self.text, self.layout.shapes, dtype, training=True)

    def l2(self) -> NDArray[np.float64] | None:
        return None

    def to_record(self) -> dict[str, Any]:
        """Return the network as plain JSON values; `network_from_record` reads it back."""
        return {
            "features": self.features,
            "keras": self.text,
            "shapes": [list(shape) for shape in self.layout.shapes],
            "loss": self.loss,
            "class_weights": list(self.class_weights),
        }


def network_from_record(record: Mapping[str, Any]) -> Model | KerasNetwork:
    """Read a network back, as a rank gets it."""
    if "keras" not in record:
        return Model.from_record(record)
    layout = Layout(tuple(tuple(shape) for shape in record["shapes"]))
    weights = tuple(record["class_weights"])
    return KerasNetwork(record["features"], record["keras"], layout, record["loss"], weights)


def make_network(
    case: Case, *, features: int, outputs: int, task: str, class_weights: tuple[float, ...] = ()
) -> Network:
    """Return the network of a case for data with `features` columns and `outputs` classes or columns.

    Raises
    ------
    CaseError
        If the network or the loss don't fit the data, or a Keras model breaks the contract.
    """
    if case.model is None:
        model = make_model(case, features=features, outputs=outputs, task=task)
        return dataclasses.replace(model, class_weights=class_weights)
    from aner_nb.backends.keras import reference

    where = f"case {case.name!r}: model"
    loss = loss_of(case, task)
    model = case.keras
    if int(np.prod(model.input_shape)) != features:
        raise CaseError(
            f"it takes rows of shape {model.input_shape}, the data has {features} features.",
            where=where,
            remedy=f"Begin it with a keras.Input whose lengths multiply to {features}.",
        )
    if loss == "softmax_cross_entropy" and model.last_activation != "linear":
        raise CaseError(
            f"it ends with {model.last_activation}, but the loss applies softmax itself.",
            where=where,
            remedy="End it without an activation.",
        )
    try:
        built = reference(model.text)
    except CaseError as error:
        raise CaseError(error.what, where=where, remedy=error.remedy) from error
    if built.output_shape[1] != outputs:
        what = "classes" if task == "classification" else "target columns"
        raise CaseError(
            f"it has {built.output_shape[1]} outputs, the data {outputs} {what}.",
            where=where,
            remedy=f"Let its last layer have {outputs} units.",
        )
    return KerasNetwork(features, model.text, built.layout, loss, class_weights)
