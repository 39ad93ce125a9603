"""A person's rows that are larger than memory: described and read batch by batch, where they are."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aner_nb.columns import Column, kind_of, numbers_of, texts_of
from aner_nb.dask_frames import DaskFrames
from aner_nb.encoding import Options, encode, feature_names, matrix_of, spans_of, without_missing
from aner_nb.errors import CaseError
from aner_nb.frames import check_names
from aner_nb.parquet_frames import ParquetFrames
from aner_nb.sources import MAX_CLASSES, Record, Source, Span, Task
from aner_nb.target_columns import copied, refuse_copy

LEAST_BUDGET: Final = 2**20


@dataclass(frozen=True, slots=True)
class Scan:
    """What one reading of all rows found."""

    sha256: str
    targets: NDArray[Any]
    """Labels, (rows,) int32, or amounts, (rows, 1) float64."""
    class_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Survey:
    """What the columns are, and how many rows count."""

    columns: tuple[Column, ...]
    rows: int
    rows_left_out: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Stored:
    """A description of rows: `aner_nb.data.stored` makes it. Only batches of rows are ever in memory."""

    origin: ParquetFrames | DaskFrames = field(repr=False)
    """Where the rows come from; private."""
    cache: Path = field(repr=False)
    """Folder for prepared rows; private."""
    options: Options = field(repr=False)
    columns: tuple[Column, ...] = field(repr=False)
    name: str
    budget_bytes: int
    """Most that rows take at a time in any process."""
    rows: int
    rows_left_out: int
    class_names: tuple[str, ...]
    sha256: str
    """The same that the rows would have in memory: how they are cut has no say in it."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stored) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[object, ...]:
        return (self.sha256, self.name, self.options, self.columns, self.class_names)

    @property
    def task(self) -> Task:
        """What is learned."""
        return "classification" if self.class_names else "regression"

    @property
    def width(self) -> int:
        """Columns of the encoded features."""
        return sum(column.width for column in self.columns)

    @property
    def spans(self) -> tuple[Span, ...]:
        """Columns that training rows have a say in."""
        return spans_of(self.columns, self.options.fill)

    @property
    def schema_sha256(self) -> str:
        """Digest of all names and categories."""
        return hashlib.sha256(self._schema_text()).hexdigest()

    def to_record(self) -> Record:
        """Return the description as plain JSON values: no name of a column, a class or a file."""
        size = "classes" if self.class_names else "outputs"
        record: Record = {
            "source": "stored",
            "name": self.name,
            "rows": self.rows,
            "features": self.width,
            size: len(self.class_names) or 1,
            "schema_sha256": self.schema_sha256,
            "sha256": self.sha256,
        }
        if self.width != len(self.columns) or self.options.missing != "refuse":
            record |= {
                "rows_left_out": self.rows_left_out,
                "columns": len(self.columns),
                "categorical": self.options.categorical,
                "missing": self.options.missing,
            }
        return record

    def private_record(self) -> dict[str, Any]:
        """Return what a receipt keeps and nobody publishes: names of columns, categories and classes."""
        return json.loads(self._schema_text())

    def _schema_text(self) -> bytes:
        columns = [
            [column.name, column.kind, list(column.categories)] if column.categories else column.name
            for column in self.columns
        ]
        named = {
            "columns": columns,
            "target": self.options.targets[0],
            "class_names": list(self.class_names),
        }
        return json.dumps(named, sort_keys=True, ensure_ascii=False).encode()

    def load(self) -> Source:
        """Refuse: the rows may not fit into memory; `aner_nb.staging.stage` prepares them in files.

        Raises
        ------
        CaseError
            Always.
        """
        raise CaseError("stored rows are staged, not loaded.", where="data", remedy="Use table(…).")

    def scan(self) -> Scan:
        """Read the rows again.

        Raises
        ------
        CaseError
            If they changed since they were described.
        """
        found = self.origin.run(_scan, self.columns, self.options, self.rows)
        if found.sha256 != self.sha256 or found.class_names != self.class_names:
            raise CaseError(
                "the rows changed after they were described.",
                where=f"data {self.name!r}",
                remedy="Describe them again with stored(…).",
            )
        return found

    def matrix(self, data: object) -> NDArray[np.float64]:
        """Return rows of the same columns as the encoded features; see `aner_nb.encoding.matrix_of`."""
        return matrix_of(data, self.columns, self.options.missing)

    def batches(self) -> Iterator[NDArray[np.float64]]:
        """Yield the encoded features in the order of the rows, some at a time, missing values as NaN."""
        names = [column.name for column in self.columns]
        for _, _, frame in _kept(self.origin, names, self.options):
            yield encode(frame, self.columns)


def describe_stored(
    origin: ParquetFrames | DaskFrames, options: Options, *, name: str, cache: Path, budget_bytes: int
) -> Stored:
    """Return the description of rows; see `aner_nb.data.stored`."""
    if budget_bytes < LEAST_BUDGET:
        raise CaseError(
            f"a budget of {budget_bytes:,} bytes is too small.",
            where="data.budget_bytes",
            remedy=f"Give {LEAST_BUDGET:,} bytes or more.",
        )
    names = origin.names()
    check_names(names)
    survey = origin.run(_survey, feature_names(names, options), options)
    found = origin.run(_scan, survey.columns, options, survey.rows)
    return Stored(
        origin=origin,
        cache=cache,
        options=options,
        columns=survey.columns,
        name=name,
        budget_bytes=budget_bytes,
        rows=survey.rows,
        rows_left_out=survey.rows_left_out,
        class_names=found.class_names,
        sha256=found.sha256,
    )


def _kept(
    origin: ParquetFrames | DaskFrames, names: Sequence[str], options: Options
) -> Iterator[tuple[int, int, Any]]:
    """Yield the number of a first row, how many rows were read, and those that count; refuse a gap that must not be."""
    start = 0
    for frame in origin.frames([*names, *options.targets]):
        kept = without_missing(frame, names, options, start)
        yield start, len(frame), kept
        start += len(frame)


def _survey(origin: ParquetFrames | DaskFrames, names: Sequence[str], options: Options) -> Survey:
    scans = [options.scan(name) for name in names]
    (target,) = options.targets
    copies = set(names)
    rows = left_out = 0
    for start, count, frame in _kept(origin, names, options):
        if len(frame):
            for name, scan in zip(names, scans, strict=True):
                scan.add(frame[name], start)
            copies = copied(frame, copies, target)
        rows += len(frame)
        left_out += count - len(frame)
    if not rows:
        raise CaseError("there are no rows.", where="data", remedy="Give some rows without gaps.")
    columns = tuple(scan.column() for scan in scans)
    for name in sorted(copies):
        raise refuse_copy(name, target)
    return Survey(columns, rows, left_out)


def _scan(
    origin: ParquetFrames | DaskFrames, columns: tuple[Column, ...], options: Options, rows: int
) -> Scan:
    digest = part_fingerprint_start(rows, sum(column.width for column in columns))
    codes: dict[Any, int] = {}
    pieces: list[NDArray[Any]] = []
    (target,) = options.targets
    for start, _, frame in _kept(origin, [column.name for column in columns], options):
        if not len(frame):
            continue
        digest.update(np.ascontiguousarray(encode(frame, columns, start), "<f8").data)
        pieces.append(_target(frame[target], target, options.task, codes, start))
    targets = np.concatenate(pieces)
    if options.task == "regression":
        targets, names = targets[:, None], ()
    else:
        targets, names = _sorted_classes(targets, codes, target)
    return Scan(part_fingerprint_end(digest, targets), targets, names)


def _target(series: Any, name: str, task: Task | None, codes: dict[Any, int], start: int) -> NDArray[Any]:
    raw = kind_of(series, name)
    if task == "regression" or raw == "date":
        if raw not in ("number", "boolean"):
            raise CaseError(
                f"the target {name!r} holds {raw} values.", where="data.target", remedy="Give numbers."
            )
        return numbers_of(series, name, start)
    values: Any = numbers_of(series, name, start) if raw == "number" else texts_of(series).astype(str)
    distinct, inverse = np.unique(values, return_inverse=True)
    numbers = np.array([codes.setdefault(value, len(codes)) for value in distinct.tolist()], np.int32)
    if len(codes) > MAX_CLASSES:
        raise CaseError(
            f"the target {name!r} has over {MAX_CLASSES:,} classes.",
            where="data.target",
            remedy="Write task='regression' for amounts.",
        )
    return numbers[inverse]


def _sorted_classes(
    targets: NDArray[np.int32], codes: dict[Any, int], name: str
) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    if len(codes) < 2:
        raise CaseError(
            f"the target {name!r} has {len(codes)} class.",
            where="data.target",
            remedy="Name a column of two classes or more, or write task='regression'.",
        )
    if len({isinstance(value, str) for value in codes}) > 1:
        raise CaseError(
            f"the target {name!r} holds numbers in some rows and texts in others.",
            where="data.target",
            remedy="Make them all numbers or all texts.",
        )
    places = np.empty(len(codes), np.int32)
    values = sorted(codes)
    for place, value in enumerate(values):
        places[codes[value]] = place
    names = tuple(value if isinstance(value, str) else f"{value:.16g}" for value in values)
    return places[targets], names


def part_fingerprint_start(count: int, width: int) -> Any:
    """Return the digest of features that come in batches, as `sources.fingerprint` takes them."""
    return hashlib.sha256(f"float64 {count}x{width}\n".encode())


def part_fingerprint_end(digest: Any, targets: NDArray[Any]) -> str:
    """Return the fingerprint, once the digest has all features: labels count as int64."""
    wide = targets if targets.ndim == 2 else targets.astype(np.int64)
    digest.update(f"{wide.dtype.name} {'x'.join(map(str, wide.shape))}\n".encode())
    digest.update(np.ascontiguousarray(wide, wide.dtype.newbyteorder("<")).data)
    return digest.hexdigest()
