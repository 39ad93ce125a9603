"""The data that comes with aner_nb: two real sets, shipped as files, and one that is made from a seed."""

from __future__ import annotations

import hashlib
import io
import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final, Literal, cast

import numpy as np
from numpy.typing import NDArray

from aner_nb.counter import permutation, words
from aner_nb.errors import CaseError

Task = Literal["classification", "regression"]
Record = dict[str, str | int | float]

MAX_CLASSES: Final = 65_536

_FIXTURES: Final = {
    "iris.csv": "b6b8efc86732bc48c9fbddba53e2c191fd4f263c0ee98e2b1b7d3543e8d2121d",
    "digits.npy": "c45cf27f9e6d1507aa17aa9949fab3d046c8ffa373a108f49991e27f232ad83b",
}
_CHECKED_ROWS: Final = 1024
_HASH_BYTES: Final = 2**20
"""How much a fingerprint reads at a time when it must copy: bounds the copy, does not change the digest."""


@dataclass(frozen=True, slots=True)
class Span:
    """Columns of the encoded features that one column of a person's table became."""

    name: str
    start: int
    stop: int
    fill: Literal["", "mean", "most_frequent"] = ""
    """What training rows give for a missing value; empty: none is missing."""
    indicators: bool = False
    """Whether each is the indicator of a category."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Source:
    """All rows of a data set before any split, read-only."""

    features: NDArray[np.float64]
    """Shape (rows, features), float64; NaN is a missing value, which only columns with a `Span` have."""
    targets: NDArray[np.int64] | NDArray[np.float64]
    """Classification: labels, shape (rows,), int64. Regression: shape (rows, outputs), float64."""
    task: Task
    class_count: int
    """Classes that a label can name; 0 for regression."""
    class_names: tuple[str, ...]
    """One name a class, in the order of the labels; empty for regression."""
    fingerprint: str
    """`fingerprint` of the features and the targets, and of groups or order where there are any."""
    spans: tuple[Span, ...] = ()
    """Of a table; empty where the features are numbers as they are."""
    groups: NDArray[np.int64] | None = None
    """Shape (rows,): rows with one number stay in one part of a split."""
    order: NDArray[np.int64] | None = None
    """Shape (rows,): training rows have the smallest numbers, test rows the largest."""


def make_source(
    features: NDArray[np.float64],
    targets: NDArray[np.int64] | NDArray[np.float64],
    class_names: tuple[str, ...] = (),
    *,
    spans: tuple[Span, ...] = (),
    groups: NDArray[np.int64] | None = None,
    order: NDArray[np.int64] | None = None,
) -> Source:
    """Return the source made of these arrays; with class names it is a classification. Nothing is copied."""
    views = (features.view(), targets.view(), *(part.view() for part in (groups, order) if part is not None))
    for view in views:
        view.flags.writeable = False
    return Source(
        features=views[0],
        targets=views[1],
        task="classification" if class_names else "regression",
        class_count=len(class_names),
        class_names=class_names,
        fingerprint=fingerprint(*views),
        spans=spans,
        groups=groups,
        order=order,
    )


def fingerprint(*arrays: NDArray[Any], rows: NDArray[np.int64] | None = None) -> str:
    """Return the SHA-256 of arrays, hexadecimal: equal values, types and shapes give it everywhere.

    For each array the digest takes one ASCII line ``<dtype name> <lengths joined by x>`` and then the values
    in C order, little-endian. Byte order and memory layout of the arrays do not matter; the order in which
    they are given does. A contiguous little-endian array is read in place, others a MiB at a time.

    Parameters
    ----------
    *arrays : ndarray
        Numbers or booleans of at most 8 bytes, any shape.
    rows : ndarray, optional
        Shape (selected,), int64: take these rows of each array, as ``fingerprint(array[rows], …)`` would,
        without copying them all.

    Raises
    ------
    CaseError
        If an array holds something else than numbers whose size is the same on every platform.
    """
    digest = hashlib.sha256()
    for array in arrays:
        if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
            raise CaseError(
                f"values of type {array.dtype} have no fingerprint.",
                remedy="Convert the array to integers, float32 or float64.",
            )
        shape = array.shape if rows is None else (len(rows), *array.shape[1:])
        digest.update(f"{array.dtype.name} {'x'.join(map(str, shape))}\n".encode())
        for block in _canonical_bytes(array if array.ndim else array.reshape(1), rows):
            digest.update(block.data)
    return digest.hexdigest()


def _canonical_bytes(array: NDArray[Any], rows: NDArray[np.int64] | None) -> Iterator[NDArray[np.uint8]]:
    row_bytes = array.dtype.itemsize * math.prod(array.shape[1:])
    step = max(1, _HASH_BYTES // max(1, row_bytes))
    for start in range(0, len(array) if rows is None else len(rows), step):
        part = slice(start, start + step)
        block = array[part] if rows is None else array[rows[part]]
        yield np.ascontiguousarray(block, block.dtype.newbyteorder("<")).reshape(-1).view(np.uint8)


def first_not_finite(array: NDArray[Any]) -> tuple[int, ...] | None:
    """Return the (row, column) or (row,) of the first NaN or infinity, or None."""
    for start in range(0, len(array), _CHECKED_ROWS):
        finite = np.isfinite(array[start : start + _CHECKED_ROWS])
        if not finite.all():
            row, *column = (int(index[0]) for index in np.nonzero(~finite))
            return (start + row, *column)
    return None


def check_count(field: str, value: object, least: int, most: int, remedy: str = "Correct the value.") -> int:
    """Return a whole number from `least` to `most`, or raise a `CaseError` that names the field."""
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)  # pyright: ignore[reportArgumentType]
    except TypeError:
        number = least - 1
    if not least <= number <= most:
        raise CaseError(
            f"{value!r} is not a whole number from {least:,} to {most:,}.",
            where=f"data.{field}",
            remedy=remedy,
        )
    return number


def _fixture(name: str) -> bytes:
    try:
        content = (resources.files("aner_nb") / "fixtures" / name).read_bytes()
    except OSError:
        content = b""
    if hashlib.sha256(content).hexdigest() != _FIXTURES[name]:
        raise CaseError(
            f"the data file that came with aner_nb is {'altered' if content else 'missing'}.",
            where=f"fixtures/{name}",
            remedy="Install aner_nb again; results on other rows would carry the same name.",
        )
    return content


@dataclass(frozen=True, kw_only=True, slots=True)
class Iris:
    """Fisher's iris flowers: 150 rows, 4 lengths in cm, 3 species with 50 rows each."""

    def to_record(self) -> Record:
        """Return the description as plain JSON values."""
        return {"source": "iris"}

    def load(self) -> Source:
        """Read the rows from the package's file; raise `CaseError` if it is missing or altered."""
        rows = [line.split(",") for line in _fixture("iris.csv").decode("ascii").splitlines()[1:]]
        species = tuple(dict.fromkeys(row[-1] for row in rows))
        features = np.array([[float(number) for number in row[:-1]] for row in rows])
        labels = np.array([species.index(row[-1]) for row in rows], dtype=np.int64)
        return make_source(features, labels, species)


@dataclass(frozen=True, kw_only=True, slots=True)
class Digits:
    """Handwritten digits: 1,797 rows, 64 features (8 × 8 pixels, 0 to 16), 10 classes."""

    def to_record(self) -> Record:
        """Return the description as plain JSON values."""
        return {"source": "digits"}

    def load(self) -> Source:
        """Read the rows from the package's file; raise `CaseError` if it is missing or altered."""
        table = np.load(io.BytesIO(_fixture("digits.npy")), allow_pickle=False)
        return make_source(
            table[:, :64].astype(np.float64), table[:, 64].astype(np.int64), tuple("0123456789")
        )


_FACTORS: Final = 16
"""Hidden factors of a teacher's rows: few, so that features are correlated as real ones are."""
_MAX_FEATURES: Final = 2**16
_MAX_HIDDEN: Final = 2**12
_MAX_TEACHER_CLASSES: Final = 2**12
_MAX_VALUES: Final = 2**30
"""Of the features, and of the classes' outputs: 8 GiB of float64."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Teacher:
    """A made-up classification whose labels are the answers of a fixed network, the teacher.

    A row's features are integer mixtures of 16 hidden factors plus a small noise, in multiples of 2**-6,
    roughly normal with a standard deviation of 1.4. The teacher is a network with integer weights: `hidden`
    ReLU units, then one unit a class. The median of each class's output over all rows is subtracted, which
    keeps the classes of comparable size, and the largest output is the label; ties go to the lower class.

    Equal parameters give equal bytes on every platform, because no operation ever rounds. Every product and
    every partial sum is a multiple of its unit and below 2**53 such units, so float64 holds it exactly,
    whatever the order of the sum, the BLAS library or the use of fused multiply-add:

    ===================== ======= ===================================================
    quantity              unit    bound, in units
    ===================== ======= ===================================================
    factor                1       4 bytes: 2**9
    mixture               1       16 factors · 2**9 · 2**7 = 2**20
    feature               2**-6   2**20 / 2**9 + noise 2**5 < 2**12
    input of a ReLU unit  2**-6   2**16 features · 2**12 · 2**7 = 2**35
    output of a ReLU unit 1       2**35 / 2**4 = 2**31
    output of a class     1       2**12 units · 2**31 · 2**7 = 2**50, centred 2**51
    ===================== ======= ===================================================
    """

    rows: int
    """From `classes` up; rows times features, and rows times classes, at most 2**30."""
    features: int
    """1 to 65,536."""
    classes: int
    """2 to 4,096."""
    seed: int = 0
    hidden: int = 32
    """ReLU units of the teacher, 1 to 4,096: more make the task harder."""
    label_noise: float = 0.0
    """Fraction of the rows, 0 to 1, whose label is replaced by another one."""

    def __post_init__(self) -> None:
        for field, least, most in (
            ("features", 1, _MAX_FEATURES),
            ("classes", 2, _MAX_TEACHER_CLASSES),
            ("seed", 0, 2**53 - 1),
            ("hidden", 1, _MAX_HIDDEN),
        ):
            object.__setattr__(self, field, check_count(field, getattr(self, field), least, most))
        most = _MAX_VALUES // max(self.features, self.classes)
        remedy = "A teacher has at least as many rows as classes, and its arrays at most 2**30 values."
        object.__setattr__(self, "rows", check_count("rows", self.rows, self.classes, most, remedy))
        noise = cast("object", self.label_noise)
        if isinstance(noise, bool) or not isinstance(noise, int | float) or not 0 <= noise <= 1:
            raise CaseError(
                f"{noise!r} is not a fraction from 0 to 1.",
                where="data.label_noise",
                remedy="Give the share of labels to replace, such as 0.05.",
            )
        # 0 and 0.0 are one value, and must be one text in the canonical JSON.
        object.__setattr__(self, "label_noise", float(noise))

    def to_record(self) -> Record:
        """Return the description as plain JSON values."""
        return {
            "source": "teacher",
            "rows": self.rows,
            "features": self.features,
            "classes": self.classes,
            "seed": self.seed,
            "hidden": self.hidden,
            "label_noise": self.label_noise,
        }

    def load(self) -> Source:
        """Make the rows. Memory: the features, the classes' outputs twice, and blocks of a few MiB."""
        features = np.empty((self.rows, self.features))
        outputs = np.empty((self.rows, self.classes))
        mixing = self._bytes("teacher mixing", (_FACTORS, self.features)).astype(np.float64)
        first = self._bytes("teacher layer 1", (self.features, self.hidden)).astype(np.float64)
        second = self._bytes("teacher layer 2", (self.hidden, self.classes)).astype(np.float64)
        # Blocks start at multiples of 8 rows because one word of a stream gives 8 values.
        step = 8 * max(1, 2**15 // max(self.features, self.hidden, 4 * _FACTORS))
        for start in range(0, self.rows, step):
            block = features[start : start + step]
            self._fill_features(block, start, mixing)
            active = np.maximum(block @ first, 0.0)
            np.matmul(np.floor(active * 2.0**2), second, out=outputs[start : start + step])
        middle = (self.rows - 1) // 2
        outputs -= np.partition(outputs, middle, axis=0)[middle]
        labels = outputs.argmax(axis=1).astype(np.int64)
        self._replace_labels(labels)
        return make_source(features, labels, tuple(str(label) for label in range(self.classes)))

    def _fill_features(self, block: NDArray[np.float64], start: int, mixing: NDArray[np.float64]) -> None:
        rows = len(block)
        parts = self._bytes("teacher factors", (rows, _FACTORS, 4), start * _FACTORS * 4)
        # A sum of 4 bytes: nearly normal, with no function whose last bit depends on the C library.
        np.matmul(parts.sum(axis=2, dtype=np.int64).astype(np.float64), mixing, out=block)
        block *= 2.0**-9
        np.floor(block, out=block)
        block += self._bytes("teacher noise", (rows, self.features), start * self.features) >> 2
        block *= 2.0**-6

    def _replace_labels(self, labels: NDArray[np.int64]) -> None:
        count = round(self.rows * self.label_noise)
        chosen = permutation(self.seed, "teacher noisy rows", self.rows)[:count]
        others = np.uint64(self.classes - 1)
        shift = words(self.seed, "teacher noisy labels", count) % others + np.uint64(1)
        labels[chosen] = (labels[chosen] + shift.astype(np.int64)) % self.classes

    def _bytes(self, stream: str, shape: tuple[int, ...], start: int = 0) -> NDArray[np.int8]:
        """Return bytes from number `start` (a multiple of 8) of a stream as numbers from -128 to 127."""
        count = math.prod(shape)
        drawn = words(self.seed, stream, -(-count // 8), start // 8)
        return drawn.astype("<u8", copy=False).view(np.int8)[:count].reshape(shape)
