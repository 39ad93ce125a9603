"""What is measured: a frozen, validated description with an identity of its own."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast, get_args

from aner_nb.data import DataSpec, data_from_record
from aner_nb.errors import CaseError
from aner_nb.keras_models import KerasModel, model_in_place_of
from aner_nb.layers import Layer, filled_layers, layer_from_record, layer_in_words, layer_to_record
from aner_nb.optimizers import SGD, OptimizerSpec, optimizer_from_record
from aner_nb.records import TINY, check_choice, check_count, hold_numbers
from aner_nb.stopping import EarlyStopping, early_stopping_from_record

Backend = Literal["cpu", "cuda", "metal", "numpy"]
Dtype = Literal["float32", "float64"]
Loss = Literal["softmax_cross_entropy", "mean_squared_error"]
ChannelChoice = Literal["auto", "shared_memory", "socket", "inline"]
Balance = Literal["declared", "auto"]
Staging = Literal["auto", "resident", "streamed"]

BACKENDS: Final[tuple[Backend, ...]] = get_args(Backend)
_PLACEMENT: Final = re.compile(
    r"(?:(?P<platform>[A-Za-z][A-Za-z0-9_-]*)/)?(?P<backend>[a-z]+)(?::(?P<number>[0-9]{1,6}))?"
)
_MAX_WEIGHT: Final = 1_000_000


def canonical_json(value: object) -> bytes:
    """Return the one canonical JSON text of a value, as UTF-8 bytes.

    Keys sorted, no white space, no NaN or infinity, floats in Python's shortest form that reads back equal.
    """
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a rank can run, written ``[platform/]backend[:number]``.

    The number is the count of threads for ``cpu`` and ``numpy`` and the device's index for ``cuda``;
    ``metal`` takes none. Without a platform, any machine of the cluster that offers the placement will do.

    Examples
    --------
    >>> Placement.parse("Atlas-01/cpu:2").threads
    2
    >>> Placement.parse("cuda:1").device
    1
    """

    backend: Backend
    platform: str = ""
    """Opaque inventory name such as ``Atlas-01``; empty: any."""
    threads: int = 0
    """Threads of the rank's compute pool; 0: as many as the worker has."""
    device: int = 0
    """Index of the device among those of its kind on the machine."""

    @classmethod
    def parse(cls, text: str, where: str = "ranks") -> Placement:
        """Read a placement from its text.

        Raises
        ------
        CaseError
            If the text is not of the form ``[platform/]backend[:number]`` or names no known backend.
        """
        match = _PLACEMENT.fullmatch(text)
        backend = match["backend"] if match else ""
        if match is None or backend not in BACKENDS:
            raise CaseError(
                f"{text!r} is not a placement.",
                where=where,
                remedy=f"Write [platform/]backend[:number] with one of {', '.join(BACKENDS)}; "
                "for example 'cpu:1', 'Atlas-02/cpu' or 'Atlas-03/cuda:0'.",
            )
        number = int(match["number"]) if match["number"] else None
        if backend in ("cpu", "numpy"):
            if number == 0:
                raise CaseError(f"{text!r} asks for 0 threads.", where=where, remedy="Write 1 or more.")
            return cls(backend, match["platform"] or "", threads=number or 0)
        if backend == "metal" and number is not None:
            raise CaseError(
                f"{text!r} gives 'metal' a number.",
                where=where,
                remedy="A machine has one Metal device: write 'metal'.",
            )
        return cls(cast("Backend", backend), match["platform"] or "", device=number or 0)

    def __str__(self) -> str:
        number = ""
        if self.backend in ("cpu", "numpy") and self.threads:
            number = f":{self.threads}"
        elif self.backend == "cuda":
            number = f":{self.device}"
        platform = f"{self.platform}/" if self.platform else ""
        return f"{platform}{self.backend}{number}"


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured: data, model, arithmetic, optimizer and the ranks that share the work.

    Examples
    --------
    >>> from aner_nb.data import Iris
    >>> case = Case("iris", data=Iris(), layers=[16, 3], batch=30, epochs=5, ranks=["cpu:1", ("cpu:1", 7)])
    >>> case.weights
    (1, 7)
    """

    name: str
    data: DataSpec = dataclasses.field(kw_only=True)
    layers: Sequence[int | Layer] = dataclasses.field(default=(), kw_only=True)
    """Units of each Dense layer, or a `Dense`, with `Dropout` and `LayerNorm` between them; the last is Dense and has
    one unit a class, or one a target column."""
    dtype: Dtype = dataclasses.field(default="float32", kw_only=True)
    """Arithmetic of the ranks and type of what travels to them; master state is always float64."""
    batch: int = dataclasses.field(kw_only=True)
    """Rows of one global batch, over all ranks."""
    epochs: int = dataclasses.field(kw_only=True)
    optimizer: OptimizerSpec = dataclasses.field(default_factory=SGD, kw_only=True)
    loss: Loss | None = dataclasses.field(default=None, kw_only=True)
    """None: softmax cross-entropy for classes, mean squared error for numbers."""
    ranks: Sequence[str | Placement | tuple[str | Placement, int]] = dataclasses.field(
        default=("cpu:1",), kw_only=True
    )
    """A placement, or (placement, weight), for each rank; rank 0 first."""
    seed: int = dataclasses.field(default=0, kw_only=True)
    """Of the split, the order of rows and batches, and the initial parameters."""
    split: tuple[float, float, float] = dataclasses.field(default=(0.6, 0.2, 0.2), kw_only=True)
    """Fractions for training, validation and test."""
    channel: ChannelChoice = dataclasses.field(default="auto", kw_only=True)
    staging: Staging = dataclasses.field(default="auto", kw_only=True)
    """``resident``: a rank's rows stay on its device; ``streamed``: uploaded batch by batch; ``auto``: by size."""
    collective: Literal["star"] = dataclasses.field(default="star", kw_only=True)
    balance: Balance = dataclasses.field(default="declared", kw_only=True)
    """``declared``: the ranks' weights are taken as given; ``auto``: they are measured before the run."""
    clip_norm: float | None = dataclasses.field(default=None, kw_only=True)
    """Longest mean gradient of a global batch, as Keras's ``global_clipnorm``; a longer one is shortened to it."""
    class_weights: Sequence[float] | Literal["balanced"] | None = dataclasses.field(
        default=None, kw_only=True
    )
    """What a row counts in the training loss, by class; ``balanced``: rows over classes times the class's rows."""
    stop_early: EarlyStopping | None = dataclasses.field(default=None, kw_only=True)
    """None: all epochs are run."""
    tf32: bool = dataclasses.field(default=False, kw_only=True)
    """Whether CUDA may round float32 factors to TensorFloat-32: quicker, and other work than float32."""
    model: Any = dataclasses.field(default=None, kw_only=True)
    """In place of layers: a Keras 3 model, its JSON, or a `KerasModel`. Its layers count, its weights don't."""

    def __post_init__(self) -> None:
        where = f"case {self.name!r}" if self.name else "case"
        if not isinstance(self.name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}", self.name):
            raise CaseError(
                f"{self.name!r} is not a usable name.",
                where="case.name",
                remedy="Use 1 to 80 letters, digits, '.', '_' or '-', beginning with a letter or digit: "
                "the name becomes a folder.",
            )
        check_choice(where, "dtype", self.dtype, get_args(Dtype))
        check_choice(where, "channel", self.channel, get_args(ChannelChoice))
        check_choice(where, "staging", self.staging, get_args(Staging))
        check_choice(where, "balance", self.balance, get_args(Balance))
        check_choice(where, "collective", self.collective, ("star",))
        if self.loss is not None:
            check_choice(where, "loss", self.loss, get_args(Loss))
        check_count(where, "batch", self.batch, 1)
        check_count(where, "epochs", self.epochs, 1)
        check_count(where, "seed", self.seed, 0)
        if self.clip_norm is not None:
            hold_numbers(self, f"{where}: ", clip_norm=(TINY, math.inf))
        if not isinstance(self.stop_early, EarlyStopping | None):
            object.__setattr__(
                self, "stop_early", early_stopping_from_record(self.stop_early, f"{where}: stop_early")
            )
        object.__setattr__(self, "class_weights", _class_weights(self.class_weights, where))
        object.__setattr__(self, "ranks", _ranks(self.ranks, where))
        if self.model is None:
            object.__setattr__(self, "layers", filled_layers(self.layers, where))
        else:
            backends = [placement.backend for placement in self.placements]
            object.__setattr__(self, "model", model_in_place_of(self.layers, self.model, backends, where))
            object.__setattr__(self, "layers", ())
        object.__setattr__(self, "split", _split(self.split, where))
        if self.dtype == "float64" and any(p.backend == "metal" for p in self.placements):
            raise CaseError(
                "Metal has no float64.",
                where=f"{where}: dtype",
                remedy="Write dtype: float32, or run the case on cpu or cuda.",
            )
        _check_tf32(where, self.tf32, self.dtype, self.placements)

    @property
    def placements(self) -> tuple[Placement, ...]:
        """The placement of each rank, in rank order."""
        return tuple(placement for placement, _ in self._pairs)

    @property
    def weights(self) -> tuple[int, ...]:
        """The weight of each rank, in rank order."""
        return tuple(weight for _, weight in self._pairs)

    @property
    def _pairs(self) -> tuple[tuple[Placement, int], ...]:
        return cast("tuple[tuple[Placement, int], ...]", self.ranks)

    @property
    def keras(self) -> KerasModel:
        """The Keras model, of a case that has one in place of layers."""
        return cast("KerasModel", self.model)

    @property
    def layers_text(self) -> str:
        """The layers in few words."""
        return ", ".join(self.keras.layer_names if self.model else map(layer_in_words, self.stack))

    @property
    def stack(self) -> tuple[Layer, ...]:
        """The layers with every default filled in."""
        return cast("tuple[Layer, ...]", self.layers)

    @property
    def is_group(self) -> bool:
        """Whether two or more ranks share each batch."""
        return len(self._pairs) > 1

    def _repr_html_(self) -> str:
        from aner_nb.views import case_html

        return case_html(self)

    def to_record(self) -> dict[str, Any]:
        """Return the case as plain JSON values; `case_from_record` reads it back."""
        record: dict[str, Any] = {
            "name": self.name,
            "data": self.data.to_record(),
            "layers": [layer_to_record(layer) for layer in self.stack],
            "dtype": self.dtype,
            "batch": self.batch,
            "epochs": self.epochs,
            "optimizer": self.optimizer.to_record(),
            "loss": self.loss,
            "ranks": [[str(placement), weight] for placement, weight in self._pairs],
            "seed": self.seed,
            "split": list(self.split),
            "channel": self.channel,
            "staging": self.staging,
            "collective": self.collective,
            "balance": self.balance,
            **({"tf32": True} if self.tf32 else {}),
        }
        # What was added later stays out while it is not used: the ids of other cases are what they were.
        if self.model is not None:
            del record["layers"]
            record["model"] = self.keras.to_record()
        return record | self.training_record()

    def training_record(self) -> dict[str, Any]:
        """Return the settings of training that are in use, of those that most cases leave out."""
        weights = self.class_weights
        settings = {
            "clip_norm": self.clip_norm,
            "class_weights": list(weights) if isinstance(weights, tuple) else weights,
            "stop_early": self.stop_early.to_record() if self.stop_early is not None else None,
        }
        return {name: value for name, value in settings.items() if value is not None}

    @property
    def contract_id(self) -> str:
        """SHA-256 over the canonical JSON of the case, hexadecimal."""
        return contract_id_of(self.to_record())

    @property
    def work_id(self) -> str:
        """SHA-256 over what is computed, leaving out the name and who computes it.

        Cases with one work id train the same thing: only they are compared with each other.
        """
        return work_id_of(self.to_record())


def contract_id_of(record: Mapping[str, Any]) -> str:
    """Return the contract id of a case's record."""
    return hashlib.sha256(canonical_json(record)).hexdigest()


def work_id_of(record: Mapping[str, Any]) -> str:
    """Return the work id of a case's record."""
    left_out = ("name", "ranks", "channel", "collective", "staging", "balance")
    kept = {field: value for field, value in record.items() if field not in left_out}
    return hashlib.sha256(canonical_json(kept)).hexdigest()


def case_from_record(record: Mapping[str, Any], where: str = "case") -> Case:
    """Build a case from plain values, such as YAML or JSON gives.

    Raises
    ------
    CaseError
        If a field is unknown, missing, or has a wrong type or value; the sentence names it.
    """
    fields = {field.name: field for field in dataclasses.fields(Case)}
    unknown = sorted(set(map(str, record)) - set(fields))
    if unknown:
        raise CaseError(f"unknown field {unknown[0]!r}.", where=where, remedy=f"Known: {', '.join(fields)}.")
    network = "layers" if record.get("model") is None else "model"
    required = ("name", "data", network, "batch", "epochs")
    missing = [name for name in required if name not in record]
    if missing:
        raise CaseError(
            f"the field {missing[0]!r} is missing.",
            where=where,
            remedy=f"A case needs {', '.join(required)}.",
        )
    values = dict(record)
    values["data"] = data_from_record(record["data"], where=f"{where}: data")
    if "layers" in record or network == "layers":
        values["layers"] = [layer_from_record(item, where) for item in _list(record, "layers", where)]
    if "ranks" in record:
        values["ranks"] = [
            tuple(item) if isinstance(item, list) else item for item in _list(record, "ranks", where)
        ]
    if "optimizer" in record:
        values["optimizer"] = optimizer_from_record(record["optimizer"], where=f"{where}: optimizer")
    if "split" in record:
        values["split"] = tuple(_list(record, "split", where))
    return Case(**values)


def _list(record: Mapping[str, Any], field: str, where: str) -> list[Any]:
    value = record[field]
    if not isinstance(value, list | tuple):
        raise CaseError(
            f"{value!r} is not a list.", where=f"{where}: {field}", remedy="Write [first, second, …]."
        )
    return list(cast("Sequence[Any]", value))


def _ranks(ranks: object, where: str) -> tuple[tuple[Placement, int], ...]:
    if not isinstance(ranks, list | tuple) or not ranks:
        raise CaseError(
            "a case needs at least one rank.", where=f"{where}: ranks", remedy="For example ['cpu:1']."
        )
    pairs: list[tuple[Placement, int]] = []
    for index, item in enumerate(cast("Sequence[object]", ranks)):
        here = f"{where}: ranks[{index}]"
        placement, weight = _rank(item, here)
        if placement.backend in ("cuda", "metal") and placement in [known for known, _ in pairs]:
            raise CaseError(
                f"{placement} already hosts rank {[known for known, _ in pairs].index(placement)}.",
                where=here,
                remedy="A device takes one rank: name another device or drop this rank.",
            )
        pairs.append((placement, weight))
    return tuple(pairs)


def _rank(item: object, here: str) -> tuple[Placement, int]:
    weight: object = 1
    if isinstance(item, tuple) and len(cast("tuple[object, ...]", item)) == 2:
        item, weight = cast("tuple[object, object]", item)
    if isinstance(item, str):
        item = Placement.parse(item, here)
    if not isinstance(item, Placement):
        raise CaseError(
            f"{item!r} is not a placement.",
            where=here,
            remedy="Write a placement such as 'cpu:1', or [placement, weight].",
        )
    if isinstance(weight, bool) or not isinstance(weight, int) or not 1 <= weight <= _MAX_WEIGHT:
        raise CaseError(
            f"the weight {weight!r} is not a whole number from 1 to {_MAX_WEIGHT:,}.",
            where=here,
            remedy="Give shares of the batch as whole numbers, such as 1 and 7; to leave a rank out, "
            "remove it.",
        )
    return item, weight


def _split(split: object, where: str) -> tuple[float, float, float]:
    parts = cast("tuple[object, ...]", tuple(split)) if isinstance(split, list | tuple) else ()
    numbers = [float(part) for part in parts if isinstance(part, int | float) and not isinstance(part, bool)]
    good = (
        len(numbers) == len(parts) == 3
        and all(math.isfinite(number) and number > 0 for number in numbers)
        and abs(sum(numbers) - 1) < 1e-9
    )
    if not good:
        raise CaseError(
            f"{split!r} does not divide the rows.",
            where=f"{where}: split",
            remedy="Give three positive fractions (training, validation, test) that add up to 1, "
            "such as [0.6, 0.2, 0.2].",
        )
    return (numbers[0], numbers[1], numbers[2])


def _check_tf32(where: str, tf32: object, dtype: Dtype, placements: Sequence[Placement]) -> None:
    if not isinstance(tf32, bool):
        raise CaseError(
            f"{tf32!r} is neither true nor false.", where=f"{where}: tf32", remedy="Correct the value."
        )
    others = [placement for placement in placements if placement.backend != "cuda"]
    if tf32 and (dtype != "float32" or others):
        whose = str(others[0]) if others else dtype
        raise CaseError(
            f"{whose} has no TensorFloat-32.",
            where=f"{where}: tf32",
            remedy="Leave it out, or write dtype: float32 and place every rank on cuda.",
        )


def _class_weights(weights: object, where: str) -> tuple[float, ...] | Literal["balanced"] | None:
    if weights is None:
        return None
    if weights == "balanced":
        return "balanced"
    items = tuple(cast("Sequence[object]", weights)) if isinstance(weights, list | tuple) else ()
    numbers = [item for item in items if isinstance(item, int | float) and not isinstance(item, bool)]
    most = sys.float_info.max
    if len(numbers) != len(items) or not numbers or not all(0 <= number <= most for number in numbers):
        raise CaseError(
            f"{weights!r} does not weigh the classes.",
            where=f"{where}: class_weights",
            remedy="Give one finite number of at least 0 for each class, or balanced.",
        )
    return tuple(float(number) + 0.0 for number in numbers)
