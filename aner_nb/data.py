"""Where rows come from and how they are prepared: `load`, `prepare`; between the two stands `splits.split`.

The three steps are separate because each is a phase of its own in a receipt. Splits come first; the
normalization is fitted on training rows only; validation and test rows are only ever transformed by it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aner_nb.dask_frames import DaskFrames, frames_of
from aner_nb.encoding import Categorical, Missing, Options, ordered
from aner_nb.errors import CaseError
from aner_nb.filling import fit_filling
from aner_nb.normalization import Normalization, blocks_of, fit_normalization
from aner_nb.parquet_frames import ParquetFrames
from aner_nb.sources import (
    Digits,
    Iris,
    Source,
    Task,
    Teacher,
    fingerprint,
    first_not_finite,
)
from aner_nb.splits import Split
from aner_nb.user_arrays import OWN_SOURCES, Arrays, KeptArrays
from aner_nb.user_files import Stored, describe_stored
from aner_nb.user_table import Table, describe_table

DataSpec = Iris | Digits | Teacher | Arrays | Table | Stored | KeptArrays


def iris() -> Iris:
    """Describe Fisher's iris flowers: 150 rows, 4 features, 3 classes."""
    return Iris()


def digits() -> Digits:
    """Describe the handwritten digits: 1,797 rows, 64 features, 10 classes."""
    return Digits()


def teacher(
    rows: int, features: int, classes: int, *, seed: int = 0, hidden: int = 32, label_noise: float = 0.0
) -> Teacher:
    """Describe a made-up classification of any size; see `Teacher`."""
    return Teacher(
        rows=rows, features=features, classes=classes, seed=seed, hidden=hidden, label_noise=label_noise
    )


def arrays(
    features: ArrayLike, targets: ArrayLike, *, name: str = "arrays", class_names: Sequence[str] = ()
) -> Arrays:
    """Describe your own rows; see `Arrays`."""
    return Arrays(
        features=np.asarray(features), targets=np.asarray(targets), name=name, class_names=class_names
    )


def table(
    data: object,
    *,
    target: str | Sequence[str],
    task: Task | None = None,
    categorical: Categorical = "refuse",
    ordinal: Mapping[str, Sequence[str]] | None = None,
    missing: Missing = "refuse",
    groups: str | None = None,
    order: str | None = None,
    leave_out: Sequence[str] = (),
    name: str = "table",
) -> Table:
    """Describe your own table: all its columns are features, but the target and those that you name.

    Parameters
    ----------
    data
        The path of a ``.csv``, ``.parquet`` or ``.npz`` file, a pandas or Polars DataFrame, or a mapping of names to
        columns.
    target
        The column to predict; several for a regression of several numbers.
    task
        None: texts, booleans and whole numbers of at most 20 values are classes, other numbers a regression; where
        that is in doubt it is asked for. Classes are in the sorted order of their names.
    categorical
        ``one_hot``: a text column becomes one indicator a category; ``refuse``: it is refused.
    ordinal
        For columns whose categories have an order: the categories from the least to the greatest. They become
        0, 1, 2, …
    missing
        ``drop``: rows where something is missing are left out. ``mean``: the mean of the training rows takes its
        place, in other columns than numbers the most frequent value. ``most_frequent``: that value everywhere.
        ``refuse``: nothing may be missing. A missing target is never filled in.
    groups
        A column whose rows of one value, such as a patient's, all go to the same part of the split.
    order
        A column of dates or numbers, by which training comes before validation and validation before test.
    leave_out
        Columns that are neither features nor anything else.
    name
        Of the data, in receipts and reports: it is published. Names of columns and files are not.

    Raises
    ------
    CaseError
        If the table cannot be used as it is; the sentence tells what to change.

    Examples
    --------
    >>> flowers = table({"length": [1.0, 2.0, 3.0], "kind": ["a", "b", "a"]}, target="kind")
    >>> flowers.class_names
    ('a', 'b')
    """
    origin = (
        data.resolve() if isinstance(data, Path) else Path(data).resolve() if isinstance(data, str) else data
    )
    options = Options(
        targets=(target,) if isinstance(target, str) else tuple(target),
        task=task,
        categorical=categorical,
        ordinal=ordered(ordinal),
        missing=missing,
        groups=groups,
        order=order,
        leave_out=tuple(leave_out),
    )
    return describe_table(origin, options, name)


def stored(
    data: Any,
    *,
    target: Any,
    task: Task = "classification",
    categorical: Categorical = "refuse",
    ordinal: Mapping[str, Sequence[str]] | None = None,
    missing: Missing = "refuse",
    leave_out: Sequence[str] = (),
    budget_bytes: int = 256 * 2**20,
    cache: str | Path | None = None,
    cluster: object = None,
    name: str = "stored",
) -> Stored:
    """Describe your own rows that are larger than memory: Parquet files, or Dask DataFrames and arrays.

    All columns but the target are features. The rows are read twice now, for their columns and their fingerprint, and
    by each trial; what a trial prepares of them stays in the cache folder. Dask rows are read by a task on a worker,
    to which the others send their partitions: this process gets digests, names and one target a row, and of the
    prepared rows only those that it validates and tests on.

    Parameters
    ----------
    data
        The path of a Parquet file, or of a folder of them in the order of their names and numbers; a Dask DataFrame;
        or a Dask array of shape (rows, features).
    target
        The column to predict; of a Dask array, a Dask array of shape (rows,).
    categorical, ordinal, missing, leave_out
        As `table` has them. Categories are those of all rows; what fills a gap is learned from the training rows.
    budget_bytes
        Most that rows take at a time: a rank whose rows are more streams them from the files, shard by shard.
    cache
        Folder for prepared rows, about as large as the data; None: beside the path. Dask's workers write it on their
        hosts; where they do not see the same disk, each rank's worker keeps the rows of its rank there.
    cluster
        For Dask rows: what `local_cluster` or `connect` gave, or a `distributed.Client`; None: the current client.
    name
        Of the data, in receipts and reports: it is published. Names of columns and files are not.

    Raises
    ------
    CaseError
        If the rows cannot be used as they are; the sentence tells what to change.
    """
    folder = Path(cache).absolute() if cache is not None else None
    if isinstance(data, str | Path):
        path = Path(data).resolve()
        origin: ParquetFrames | DaskFrames = ParquetFrames(path)
        folder = folder or path.parent / f"{path.stem}.aner-cache"
    else:
        origin, target = frames_of(data, target, cluster)
    if folder is None:
        raise CaseError(
            "Dask rows need a folder where their workers keep what they prepare.",
            where="data.cache",
            remedy="Name a folder on the workers' disks, or on a disk that they share, with cache=.",
        )
    options = Options(
        targets=(target,),
        task=task,
        categorical=categorical,
        ordinal=ordered(ordinal),
        missing=missing,
        leave_out=tuple(leave_out),
    )
    return describe_stored(origin, options, name=name, cache=folder, budget_bytes=budget_bytes)


def data_from_record(record: object, where: str = "data") -> Iris | Digits | Teacher:
    """Build a description from plain values, such as YAML or JSON gives: a mapping, or ``"iris"``.

    Raises
    ------
    CaseError
        If the source is unknown, or a field is unknown, missing or wrong; the sentence names it.
    """
    kinds: dict[object, Any] = {"iris": Iris, "digits": Digits, "teacher": Teacher}
    options = dict(cast("Mapping[str, Any]", record)) if isinstance(record, Mapping) else {"source": record}
    source = options.pop("source", None)
    if source in OWN_SOURCES:
        raise CaseError(
            f"{source if source == 'arrays' else 'rows of a table'} live in the program that gave them; "
            "a file cannot bring them back.",
            where=where,
            remedy="Describe them again in Python with arrays(features, targets) or table(path, target=…).",
        )
    if not isinstance(source, str) or source not in kinds:
        raise CaseError(
            f"{source!r} is not a source of data.",
            where=f"{where}.source",
            remedy=f"Write source: {' or '.join(map(str, kinds))}.",
        )
    kind = kinds[source]
    fields = {item.name: item.default is dataclasses.MISSING for item in dataclasses.fields(kind)}
    known = f"{source} knows {', '.join(fields) or 'no other field'}."
    for name in map(str, options):
        if name not in fields:
            raise CaseError(f"unknown field {name!r}.", where=where, remedy=known)
    for name, required in fields.items():
        if required and name not in options:
            raise CaseError(f"the field {name!r} is missing.", where=where, remedy=known)
    try:
        return cast("Iris | Digits | Teacher", kind(**options))
    except CaseError as error:
        place = error.where.replace("data", where, 1)
        raise CaseError(error.what, where=place, remedy=error.remedy) from None


def load(spec: DataSpec) -> Source:
    """Return all rows that a description names; see `Iris`, `Digits`, `Teacher` and `Arrays` for errors."""
    return spec.load()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Rows:
    """Rows ready for use, C-contiguous; row *i* of the features has row *i* of the targets."""

    features: NDArray[np.float32] | NDArray[np.float64]
    """Shape (rows, features)."""
    targets: NDArray[np.int32] | NDArray[np.float32] | NDArray[np.float64]
    """Labels, shape (rows,), int32; for a regression shape (rows, outputs), in the type of the features."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PreparedData:
    """What a trial trains and is judged on. Training rows are in the case's type; the rest is float64."""

    train: Rows
    validation: Rows
    test: Rows
    task: Task
    outputs: int
    """Units of the model's last layer: the classes, or the columns of the targets."""
    class_count: int
    class_names: tuple[str, ...]
    normalization: Normalization
    """Fitted on the training rows; mean 0 and scale 1 where none was asked for."""
    fingerprints: Mapping[str, str]
    """Of ``source``, ``train``, ``validation``, ``test``: raw rows and targets, before normalization."""


def prepare(
    source: Source, split: Split, *, dtype: Literal["float32", "float64"], normalize: bool = True
) -> PreparedData:
    """Return the rows of each part, normalized by the training rows and in the types of `PreparedData`.

    Raises
    ------
    CaseError
        If a value is beyond the type, or a column cannot be normalized.
    """
    width: int = source.features.shape[1]

    def training() -> Iterator[NDArray[np.float64]]:
        return (block for _, block in blocks_of(source.features, split.train))

    filling = fit_filling(source.spans, training, width)
    none = Normalization(mean=np.zeros(width), scale=np.ones(width), filling=filling)
    normalization = fit_normalization(source.features, split.train, filling) if normalize else none
    parts = {"train": split.train, "validation": split.validation, "test": split.test}
    prints = {name: fingerprint(source.features, source.targets, rows=rows) for name, rows in parts.items()}
    return PreparedData(
        train=_rows(source, split.train, normalization, np.dtype(dtype)),
        validation=_rows(source, split.validation, normalization, np.dtype(np.float64)),
        test=_rows(source, split.test, normalization, np.dtype(np.float64)),
        task=source.task,
        outputs=source.class_count or source.targets.shape[1],
        class_count=source.class_count,
        class_names=source.class_names,
        normalization=normalization,
        fingerprints={"source": source.fingerprint, **prints},
    )


def _rows(
    source: Source, rows: NDArray[np.int64], normalization: Normalization, dtype: np.dtype[Any]
) -> Rows:
    features = np.empty((len(rows), source.features.shape[1]), dtype)
    labels = source.task == "classification"
    # What is beyond float32 becomes infinite here and is refused below, with its place.
    with np.errstate(over="ignore"):
        for part, block in blocks_of(source.features, rows):
            features[part] = normalization.apply(block)
        targets = source.targets[rows].astype(np.int32 if labels else dtype)
    for name, values in (("features", features), ("targets", targets)):
        bad = first_not_finite(values)
        if bad is not None:
            raise CaseError(
                f"the value in row {rows[bad[0]]}, column {bad[1]} is beyond {dtype}.",
                where=f"data.{name}",
                remedy="Rescale the column or use float64; rows and columns count from 0.",
            )
    return Rows(features=features, targets=targets)
