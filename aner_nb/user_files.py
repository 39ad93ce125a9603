"""A person's Parquet files that are larger than memory: described and read batch by batch."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aner_nb.columns import kind_of, numbers_of, texts_of
from aner_nb.errors import CaseError
from aner_nb.frames import check_names, missing_package, read_frame
from aner_nb.sources import Record, Source, Task

_BATCH_ROWS: Final = 2**16
_BATCH_VALUES: Final = 2**21
LEAST_BUDGET: Final = 2**20


@dataclass(frozen=True, slots=True)
class Scan:
    """What one reading of the files found."""

    sha256: str
    targets: NDArray[Any]
    """Labels, (rows,) int32, or amounts, (rows, 1) float64."""
    class_names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Stored:
    """A description of Parquet files: `aner_nb.data.stored` makes it. Only batches of rows are ever in memory."""

    path: Path = field(repr=False)
    """A file, or a folder of files in the order of their names; private."""
    cache: Path = field(repr=False)
    """Folder for prepared rows; private."""
    columns: tuple[str, ...] = field(repr=False)
    target: str = field(repr=False)
    task: Task
    name: str
    budget_bytes: int
    """Most that rows take at a time in any process."""
    rows: int
    class_names: tuple[str, ...]
    sha256: str
    """The same that the rows would have in memory: neither files nor row groups have a say in it."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stored) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[object, ...]:
        return (self.sha256, self.name, self.columns, self.target, self.class_names)

    def to_record(self) -> Record:
        """Return the description as plain JSON values: no name of a column, a class or a file."""
        size = "classes" if self.class_names else "outputs"
        return {
            "source": "stored",
            "name": self.name,
            "rows": self.rows,
            "features": len(self.columns),
            size: len(self.class_names) or 1,
            "schema_sha256": hashlib.sha256(self._schema_text()).hexdigest(),
            "sha256": self.sha256,
        }

    def private_record(self) -> dict[str, Any]:
        """Return what a receipt keeps and nobody publishes: names of columns and classes."""
        return json.loads(self._schema_text())

    def _schema_text(self) -> bytes:
        named = {"columns": list(self.columns), "target": self.target, "class_names": list(self.class_names)}
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
        """Read the files again.

        Raises
        ------
        CaseError
            If they changed since they were described.
        """
        found = _scan(self.path, self.columns, self.target, self.task)
        if found.sha256 != self.sha256 or found.class_names != self.class_names:
            raise CaseError(
                "the files changed after they were described.",
                where=f"data {self.name!r}",
                remedy="Describe them again with stored(…).",
            )
        return found

    def matrix(self, data: object) -> NDArray[np.float64]:
        """Return rows of the same columns as numbers, shape (rows, features): a table, or plain rows.

        Raises
        ------
        CaseError
            If a column is missing or does not hold numbers.
        """
        if isinstance(data, list | tuple | np.ndarray):
            return np.asarray(data, np.float64)
        frame = read_frame(data)
        absent = [name for name in self.columns if name not in frame.columns]
        if absent:
            raise CaseError(
                f"the column {absent[0]!r} is missing.",
                where="predict",
                remedy="Give the columns that the model was trained on.",
            )
        return _features(frame, self.columns, 0)

    def batches(self) -> Iterator[NDArray[np.float64]]:
        """Yield the features in the order of the rows, as float64, some rows at a time."""
        for frame in _frames(self.path, self.columns):
            yield _features(frame, self.columns, 0)


def describe_stored(
    origin: object, *, target: str, task: Task, name: str, cache: Path | None, budget_bytes: int
) -> Stored:
    """Return the description of Parquet files; see `aner_nb.data.stored`."""
    path = origin.resolve() if isinstance(origin, Path) else _written(origin, cache)
    if budget_bytes < LEAST_BUDGET:
        raise CaseError(
            f"a budget of {budget_bytes:,} bytes is too small.",
            where="data.budget_bytes",
            remedy=f"Give {LEAST_BUDGET:,} bytes or more.",
        )
    names = list(_dataset(path).schema.names)
    check_names(names)
    if target not in names or len(names) < 2:
        raise CaseError(
            f"there is no column {target!r} beside others.",
            where="data.target",
            remedy=f"There are {', '.join(names[:12])}{', …' if len(names) > 12 else ''}.",
        )
    columns = tuple(column for column in names if column != target)
    found = _scan(path, columns, target, task)
    return Stored(
        path=path,
        cache=cache or (path.parent / f"{path.stem}.aner-cache"),
        columns=columns,
        target=target,
        task=task,
        name=name,
        budget_bytes=budget_bytes,
        rows=len(found.targets),
        class_names=found.class_names,
        sha256=found.sha256,
    )


def _written(frame: Any, cache: Path | None) -> Path:
    """Let a Dask frame's workers write its partitions, each where it lies; return the folder."""
    if type(frame).__module__.partition(".")[0] != "dask" or not hasattr(frame, "to_parquet"):
        raise CaseError(
            f"{type(frame).__name__} is neither a path nor a Dask DataFrame.",
            where="data",
            remedy="Give a path; or of a Dask array dask.dataframe.from_dask_array(array, columns=[…]), with the "
            "target as a column; of rows in memory table(…) or arrays(…).",
        )
    folder = cache / "written.parquet" if cache is not None else None
    if folder is None or folder.exists():
        raise CaseError(
            "a Dask DataFrame needs a folder to be written to, which does not hold one yet.",
            where="data.cache",
            remedy="Name a new folder that the workers and this process see, with cache=.",
        )
    check_names(frame.columns)
    frame.to_parquet(str(folder), write_index=False)
    return folder


def _dataset(path: Path) -> Any:
    try:
        from pyarrow import parquet  # pyright: ignore[reportMissingImports] -- an extra
    except ImportError as error:
        raise missing_package("pyarrow", "reading Parquet") from error
    try:
        return parquet.ParquetDataset(path)
    except Exception as error:  # the reader's errors have no common base
        raise CaseError(
            f"{path.name} cannot be read ({type(error).__name__}: {str(error)[:200]}).",
            where="data",
            remedy="Give a Parquet file, or a folder of them.",
        ) from error


def _frames(path: Path, columns: tuple[str, ...]) -> Iterator[Any]:
    from pyarrow import parquet  # pyright: ignore[reportMissingImports] -- an extra

    files: Any = _dataset(path).files
    for name in sorted(files, key=_by_numbers):
        # Neither mapped nor read ahead: what the reader holds is a batch, and not the file.
        with parquet.ParquetFile(name, memory_map=False, pre_buffer=False, buffer_size=2**20) as file:
            rows = max(256, min(_BATCH_ROWS, _BATCH_VALUES // len(columns)))
            for batch in file.iter_batches(rows, columns=list(columns), use_threads=False):
                yield batch.to_pandas()


def _by_numbers(name: str) -> list[tuple[int, str]]:
    """Return what sorts part.2 before part.10: the order of rows must not depend on how many parts there are."""
    return [(int(piece), "") if piece.isdigit() else (0, piece) for piece in re.split(r"(\d+)", name)]


def _scan(path: Path, columns: tuple[str, ...], target: str, task: Task) -> Scan:
    rows = sum(_row_count(name) for name in _dataset(path).files)
    if not rows:
        raise CaseError("the files have no rows.", where="data", remedy="Give some rows.")
    digest = part_fingerprint_start(rows, len(columns))
    codes: dict[Any, int] = {}
    pieces: list[NDArray[Any]] = []
    start = 0
    for frame in _frames(path, (*columns, target)):
        features = _features(frame, columns, start)
        digest.update(np.ascontiguousarray(features, "<f8").data)
        pieces.append(_target(frame[target], target, task, codes, start))
        start += len(features)
    targets = np.concatenate(pieces)
    if task == "regression":
        targets, names = targets[:, None], ()
    else:
        targets, names = _sorted_classes(targets, codes, target)
    return Scan(part_fingerprint_end(digest, targets), targets, names)


def _row_count(name: str) -> int:
    from pyarrow import parquet  # pyright: ignore[reportMissingImports] -- an extra

    return int(parquet.read_metadata(name).num_rows)


def _features(frame: Any, columns: tuple[str, ...], start: int) -> NDArray[np.float64]:
    features = np.empty((len(frame), len(columns)))
    for index, name in enumerate(columns):
        raw = kind_of(frame[name], name)
        if raw not in ("number", "boolean"):
            raise CaseError(
                f"the column {name!r} holds {raw} values, and stored rows are numbers alone.",
                where="data",
                remedy="Encode or drop it when the files are written, or use table(…), which reads all into memory.",
            )
        features[:, index] = numbers_of(frame[name], name)
        missing = np.isnan(features[:, index])
        if missing.any():
            raise CaseError(
                f"the column {name!r} has no value in row {start + int(missing.argmax())}.",
                where="data",
                remedy="Fill it in when the files are written; rows count from 0.",
            )
    return features


def _target(series: Any, name: str, task: Task, codes: dict[Any, int], start: int) -> NDArray[Any]:
    missing = series.isna().to_numpy()
    if missing.any():
        raise CaseError(
            f"the target {name!r} has no value in row {start + int(missing.argmax())}.",
            where="data.target",
            remedy="Leave such rows out when the files are written; rows count from 0.",
        )
    raw = kind_of(series, name)
    if task == "regression" or raw == "date":
        if raw not in ("number", "boolean"):
            raise CaseError(
                f"the target {name!r} holds {raw} values.", where="data.target", remedy="Give numbers."
            )
        return numbers_of(series, name)
    values: Any = numbers_of(series, name) if raw == "number" else texts_of(series).astype(str)
    distinct, inverse = np.unique(values, return_inverse=True)
    numbers = np.array([codes.setdefault(value, len(codes)) for value in distinct.tolist()], np.int32)
    if len(codes) > 2**16:
        raise CaseError(
            f"the target {name!r} has over 65,536 classes.", where="data.target", remedy="Regress."
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
