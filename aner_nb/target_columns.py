"""The target columns of a table: classes or amounts, and what must not stand among the features."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aner_nb.columns import Column, kind_of, numbers_of, texts_of
from aner_nb.errors import CaseError
from aner_nb.sources import MAX_CLASSES, Task

_FEW: Final = 20
"""So many different whole numbers may be classes or amounts: with more they are amounts."""


def read_targets(
    frame: Any, targets: Sequence[str], task: Task | None
) -> tuple[Task, tuple[str, ...], NDArray[np.int64] | NDArray[np.float64]]:
    """Return what is to be learned, the names of the classes, and labels (rows,) or amounts (rows, targets).

    Raises
    ------
    CaseError
        If a target holds neither classes nor amounts, or it is in doubt which of the two.
    """
    if len(targets) > 1 or task == "regression":
        if task == "classification":
            raise CaseError(
                f"{len(targets)} targets are not one class a row.",
                where="data.target",
                remedy="Name one target, or write task='regression'.",
            )
        columns = [_amounts(frame[name], name) for name in targets]
        return "regression", (), np.column_stack(columns)
    (name,) = targets
    series = frame[name]
    raw = kind_of(series, name)
    if raw == "number" and task is None and not _are_classes(series, name):
        return "regression", (), _amounts(series, name)[:, None]
    if raw == "date":
        raise CaseError(
            f"the target {name!r} holds dates.", where="data.target", remedy="Make a number or a class of it."
        )
    values: Any = texts_of(series).astype(str) if raw == "text" else numbers_of(series, name)
    distinct, labels = np.unique(values, return_inverse=True)
    if not 2 <= len(distinct) <= MAX_CLASSES:
        raise CaseError(
            f"the target {name!r} has {len(distinct):,} classes.",
            where="data.target",
            remedy="Name a column of two classes or more, or write task='regression' for amounts.",
        )
    if raw == "boolean":
        return "classification", tuple(str(bool(value)) for value in distinct), labels.astype(np.int64)
    names = tuple(str(value) if raw == "text" else f"{value:.16g}" for value in distinct)
    return "classification", names, labels.astype(np.int64)


def _amounts(series: Any, name: str) -> NDArray[np.float64]:
    if kind_of(series, name) not in ("number", "boolean"):
        raise CaseError(
            f"the target {name!r} holds no numbers.",
            where="data.target",
            remedy="Write task='classification' for classes, or make numbers of it.",
        )
    return numbers_of(series, name)


def _are_classes(series: Any, name: str) -> bool:
    """Return whether a column of numbers holds classes; where both may be meant, ask."""
    from pandas.api import types

    values = numbers_of(series, name)
    whole = bool((values == np.floor(values)).all())
    count = len(np.unique(values))
    integers = types.is_integer_dtype(series.dtype)
    if integers and count <= _FEW:
        return True
    if not whole or (not integers and count > _FEW):
        return False
    raise CaseError(
        f"the target {name!r} holds {count:,} different whole numbers, which may be classes or amounts.",
        where="data.target",
        remedy="Write task='classification' or task='regression'.",
    )


def refuse_copies(frame: Any, columns: Sequence[Column], targets: Sequence[str]) -> None:
    """Refuse a feature that is a target under another name: the model would learn to copy."""
    for target in targets:
        for name in sorted(copied(frame, {column.name for column in columns}, target)):
            raise refuse_copy(name, target)


def copied(frame: Any, names: Iterable[str], target: str) -> set[str]:
    """Return which of the columns hold what the target holds, row by row."""
    first = texts_of(frame[target].iloc[:1])
    alike = {name for name in names if np.array_equal(texts_of(frame[name].iloc[:1]), first)}
    told = texts_of(frame[target]) if alike else first
    return {name for name in alike if np.array_equal(texts_of(frame[name]), told)}


def refuse_copy(name: str, target: str) -> CaseError:
    """Return the error for a column that is the target under another name."""
    return CaseError(
        f"the column {name!r} is the target {target!r} under another name.",
        where="data",
        remedy=f"Leave it out with leave_out=[{name!r}].",
    )
