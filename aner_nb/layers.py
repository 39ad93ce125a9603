"""The layers of a stack, as a person writes them and as a record keeps them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, cast, get_args

from aner_nb.errors import CaseError
from aner_nb.records import TINY, check_choice, check_count, hold_numbers, of_kind

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


@dataclass(frozen=True, slots=True)
class Dropout:
    """Sets units of the layer before to 0 with probability `rate` while training, and scales the others up.

    Which ones is a function of the case's seed, the layer, the update and the row: see `dropout`.
    """

    kind: ClassVar[str] = "dropout"

    rate: float
    """At least 0 and below 1; taken to the nearest multiple of 2**-16."""

    @property
    def dropped(self) -> int:
        """The rate in units of 2**-16."""
        return min(round(self.rate * 2**16), 2**16 - 1)

    @property
    def scale(self) -> float:
        """What the units that are kept are multiplied by."""
        return 2**16 / (2**16 - self.dropped)


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """Normalizes each row over the units of the layer before, then scales and shifts each unit, as in Keras.

    It knows no other row, so that it does not depend on the batch, nor on how a batch is shared.
    """

    kind: ClassVar[str] = "layer_norm"

    epsilon: float = 1e-3
    """Added to the variance."""


Layer = Dense | Dropout | LayerNorm
_OTHERS: Final[Mapping[str, type[Dropout | LayerNorm]]] = {
    chosen.kind: chosen for chosen in (Dropout, LayerNorm)
}


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
    if isinstance(items[-1], Dropout | LayerNorm):
        raise CaseError(
            "the last layer is no Dense layer.",
            where=f"{where}: layers",
            remedy="End the list with one unit a class, or one a target column.",
        )
    return tuple(
        _filled(item, where, f"layers[{index}]", last=index == len(items) - 1)
        for index, item in enumerate(items)
    )


def _filled(item: object, where: str, here: str, *, last: bool) -> Layer:
    if isinstance(item, Dropout):
        hold_numbers(item, f"{where}: {here}.", rate=(0.0, 1.0))
        return item
    if isinstance(item, LayerNorm):
        hold_numbers(item, f"{where}: {here}.", epsilon=(TINY, math.inf))
        return item
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
    if not isinstance(layer, Dense):
        return {"kind": layer.kind, **record}
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
    if "kind" in record:
        return of_kind(
            record, _OTHERS, where=f"{where}: layers", what="layer", example="{kind: dropout, rate: 0.2}"
        )
    known = {field.name for field in dataclasses.fields(Dense)}
    if "units" not in record or not set(record) <= known:
        raise CaseError(
            f"{dict(record)!r} does not describe a Dense layer.",
            where=f"{where}: layers",
            remedy=f"Give 'units' and, if wanted, {', '.join(sorted(known - {'units'}))}.",
        )
    return Dense(**record)


def layer_in_words(layer: Layer) -> str:
    """Return a layer as a reader sees it, such as ``64 relu`` or ``dropout 0.2``."""
    match layer:
        case Dense():
            return f"{layer.units} {layer.activation}" + (f" L2 {layer.l2:g}" if layer.l2 else "")
        case Dropout():
            return f"dropout {layer.rate:g}"
        case LayerNorm():
            return "layer norm"
