"""A Keras model as data: its JSON configuration, checked without Keras; what breaks the contract is refused.

A configuration is followed by Keras itself, which would import modules and run code that a file names. So every class
in it must stand in a list here; of these it is known that a row's output depends on that row and the parameters alone.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from aner_nb.errors import CaseError
from aner_nb.plain import check_plain, read_json

MAX_BYTES: Final = 2**20

_MODELS: Final = frozenset({"Sequential", "Functional"})
_LAYERS: Final = frozenset(
    {"InputLayer", "Dense", "EinsumDense", "Activation", "Identity", "Flatten", "Reshape", "Permute"}
    | {"RepeatVector", "Rescaling", "ReLU", "LeakyReLU", "PReLU", "ELU", "Softmax"}
    | {"Conv1D", "Conv2D", "Conv3D", "Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose"}
    | {"DepthwiseConv1D", "DepthwiseConv2D", "SeparableConv1D", "SeparableConv2D"}
    | {f"{kind}Pooling{n}D" for kind in ("Max", "Average", "GlobalMax", "GlobalAverage") for n in (1, 2, 3)}
    | {f"{kind}{n}D" for kind in ("ZeroPadding", "Cropping", "UpSampling") for n in (1, 2, 3)}
    | {"Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum", "Concatenate", "Dot"}
    | {"SimpleRNN", "GRU", "LSTM", "RNN", "SimpleRNNCell", "GRUCell", "LSTMCell", "StackedRNNCells"}
    | {"Bidirectional", "TimeDistributed"}
    | {"Attention", "AdditiveAttention", "MultiHeadAttention", "GroupQueryAttention"}
    | {"LayerNormalization", "GroupNormalization", "RMSNormalization", "UnitNormalization"}
)
_INITIALIZERS: Final = frozenset(
    {"Zeros", "Ones", "Constant", "RandomNormal", "RandomUniform", "TruncatedNormal", "VarianceScaling"}
    | {"GlorotUniform", "GlorotNormal", "HeUniform", "HeNormal", "LecunUniform", "LecunNormal"}
    | {"Orthogonal", "Identity", "IdentityInitializer"}
)
_KNOWN: Final[Mapping[str, frozenset[str]]] = {
    "keras": _MODELS | {"DTypePolicy"},
    "keras.models": _MODELS,
    "keras.src.models.functional": frozenset({"Functional"}),
    "keras.src.models.sequential": frozenset({"Sequential"}),
    "keras.layers": _LAYERS,
    "keras.initializers": _INITIALIZERS,
}
_RANDOM: Final = "its random numbers would depend on how a batch is divided over the ranks"
_REASONS: Final[Mapping[str, tuple[str, str]]] = {
    "BatchNormalization": (
        "it normalizes by the rows of one rank's share and keeps running statistics",
        "Use LayerNormalization or GroupNormalization.",
    ),
    "SpectralNormalization": ("it changes a state in every step", "Leave it out."),
    "Lambda": ("it holds code, which is never loaded from a configuration", "Use a layer of Keras."),
    "Dropout": (_RANDOM, "Use layers=[...] with aner.Dropout, which draws the same for every division."),
    "Normalization": ("features are normalized by the training rows already", "Leave it out."),
    "Embedding": ("features are normalized numbers, not tokens", "Begin with a layer that takes numbers."),
}
_ACTIVATION_LAYERS: Final = frozenset({"Softmax", "ReLU", "LeakyReLU", "PReLU", "ELU"})


@dataclass(frozen=True, slots=True)
class KerasModel:
    """The layers of a Keras model, without its weights: a case draws the initial ones from its seed.

    Make one with `keras_model`, which checks it.
    """

    text: str
    """Canonical JSON of the configuration: layers are numbered as they stand, arithmetic is left to the case."""

    @property
    def config(self) -> dict[str, Any]:
        """The configuration."""
        return json.loads(self.text)

    @property
    def sha256(self) -> str:
        """Of the canonical JSON, hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one row, such as (8, 8, 1)."""
        first = next(layer for layer in _layers_in(self.config) if layer["class_name"] == "InputLayer")
        return tuple(first["config"]["batch_shape"][1:])

    @property
    def layer_names(self) -> tuple[str, ...]:
        """Names of the layers in order, without the input's and those inside of others."""
        own = self.config["config"]["layers"]
        return tuple(layer["config"]["name"] for layer in own if layer["class_name"] != "InputLayer")

    @property
    def last_activation(self) -> str:
        """Activation of the output; ``linear`` where the last layer has none."""
        return _last_activation(self.config)

    def to_record(self) -> dict[str, Any]:
        """Return the model as plain JSON values; `keras_model` reads it back."""
        return {"kind": "keras", "sha256": self.sha256, "config": self.config}

    def __repr__(self) -> str:
        return f"<KerasModel {', '.join(self.layer_names)}>"


def keras_model(source: object, where: str = "model") -> KerasModel:
    """Return a Keras model as data, if it keeps the contract.

    Parameters
    ----------
    source
        A Keras 3 model, its JSON (``model.to_json()``), that JSON read as a mapping, or a `KerasModel`.

    Raises
    ------
    CaseError
        If it is none, or has something that would make a group differ from standalone, or code.
    """
    if isinstance(source, KerasModel):
        return source
    recorded = ""
    record: Any = source
    try:
        if not isinstance(source, str | Mapping):
            to_json: Callable[[], object] | None = getattr(source, "to_json", None)
            record = str(to_json()) if to_json is not None else None
        if isinstance(record, str):
            _check_size(record, where)
            record = read_json(record.encode())
        check_plain(record)
        if isinstance(record, Mapping) and "kind" in record:
            recorded, record = str(cast("Any", record).get("sha256", "")), cast("Any", record).get("config")
        text = json.dumps(record)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise _not_a_model(where, str(error)) from error
    _check_size(text, where)
    if not isinstance(record, Mapping) or not isinstance(record.get("config"), Mapping):
        raise _not_a_model(where, "there is no configuration")
    try:
        model = KerasModel(_canonical(json.loads(text), where))
        whole = all(isinstance(size, int) and size > 0 for size in model.input_shape) and model.layer_names
        assert isinstance(model.last_activation, str)
    except (KeyError, TypeError, AttributeError, IndexError, StopIteration, AssertionError) as error:
        raise _not_a_model(where, f"{type(error).__name__}: {error}") from error
    if not whole:
        raise CaseError(
            "the shape of a row is not known.",
            where=where,
            remedy="Begin the model with keras.Input(shape) and whole numbers.",
        )
    if recorded and recorded != model.sha256:
        raise CaseError(
            "the configuration does not fit its sha256.",
            where=where,
            remedy="Restore it, or leave sha256 out.",
        )
    return model


def model_in_place_of(layers: object, model: object, backends: Sequence[str], where: str) -> KerasModel:
    """Return the Keras model of a case, which must have no layers beside it and no rank without TensorFlow.

    Raises
    ------
    CaseError
        As `keras_model`, or if they don't go together.
    """
    if layers:
        raise CaseError("both layers and a model are given.", where=where, remedy="Leave one of them out.")
    if "numpy" in backends:
        raise CaseError(
            "a Keras model is computed by TensorFlow, not by NumPy.",
            where=f"{where}: ranks",
            remedy="Write 'cpu:1' in place of 'numpy'.",
        )
    return keras_model(model, f"{where}: model")


def _not_a_model(where: str, reason: str) -> CaseError:
    return CaseError(
        f"this is not the configuration of a Keras 3 model ({reason[:200]}).",
        where=where,
        remedy="Give a Sequential or functional keras.Model, or what its to_json() returns.",
    )


def _check_size(text: str, where: str) -> None:
    if len(text.encode(errors="replace")) > MAX_BYTES:
        raise CaseError(
            f"the configuration is over {MAX_BYTES:,} bytes.", where=where, remedy="Use fewer layers."
        )


def _canonical(record: dict[str, Any], where: str) -> str:
    """Return the canonical JSON of a checked configuration."""
    if record.get("class_name") not in _MODELS:
        raise _not_a_model(where, f"class {record.get('class_name')!r}")
    for item in _described(record):
        _check_class(item, where)
    for layer in _layers_in(record):
        _check_layer(layer, where)
    _check_ends(record, where)
    for name in ("compile_config", "build_config"):
        record.pop(name, None)
    _name_alike(record)
    _set_dtype(record, "float32", where)
    return json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _described(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every mapping in a value that names a class."""
    if isinstance(value, dict):
        item = cast("dict[str, Any]", value)
        if "class_name" in item or "module" in item or "registered_name" in item:
            yield item
        for inner in item.values():
            yield from _described(inner)
    elif isinstance(value, list):
        for inner in cast("list[Any]", value):
            yield from _described(inner)


def _layers_in(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every layer in a value, also those inside of models and wrappers."""
    for item in _described(value):
        if item.get("module") == "keras.layers":
            yield item


def _check_class(item: Mapping[str, Any], where: str) -> None:
    name, module = str(item.get("class_name")), item.get("module")
    if name == "__keras_tensor__" and module is None:
        return
    reason, remedy = _REASONS.get(name, ("", ""))
    if not reason and ("Dropout" in name or "Noise" in name or "Random" in name) and "layers" in str(module):
        reason, remedy = _RANDOM, "Leave it out."
    if reason:
        raise CaseError(f"the layer {name} is refused: {reason}.", where=where, remedy=remedy)
    own = item.get("registered_name") in (None, name)
    if not own or name not in _KNOWN.get(str(module), frozenset()):
        raise CaseError(
            f"{name[:60]!r} of {str(module)[:60]!r} is not among the layers that are known to keep the contract.",
            where=where,
            remedy="Build the model of Keras's own stateless layers: Dense, convolution, pooling, recurrent, "
            "attention, layer normalization, merging (keras.layers.Add in place of +).",
        )


def _check_layer(layer: Mapping[str, Any], where: str) -> None:
    config = cast("Mapping[str, Any]", layer["config"])
    here = f"{where}: layer {str(config.get('name'))[:60]!r}"
    if config.get("stateful"):
        raise CaseError("it keeps a state from batch to batch.", where=here, remedy="Leave stateful out.")
    if config.get("trainable") is False:
        raise CaseError(
            "it is frozen, but a configuration carries no weights.", where=here, remedy="Make it trainable."
        )
    for name, value in config.items():
        if name.endswith("dropout") and value:
            raise CaseError(f"{name} is {value}: {_RANDOM}.", where=here, remedy=f"Leave {name} out.")
        if name.endswith(("_regularizer", "_constraint")) and value is not None:
            raise CaseError(
                f"it has a {name}, which is not a part of the loss or the update here.",
                where=here,
                remedy=f"Leave {name} out.",
            )
        if name.endswith("quantization_config") and value is not None:
            raise CaseError("it is quantized.", where=here, remedy="Use plain float32 layers.")
        if name.endswith("_initializer") and isinstance(value, dict):
            seed = cast("Any", value).get("config", {}).get("seed")
            if isinstance(seed, dict):
                raise CaseError("an initializer has a seed generator.", where=here, remedy="Give a number.")


def _check_ends(record: Mapping[str, Any], where: str) -> None:
    """Hold a model to one input with a whole shape, and one output."""
    config = record["config"]
    ends = [config.get("input_layers"), config.get("output_layers")]
    inputs = [layer for layer in config["layers"] if layer["class_name"] == "InputLayer"]
    if len(inputs) > 1 or any(end is not None and _single(end) is None for end in ends):
        raise CaseError(
            "it has several inputs or outputs.", where=where, remedy="Give a model with one of each."
        )


def _single(end: Any) -> str | None:
    """Return the layer that an end of a functional model names, or None if there is not just one."""
    while isinstance(end, list) and len(cast("list[Any]", end)) == 1:
        end = end[0]
    return (
        end[0] if isinstance(end, list) and len(cast("Any", end)) == 3 and isinstance(end[0], str) else None
    )


def _last_activation(record: Mapping[str, Any]) -> str:
    config = record["config"]
    name = _single(config.get("output_layers"))
    own = [layer for layer in config["layers"] if name in (None, layer["config"]["name"])]
    last = own[-1]
    if last["class_name"] in _MODELS:
        return _last_activation(last)
    if last["class_name"] in _ACTIVATION_LAYERS:
        return str(last["class_name"]).lower()
    activation = last["config"].get("activation") or "linear"
    return activation if isinstance(activation, str) else str(activation.get("class_name"))


def _name_alike(record: dict[str, Any]) -> None:
    """Renumber what Keras named by itself: it counts through a whole session, and the id must not."""
    config = record["config"]
    config["name"] = "model"
    names: dict[str, str] = {}
    counts: dict[str, int] = {}
    for layer in config["layers"]:
        own = layer["config"]
        old = str(own["name"])
        base = re.sub(r"_\d+$", "", old)
        if layer["class_name"] in _MODELS:
            _name_alike(layer)
            base = "model"
        elif base.replace("_", "") != str(layer["class_name"]).lower():
            continue
        number = counts[base] = counts.get(base, -1) + 1
        names[old] = f"{base}_{number}" if number else base
        own["name"] = names[old]
        for part in _layers_in(own):
            part["config"]["name"] = re.sub(r"_\d+$", "", str(part["config"]["name"]))
    for layer in config["layers"]:
        if "name" in layer:
            layer["name"] = names.get(layer["name"], layer["name"])
        _rename(layer.get("inbound_nodes"), names)
    for end in ("input_layers", "output_layers"):
        if end in config:
            name = _single(config[end])
            config[end] = [names.get(str(name), name), 0, 0]


def _rename(value: Any, names: Mapping[str, str]) -> None:
    if isinstance(value, dict):
        item = cast("dict[str, Any]", value)
        history = item.get("keras_history")
        if isinstance(history, list):
            history[0] = names.get(cast("Any", history)[0], cast("Any", history)[0])
        for inner in item.values():
            _rename(inner, names)
    elif isinstance(value, list):
        for inner in cast("list[Any]", value):
            _rename(inner, names)


def with_dtype(text: str, dtype: str) -> str:
    """Return a canonical configuration with its arithmetic in another dtype."""
    record = json.loads(text)
    _set_dtype(record, dtype, "model")
    return json.dumps(record)


def _set_dtype(value: Any, dtype: str, where: str) -> None:
    if isinstance(value, dict):
        item = cast("dict[str, Any]", value)
        if "dtype" in item:
            found = item["dtype"]
            name = cast("Any", found).get("config", {}).get("name") if isinstance(found, dict) else found
            if name not in (None, "float32", "float64"):
                raise CaseError(
                    f"it has layers in {str(name)[:60]!r}; a case has one arithmetic for all.",
                    where=where,
                    remedy="Build the model in float32 and choose the case's dtype.",
                )
            item["dtype"] = dtype
        for inner in item.values():
            _set_dtype(inner, dtype, where)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for inner in cast("list[Any]", value):
            _set_dtype(inner, dtype, where)
