"""A person's own table as a source of data: each column's part in it is stated, or refused with what to state."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aner_nb.columns import Column, codes_of
from aner_nb.encoding import Options, encode, feature_names, matrix_of, spans_of, without_missing
from aner_nb.errors import CaseError
from aner_nb.frames import read_frame
from aner_nb.sources import Record, Source, Task, make_source
from aner_nb.target_columns import read_targets, refuse_copies


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
        """Return rows of the same columns as the encoded features; see `aner_nb.encoding.matrix_of`."""
        return matrix_of(data, self.schema.columns, self.options.missing)


def describe_table(origin: object, options: Options, name: str) -> Table:
    """Return the description of a table; see `aner_nb.data.table`."""
    if not isinstance(name, str) or not name:
        raise CaseError("a name is not a text.", where="data.name", remedy="Give a string.")
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
    names = feature_names(list(frame.columns), options)
    kept = without_missing(frame, names, options)
    if not len(kept):
        raise CaseError(
            "something is missing in every row, so that none is left.",
            where="data.missing",
            remedy="Write missing='mean', or leave out the columns with gaps.",
        )
    task, class_names, targets = read_targets(kept, options.targets, options.task)
    columns = tuple(_column(kept, name, options) for name in names)
    refuse_copies(kept, columns, options.targets)
    source = make_source(
        encode(kept, columns),
        targets,
        class_names,
        spans=spans_of(columns, options.fill),
        groups=codes_of(kept[options.groups], options.groups) if options.groups else None,
        order=codes_of(kept[options.order], options.order) if options.order else None,
    )
    schema = Schema(columns=columns, task=task, class_names=class_names)
    return schema, source, len(frame) - len(kept)


def _column(frame: Any, name: str, options: Options) -> Column:
    scan = options.scan(name)
    scan.add(frame[name])
    return scan.column()
