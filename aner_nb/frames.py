"""A person's table as a pandas frame, wherever it comes from: CSV, Parquet, ``.npz``, pandas, Polars, a mapping."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from aner_nb.errors import CaseError

if TYPE_CHECKING:
    import pandas

SUFFIXES: Final = (".csv", ".parquet", ".npz")
_MOST_BYTES_OF_A_LINE: Final = 2**24


def read_frame(data: object) -> pandas.DataFrame:
    """Return a table as a pandas frame with distinct column names.

    Parameters
    ----------
    data
        A path that ends in ``.csv`` (UTF-8, commas, names in the first line), ``.parquet`` (a file, or a folder of
        them) or ``.npz`` (one array a column; a two-dimensional one gives the columns ``name[0]``, ``name[1]``, …);
        a pandas or Polars frame; or a mapping of names to columns.

    Raises
    ------
    CaseError
        If it is none of these, cannot be read, has no rows, or a column's name twice.
    """
    if isinstance(data, str | Path):
        frame = _read_file(Path(data))
    elif isinstance(data, Mapping):
        frame = _from_mapping(cast("Mapping[Any, Any]", data))
    else:
        frame = _from_frame(data)
    check_names(frame.columns)
    if not len(frame):
        raise CaseError("the table has no rows.", where="data", remedy="Give some rows.")
    return frame


def check_names(names: Iterable[object]) -> None:
    """Refuse a column's name that is used twice, or is not a text."""
    seen = list(names)
    for name in seen:
        if not isinstance(name, str) or not name:
            raise CaseError(
                f"the column name {name!r} is not a text.",
                where="data",
                remedy="Rename it: frame.columns = [str(name) for name in frame.columns] does it for numbers.",
            )
    twice = [name for name, count in Counter(seen).items() if count > 1]
    if twice:
        raise CaseError(
            f"the column name {twice[0]!r} is used {seen.count(twice[0])} times.",
            where="data",
            remedy="Give each column a name of its own, or remove all but one.",
        )


def missing_package(package: str, what: str) -> CaseError:
    """Return the error that tells how to install what reads the data."""
    return CaseError(
        f"{what} needs {package}, which is not installed.",
        where="data",
        remedy="Install it with: pip install 'aner-nb[data]'",
    )


def _read_file(path: Path) -> pandas.DataFrame:
    readers = {".csv": _read_csv, ".parquet": _read_parquet, ".npz": _read_npz}
    if path.suffix.lower() not in readers:
        raise CaseError(
            f"{path.name!r} does not end in {', '.join(SUFFIXES)}.",
            where="data",
            remedy="Read the file with pandas or Polars, and give the frame.",
        )
    if not path.exists():
        raise CaseError(f"there is no {path}.", where="data", remedy="Correct the path.")
    try:
        return readers[path.suffix.lower()](path)
    except CaseError:
        raise
    except UnicodeDecodeError as error:
        raise CaseError(
            f"{path.name} is not UTF-8 (byte {error.start}).",
            where="data",
            remedy="Read it with pandas.read_csv(path, encoding='latin-1'), or what it has, and give the frame.",
        ) from error
    except Exception as error:  # what the readers raise for damaged files has no common base
        raise CaseError(
            f"{path.name} cannot be read ({type(error).__name__}: {str(error)[:200]}).",
            where="data",
            remedy="Mend the file, or read it with pandas and give the frame.",
        ) from error


def _read_csv(path: Path) -> pandas.DataFrame:
    import pandas

    with path.open(encoding="utf-8-sig", newline="") as file:
        head = next(csv.reader([file.readline(_MOST_BYTES_OF_A_LINE)]), [])
    check_names(head)
    other = next((mark for mark in (";", "\t") if len(head) == 1 and mark in head[0]), None)
    if other is not None:
        raise CaseError(
            f"{path.name} is separated by {other!r} and not by commas.",
            where="data",
            remedy=f"Read it with pandas.read_csv(path, sep={other!r}), and give the frame.",
        )
    return pandas.read_csv(path, encoding="utf-8-sig", low_memory=False, index_col=False)


def _read_parquet(path: Path) -> pandas.DataFrame:
    try:
        from pyarrow import parquet  # pyright: ignore[reportMissingImports] -- an extra
    except ImportError as error:
        raise missing_package("pyarrow", "reading Parquet") from error
    stored: Any = parquet.ParquetDataset(path)
    check_names(stored.schema.names)
    return stored.read().to_pandas(ignore_metadata=True)


def _read_npz(path: Path) -> pandas.DataFrame:
    with np.load(path, allow_pickle=False) as stored:
        return _from_mapping({name: stored[name] for name in stored.files})


def _from_mapping(columns: Mapping[Any, Any]) -> pandas.DataFrame:
    import pandas

    flat: dict[Any, Any] = {}
    for name, values in columns.items():
        array: Any = values if hasattr(values, "dtype") else pandas.Series(list(values))
        if getattr(array, "ndim", 1) == 2:
            flat |= {f"{name}[{index}]": array[:, index] for index in range(array.shape[1])}
        else:
            flat[name] = array
    lengths = {name: len(values) if getattr(values, "ndim", 1) else -1 for name, values in flat.items()}
    odd = [name for name, length in lengths.items() if length != next(iter(lengths.values())) or length < 0]
    if odd or not flat:
        what = f"the column {odd[0]!r} has another length than the first." if odd else "there are no columns."
        raise CaseError(what, where="data", remedy="Give columns of one length each.")
    return pandas.DataFrame(flat)


def _from_frame(data: object) -> pandas.DataFrame:
    import pandas

    if isinstance(data, pandas.DataFrame):
        return data
    if type(data).__module__.partition(".")[0] == "polars":
        return _from_polars(cast("Any", data))
    raise CaseError(
        f"{type(data).__name__} is not a table.",
        where="data",
        remedy="Give a path, a pandas or Polars DataFrame, or a mapping of names to columns; arrays go to arrays(…).",
    )


def _from_polars(data: Any) -> pandas.DataFrame:
    """Copy column by column: the library's own way needs a third package."""
    import pandas

    if not hasattr(data, "get_columns"):
        raise CaseError(
            f"a Polars {type(data).__name__} is not a table.", where="data", remedy="Call .collect() first."
        )
    columns: dict[str, Any] = {}
    for series in data.get_columns():
        if series.dtype.is_numeric() or series.dtype.is_temporal():
            columns[series.name] = series.to_numpy()
        else:
            columns[series.name] = pandas.Series(series.to_list(), dtype=object)
    return pandas.DataFrame(columns)
