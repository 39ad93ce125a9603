"""What a person states of a table, and its columns as numbers: the same for a table in memory and for stored rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from aner_nb.columns import Column, ColumnScan
from aner_nb.errors import CaseError
from aner_nb.frames import read_frame
from aner_nb.sources import Span, Task

Missing = Literal["refuse", "drop", "mean", "most_frequent"]
Categorical = Literal["refuse", "one_hot"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What the person stated about a table; see `aner_nb.data.table`.

    Raises
    ------
    CaseError
        If a choice is not known.
    """

    targets: tuple[str, ...]
    task: Task | None
    categorical: Categorical
    ordinal: tuple[tuple[str, tuple[str, ...]], ...]
    missing: Missing
    groups: str | None = None
    order: str | None = None
    leave_out: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for what, value, choices in (
            ("task", self.task, (None, *get_args(Task))),
            ("categorical", self.categorical, get_args(Categorical)),
            ("missing", self.missing, get_args(Missing)),
        ):
            if value not in choices:
                known = " or ".join(str(choice) for choice in choices if choice)
                raise CaseError(f"{value!r} is not known.", where=f"data.{what}", remedy=f"Choose {known}.")

    @property
    def special(self) -> list[str]:
        """Columns that are never filled in: what is predicted, or decides the split."""
        return [*self.targets, *(name for name in (self.groups, self.order) if name)]

    @property
    def fill(self) -> Literal["", "mean", "most_frequent"]:
        """What takes the place of missing values; empty: none is missing."""
        return self.missing if self.missing in ("mean", "most_frequent") else ""

    def scan(self, name: str) -> ColumnScan:
        """Return what finds out about a feature by these options."""
        return ColumnScan(name, categorical=self.categorical, order=dict(self.ordinal).get(name))


def ordered(ordinal: Mapping[str, Sequence[str]] | None) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return stated orders of categories as they stand in `Options`."""
    return tuple(sorted((key, tuple(map(str, values))) for key, values in (ordinal or {}).items()))


def feature_names(names: Sequence[str], options: Options) -> list[str]:
    """Return the columns that nobody gave another part.

    Raises
    ------
    CaseError
        If a column is named that there is not, or twice, or none is left.
    """
    parts = (
        ("target", options.targets),
        ("groups", (options.groups,) if options.groups else ()),
        ("order", (options.order,) if options.order else ()),
        ("leave_out", options.leave_out),
    )
    used: dict[str, str] = {}
    for part, those in parts:
        for name in those:
            if name not in names:
                raise _no_column(name, part, names)
            if name in used:
                raise CaseError(
                    f"the column {name!r} is both {used[name]} and {part}.",
                    where=f"data.{part}",
                    remedy="Give it one part, or make a copy of the column under another name.",
                )
            used[name] = part
    if not options.targets:
        raise CaseError("there is no target.", where="data.target", remedy="Name the column to predict.")
    if options.groups and options.order:
        raise CaseError(
            "rows are split by groups or by order, not by both.",
            where="data.order",
            remedy="Give one of the two.",
        )
    features = [name for name in names if name not in used]
    for name, categories in options.ordinal:
        if name not in features:
            raise _no_column(name, "ordinal", names)
        if len(set(categories)) != len(categories) or len(categories) < 2:
            raise CaseError(
                f"the order of {name!r} is not two or more different categories.",
                where="data.ordinal",
                remedy="List each category once, from the least to the greatest.",
            )
    if not features:
        raise CaseError(
            "no column is left as a feature.", where="data", remedy="Give a table with more columns."
        )
    return features


def _no_column(name: str, part: str, names: Sequence[str]) -> CaseError:
    shown = ", ".join(map(str, names[:12]))
    more = ", …" if len(names) > 12 else ""
    return CaseError(
        f"there is no column {name!r} to be {part}.", where=f"data.{part}", remedy=f"There are {shown}{more}."
    )


def without_missing(frame: Any, features: Sequence[str], options: Options, start: int | None = None) -> Any:
    """Return the rows that stay; refuse what is missing and must not be.

    Parameters
    ----------
    start
        Number of the first row, of a frame that is not all of the table.
    """
    if options.missing == "drop":
        return frame[~frame[[*features, *options.special]].isna().any(axis=1)]
    for name in options.special:
        if frame[name].isna().any():
            row = (start or 0) + int(frame[name].isna().to_numpy().argmax())
            raise CaseError(
                f"the column {name!r} has no value in row {row}, and what is predicted or decides the split cannot "
                "be made up.",
                where="data.missing",
                remedy="Fill it in, or write missing='drop' to leave such rows out; rows count from 0.",
            )
    if options.missing == "refuse":
        refuse_missing(frame, features, start)
    return frame


def refuse_missing(frame: Any, names: Sequence[str], start: int | None = None) -> None:
    """Refuse a frame that has a gap in one of the columns."""
    for name in names:
        gaps = frame[name].isna().to_numpy()
        if gaps.any():
            count = int(gaps.sum()) if start is None else 1  # of all rows, or none is told
            raise CaseError(
                f"the column {name!r} has no value in row {(start or 0) + int(gaps.argmax())}"
                f"{f' and {count - 1:,} others' if count > 1 else ''}.",
                where="data.missing",
                remedy="Fill it in, or write missing='drop', 'mean' or 'most_frequent'; rows count from 0.",
            )


def encode(frame: Any, columns: Sequence[Column], start: int = 0) -> NDArray[np.float64]:
    """Return the features of a frame, shape (rows, width), float64, missing values as NaN."""
    features = np.empty((len(frame), sum(column.width for column in columns)))
    place = 0
    for column in columns:
        features[:, place : place + column.width] = column.encode(frame[column.name], start)
        place += column.width
    return features


def spans_of(columns: Sequence[Column], fill: Literal["", "mean", "most_frequent"]) -> tuple[Span, ...]:
    """Return where columns lie that training rows have a say in; none if there are none."""
    spans: list[Span] = []
    start = 0
    for column in columns:
        stop = start + column.width
        own = "most_frequent" if fill and column.kind != "number" else fill
        if own or column.kind == "one_hot":
            spans.append(Span(column.name, start, stop, own, column.kind == "one_hot"))
        start = stop
    return tuple(spans)


def matrix_of(data: object, columns: Sequence[Column], missing: Missing) -> NDArray[np.float64]:
    """Return rows of the same columns as the encoded features, shape (rows, width), missing values as NaN.

    Parameters
    ----------
    data
        What `aner_nb.data.table` takes; other columns may stand in it. Where no column has categories, rows of
        plain numbers do as well.

    Raises
    ------
    CaseError
        If a column is missing or does not hold what it held, or something is missing that nothing fills.
    """
    plain = all(column.width == 1 and not column.categories for column in columns)
    if plain and isinstance(data, list | tuple | np.ndarray):
        values = np.asarray(data, np.float64)
        if values.ndim != 2 or values.shape[1] != len(columns):
            return values  # whoever asked knows which shape fits
        frame = read_frame({column.name: values[:, i] for i, column in enumerate(columns)})
    else:
        frame = read_frame(data)
    absent = [column.name for column in columns if column.name not in frame.columns]
    if absent:
        raise CaseError(
            f"the column {absent[0]!r} is missing.",
            where="predict",
            remedy="Give the columns that the model was trained on.",
        )
    if missing in ("refuse", "drop"):
        refuse_missing(frame, [column.name for column in columns])
    return encode(frame, columns)
