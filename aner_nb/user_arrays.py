"""The user's own arrays as a source of data: checked once, never copied, never trusted to stay the same."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aner_nb.errors import CaseError
from aner_nb.sources import MAX_CLASSES, Record, Source, fingerprint, first_not_finite, make_source

OWN_SOURCES: Final = ("arrays", "table", "stored")
"""Sources of a person's own rows: their records describe them, and cannot bring them back."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Arrays:
    """The user's own rows, held as read-only views: nothing is copied until they are prepared.

    Whole-number targets, shape (rows,), are labels 0, 1, … of a classification; float targets, shape (rows,)
    or (rows, outputs), are the numbers of a regression. Two descriptions are equal if their fingerprints,
    names and class names are.

    Raises
    ------
    CaseError
        If the shapes or types do not fit, a value is not finite or a label is out of range.
    """

    features: NDArray[Any] = field(repr=False)
    """Shape (rows, features); integers, booleans or floats of at most 8 bytes, all finite."""
    targets: NDArray[Any] = field(repr=False)
    """Shape (rows,) or, for a regression, (rows, outputs)."""
    name: str = "arrays"
    class_names: Sequence[str] = ()
    """One name a class; empty: the labels are the names, up to the largest one that occurs."""
    class_count: int = field(init=False)
    """0 for a regression."""
    sha256: str = field(init=False)
    """Fingerprint of the features and targets as they were given."""

    def __post_init__(self) -> None:
        features = _numbers(self.features, "features", (2,))
        targets = _numbers(self.targets, "targets", (1, 2))
        if len(features) != len(targets):
            raise CaseError(
                f"{len(targets):,} targets do not fit {len(features):,} rows of features.",
                where="data.targets",
                remedy="Give one target for each row.",
            )
        names = tuple(self.class_names)
        if not self.name or not all(isinstance(name, str) for name in (self.name, *names)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise CaseError("a name is not a text.", where="data", remedy="Give names as strings.")
        values: dict[str, object] = {
            "features": features,
            "targets": targets,
            "class_names": names,
            "class_count": _class_count(targets, names),
            "sha256": fingerprint(features, targets),
        }
        for key, value in values.items():
            object.__setattr__(self, key, value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Arrays) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[object, ...]:
        return (self.sha256, self.name, self.class_names)

    def to_record(self) -> Record:
        """Return the description as plain JSON values: shapes, types and fingerprint instead of the data."""
        size = "classes" if self.class_count else "outputs"
        return {
            "source": "arrays",
            "name": self.name,
            "rows": len(self.features),
            "features": self.features.shape[1],
            size: self.class_count or math.prod(self.targets.shape[1:]),
            "features_dtype": self.features.dtype.name,
            "targets_dtype": self.targets.dtype.name,
            "sha256": self.sha256,
        }

    def load(self) -> Source:
        """Return the rows as float64, copying only what has another type.

        Raises
        ------
        CaseError
            If somebody changed the arrays since they were described.
        """
        if fingerprint(self.features, self.targets) != self.sha256:
            raise CaseError(
                "the arrays changed after they were described.",
                where=f"data {self.name!r}",
                remedy="Describe them again with arrays(…), or give a copy that nobody writes to.",
            )
        features = self.features.astype(np.float64, copy=False)
        if self.class_count:
            names = self.class_names or map(str, range(self.class_count))
            return make_source(features, self.targets.astype(np.int64, copy=False), tuple(names))
        targets = self.targets.astype(np.float64, copy=False)
        return make_source(features, targets.reshape(len(targets), -1))


def _numbers(values: ArrayLike, name: str, dimensions: tuple[int, ...]) -> NDArray[Any]:
    """Return a read-only view of finite numbers with a permitted count of dimensions, none of length 0."""
    where = f"data.{name}"
    array = np.asarray(values)
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        remedy = "Convert text to numbers; for labels, numpy.unique(labels, return_inverse=True)[1] does it."
        raise CaseError(f"values of type {array.dtype} are not numbers.", where=where, remedy=remedy)
    if array.ndim not in dimensions:
        wanted = "(rows, features)" if name == "features" else "(rows,) or (rows, outputs)"
        raise CaseError(
            f"the shape {array.shape} is not {wanted}.",
            where=where,
            remedy="Use reshape: one row an example.",
        )
    if array.size == 0:
        raise CaseError(f"the shape {array.shape} holds no values.", where=where, remedy="Give some rows.")
    bad = first_not_finite(array)
    if bad is not None:
        raise CaseError(
            f"the value in row {', column '.join(map(str, bad))} is {array[bad]}.",
            where=where,
            remedy="Remove the row or fill in a number; rows and columns count from 0.",
        )
    view = array.view()
    view.flags.writeable = False
    return view


def _class_count(targets: NDArray[Any], names: tuple[str, ...]) -> int:
    where = "data.targets"
    if targets.dtype.kind == "f":
        if names:
            raise CaseError(
                "float targets are a regression, which has no class names.",
                where=where,
                remedy="For classes give labels as integers: targets.astype(int).",
            )
        return 0
    if targets.ndim != 1:
        raise CaseError(
            f"whole-number targets of shape {targets.shape} are neither labels nor a regression.",
            where=where,
            remedy="For classes give labels (rows,), such as one_hot.argmax(axis=1); else give floats.",
        )
    most = (len(names) or MAX_CLASSES) - 1
    outside = (targets < 0) | (targets > most)
    if outside.any():
        row = int(outside.argmax())
        raise CaseError(
            f"the label {targets[row]} in row {row} is not from 0 to {most:,}.",
            where=where,
            remedy="Number the classes 0, 1, 2, …, and give as many class names, if any.",
        )
    count = len(names) or int(targets.max()) + 1
    if count < 2:
        raise CaseError("all rows have the one label 0.", where=where, remedy="Give two classes or more.")
    return count


@dataclass(frozen=True, slots=True)
class KeptArrays:
    """A person's own rows of which only the description was kept: of a study that is opened again."""

    description: str
    """Canonical JSON of what ``to_record`` gave."""

    def to_record(self) -> Record:
        """Return the description."""
        return json.loads(self.description)

    def load(self) -> Source:
        """Refuse: the numbers are not there.

        Raises
        ------
        CaseError
            Always.
        """
        raise CaseError(
            "results keep the fingerprint of your own rows, not the rows.",
            where="data",
            remedy="Build the case again from your data to run it.",
        )
