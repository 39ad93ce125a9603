"""A person's own table as a source of data: each column's part in it is stated, or refused with what to state."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from aner_nb.columns import Column, codes_of, describe_column
from aner_nb.errors import CaseError
from aner_nb.frames import read_frame
from aner_nb.sources import Record, Source, Span, Task, make_source
from aner_nb.target_columns import read_targets, refuse_copies

Missing = Literal["refuse", "drop", "mean", "most_frequent"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What the person stated about a table; see `aner_nb.data.table`."""

    targets: tuple[str, ...]
    task: Task | None
    categorical: Literal["refuse", "one_hot"]
    ordinal: tuple[tuple[str, tuple[str, ...]], ...]
    missing: Missing
    groups: str | None
    order: str | None
    leave_out: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Schema:
    """What a table holds: never published but as a digest."""

    columns: tuple[Column, ...]
    """The features, in the order of the table."""
    task: Task
    class_names: tuple[str, ...]
    """Sorted; empty for a regression."""

    @property
    def width(self) -> int:
        """Columns of the encoded features."""
        return sum(column.width for column in self.columns)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Table:
    """A description of a table: `aner_nb.data.table` makes it. The rows are read anew by each trial.

    Two descriptions are equal if their fingerprints, schemas, options and names are.
    """

    origin: object = field(repr=False)
    """A path, or the frame that was given; private."""
    options: Options
    schema: Schema = field(repr=False)
    name: str
    rows: int
    rows_left_out: int
    sha256: str
    """Fingerprint of the encoded rows: the same from CSV, Parquet and frames, however they are cut."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[object, ...]:
        return (self.sha256, self.name, self.options, self.schema)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes in the order of their numbers; empty for a regression."""
        return self.schema.class_names

    @property
    def split_by(self) -> str:
        """What decides which rows go together: ``groups``, ``order``, ``classes`` or ``rows``."""
        if self.options.order or self.options.groups:
            return "order" if self.options.order else "groups"
        return "classes" if self.class_names else "rows"

    def to_record(self) -> Record:
        """Return the description as plain JSON values: no name of a column, a class or a file."""
        size = "classes" if self.class_names else "outputs"
        return {
            "source": "table",
            "name": self.name,
            "rows": self.rows,
            "rows_left_out": self.rows_left_out,
            "columns": len(self.schema.columns),
            "features": self.schema.width,
            size: len(self.class_names) or len(self.options.targets),
            "categorical": self.options.categorical,
            "missing": self.options.missing,
            "split_by": self.split_by,
            "schema_sha256": hashlib.sha256(self._schema_text()).hexdigest(),
            "sha256": self.sha256,
        }

    def private_record(self) -> dict[str, Any]:
        """Return what a receipt keeps and nobody publishes: names of columns, categories and classes."""
        return json.loads(self._schema_text())

    def _schema_text(self) -> bytes:
        columns = [[column.name, column.kind, list(column.categories)] for column in self.schema.columns]
        named = {
            "columns": columns,
            "targets": list(self.options.targets),
            "class_names": list(self.class_names),
            "groups": self.options.groups,
            "order": self.options.order,
        }
        return json.dumps(named, sort_keys=True, ensure_ascii=False).encode()

    def load(self) -> Source:
        """Read the table again and return its rows.

        Raises
        ------
        CaseError
            If it changed since it was described.
        """
        schema, source, _ = _read(self.origin, self.options)
        if source.fingerprint != self.sha256 or schema != self.schema:
            raise CaseError(
                "the table changed after it was described.",
                where=f"data {self.name!r}",
                remedy="Describe it again with table(…), or give a copy that nobody writes to.",
            )
        return source

    def matrix(self, data: object) -> NDArray[np.float64]:
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
        plain = all(column.width == 1 and not column.categories for column in self.schema.columns)
        if plain and isinstance(data, list | tuple | np.ndarray):
            values = np.asarray(data, np.float64)
            if values.ndim != 2 or values.shape[1] != self.schema.width:
                return values  # whoever asked knows which shape fits
            frame = read_frame({column.name: values[:, i] for i, column in enumerate(self.schema.columns)})
        else:
            frame = read_frame(data)
        absent = [column.name for column in self.schema.columns if column.name not in frame.columns]
        if absent:
            raise CaseError(
                f"the column {absent[0]!r} is missing.",
                where="predict",
                remedy="Give the columns that the model was trained on.",
            )
        if self.options.missing in ("refuse", "drop"):
            _refuse_missing(frame, [column.name for column in self.schema.columns])
        return _encode(frame, self.schema.columns)


def describe_table(
    origin: object,
    *,
    targets: tuple[str, ...],
    task: Task | None,
    categorical: Literal["refuse", "one_hot"],
    ordinal: Mapping[str, Sequence[str]],
    missing: Missing,
    groups: str | None,
    order: str | None,
    leave_out: tuple[str, ...],
    name: str,
) -> Table:
    """Return the description of a table; see `aner_nb.data.table`."""
    for what, value, choices in (
        ("task", task, (None, *get_args(Task))),
        ("categorical", categorical, ("refuse", "one_hot")),
        ("missing", missing, get_args(Missing)),
    ):
        if value not in choices:
            known = " or ".join(str(choice) for choice in choices if choice)
            raise CaseError(f"{value!r} is not known.", where=f"data.{what}", remedy=f"Choose {known}.")
    if not isinstance(name, str) or not name:
        raise CaseError("a name is not a text.", where="data.name", remedy="Give a string.")
    options = Options(
        targets=targets,
        task=task,
        categorical=categorical,
        ordinal=tuple(sorted((key, tuple(map(str, values))) for key, values in ordinal.items())),
        missing=missing,
        groups=groups,
        order=order,
        leave_out=leave_out,
    )
    schema, source, dropped = _read(origin, options)
    return Table(
        origin=origin,
        options=options,
        schema=schema,
        name=name,
        rows=len(source.features),
        rows_left_out=dropped,
        sha256=source.fingerprint,
    )


def _read(origin: object, options: Options) -> tuple[Schema, Source, int]:
    """Return what a table holds, its encoded rows, and how many rows were left out."""
    frame = read_frame(origin)
    names = _feature_names(frame, options)
    special = [*options.targets, *(name for name in (options.groups, options.order) if name)]
    kept = _without_missing(frame, names, special, options.missing)
    task, class_names, targets = read_targets(kept, options.targets, options.task)
    ordinal = dict(options.ordinal)
    columns = tuple(
        describe_column(kept[name], name, categorical=options.categorical, ordinal=ordinal) for name in names
    )
    refuse_copies(kept, columns, options.targets)
    fill: Any = options.missing if options.missing in ("mean", "most_frequent") else ""
    source = make_source(
        _encode(kept, columns),
        targets,
        class_names,
        spans=_spans(columns, fill),
        groups=codes_of(kept[options.groups], options.groups) if options.groups else None,
        order=codes_of(kept[options.order], options.order) if options.order else None,
    )
    schema = Schema(columns=columns, task=task, class_names=class_names)
    return schema, source, len(frame) - len(kept)


def _feature_names(frame: Any, options: Options) -> list[str]:
    """Return the columns that nobody gave another part, and refuse names that there are not, or twice."""
    parts = (
        ("target", options.targets),
        ("groups", (options.groups,) if options.groups else ()),
        ("order", (options.order,) if options.order else ()),
        ("leave_out", options.leave_out),
    )
    used: dict[str, str] = {}
    for part, names in parts:
        for name in names:
            if name not in frame.columns:
                raise _no_column(name, part, frame)
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
    features = [name for name in frame.columns if name not in used]
    for name, categories in options.ordinal:
        if name not in features:
            raise _no_column(name, "ordinal", frame)
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


def _no_column(name: str, part: str, frame: Any) -> CaseError:
    shown = ", ".join(map(str, frame.columns[:12]))
    more = ", …" if len(frame.columns) > 12 else ""
    return CaseError(
        f"there is no column {name!r} to be {part}.", where=f"data.{part}", remedy=f"There are {shown}{more}."
    )


def _without_missing(frame: Any, features: list[str], special: list[str], missing: Missing) -> Any:
    """Return the rows that stay; refuse what is missing and must not be."""
    if missing == "drop":
        kept = frame[~frame[[*features, *special]].isna().any(axis=1)]
        if not len(kept):
            raise CaseError(
                "something is missing in every row, so that none is left.",
                where="data.missing",
                remedy="Write missing='mean', or leave out the columns with gaps.",
            )
        return kept
    for name in special:
        if frame[name].isna().any():
            raise CaseError(
                f"the column {name!r} has no value in row {int(frame[name].isna().to_numpy().argmax())}, and what "
                "is predicted or decides the split cannot be made up.",
                where="data.missing",
                remedy="Fill it in, or write missing='drop' to leave such rows out; rows count from 0.",
            )
    if missing == "refuse":
        _refuse_missing(frame, features)
    return frame


def _refuse_missing(frame: Any, names: list[str]) -> None:
    absent = frame[names].isna().to_numpy()
    if absent.any():
        column = int(absent.any(axis=0).argmax())
        count = int(absent[:, column].sum())
        raise CaseError(
            f"the column {names[column]!r} has no value in row {int(absent[:, column].argmax())}"
            f"{f' and {count - 1:,} others' if count > 1 else ''}.",
            where="data.missing",
            remedy="Fill it in, or write missing='drop', 'mean' or 'most_frequent'; rows count from 0.",
        )


def _encode(frame: Any, columns: Sequence[Column]) -> NDArray[np.float64]:
    features = np.empty((len(frame), sum(column.width for column in columns)))
    start = 0
    for column in columns:
        features[:, start : start + column.width] = column.encode(frame[column.name])
        start += column.width
    return features


def _spans(columns: Sequence[Column], fill: Literal["", "mean", "most_frequent"]) -> tuple[Span, ...]:
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
