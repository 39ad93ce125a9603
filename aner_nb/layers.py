"""The layers of a stack, as a person writes them and as a record keeps them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from aner_nb.errors import CaseError
from aner_nb.records import check_choice, check_count, hold_numbers

Activation = Literal["linear", "relu", "tanh", "sigmoid"]
Initialiser = Literal["glorot_uniform", "he_uniform", "zeros"]


@dataclass(frozen=True, slots=True)
class Dense:
    """One fully connected layer."""

    units: int
    activation: Activation | None = None
    """None: ``relu`` for hidden layers, ``linear`` for the last."""
    initialiser: Initialiser = "glorot_uniform"
    """Of the weights; biases start at zero."""
    l2: float = 0.0
    """Adds ``l2 * sum(W²)`` to the training loss, as Keras's ``kernel_regularizer=L2(l2)``; biases are left out."""


Layer = Dense


def filled_layers(layers: object, where: str) -> tuple[Layer, ...]:
    """Return checked layers with every default filled in.

    Raises
    ------
    CaseError
        If a layer, or their order, is wrong.
    """
    if not isinstance(layers, list | tuple) or not layers:
        raise CaseError(
            "a model needs at least one layer.", where=f"{where}: layers", remedy="For example [16, 3]."
        )
    items = cast("Sequence[object]", layers)
    return tuple(
        _filled(item, where, f"layers[{index}]", last=index == len(items) - 1)
        for index, item in enumerate(items)
    )


def _filled(item: object, where: str, here: str, *, last: bool) -> Layer:
    layer = item if isinstance(item, Dense) else Dense(cast("int", item))
    check_count(where, here, layer.units, 1)
    filled = dataclasses.replace(layer, activation=layer.activation or ("linear" if last else "relu"))
    check_choice(where, f"{here}.activation", filled.activation, get_args(Activation))
    check_choice(where, f"{here}.initialiser", filled.initialiser, get_args(Initialiser))
    hold_numbers(filled, f"{where}: {here}.", l2=(0.0, math.inf))
    return filled


def layer_to_record(layer: Layer) -> dict[str, Any]:
    """Return a layer as plain JSON values; what was added to `Dense` later is left out while it is not used."""
    record = dataclasses.asdict(layer)
    if not layer.l2:
        del record["l2"]
    return record


def layer_from_record(item: object, where: str) -> int | Layer:
    """Read a layer from its units or its fields.

    Raises
    ------
    CaseError
        If a field is unknown.
    """
    if not isinstance(item, Mapping):
        return cast("int", item)
    record = cast("Mapping[str, Any]", item)
    known = {field.name for field in dataclasses.fields(Dense)}
    if "units" not in record or not set(record) <= known:
        raise CaseError(
            f"{dict(record)!r} does not describe a Dense layer.",
            where=f"{where}: layers",
            remedy=f"Give 'units' and, if wanted, {', '.join(sorted(known - {'units'}))}.",
        )
    return Dense(**record)
