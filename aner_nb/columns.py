"""Columns of a person's table: what each is, and how it becomes numbers, or the sentence why it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from aner_nb.errors import CaseError

Kind = Literal["number", "boolean", "one_hot", "ordinal"]
Raw = Literal["number", "boolean", "text", "date"]

MOST_CATEGORIES: Final = 1000
_MOST_TEXTS: Final = 100_000
"""No more are kept to count them: rows may be more than memory holds."""
_EXACT: Final = 2**53
"""Beyond it float64 does not tell neighbouring whole numbers apart."""
_DATE: Final = r"\d{4}-\d{2}-\d{2}(?:[T ].*)?"


@dataclass(frozen=True, slots=True)
class Column:
    """A feature of a table: its name, and how its values become numbers."""

    name: str
    kind: Kind
    categories: tuple[str, ...] = ()
    """Of a ``one_hot`` or ``ordinal`` column: sorted, or in the order that was given."""

    @property
    def width(self) -> int:
        """Columns of the encoded features that it fills."""
        return len(self.categories) if self.kind == "one_hot" else 1

    def encode(self, series: Any, start: int = 0) -> NDArray[np.float64]:
        """Return values as numbers, shape (rows, width), missing ones as NaN.

        Parameters
        ----------
        start
            Number of the first row, for what is told of a row that is wrong.

        Raises
        ------
        CaseError
            If a value is not of the column's kind, or a category is unknown.
        """
        if series.isna().all():
            return np.full((len(series), self.width), np.nan)
        raw = kind_of(series, self.name)
        if self.kind in ("number", "boolean"):
            if raw not in ("number", "boolean"):
                raise _refused(self.name, f"holds {raw} values where numbers were", "Give numbers.")
            return numbers_of(series, self.name, start)[:, None]
        codes = self._codes(texts_of(series), start)
        if self.kind == "ordinal":
            return np.where(codes < 0, np.nan, codes)[:, None]
        encoded = np.zeros((len(codes), self.width))
        known = codes >= 0
        encoded[np.flatnonzero(known), codes[known]] = 1.0
        encoded[~known] = np.nan
        return encoded

    def _codes(self, texts: NDArray[np.object_], start: int) -> NDArray[np.int64]:
        """Return the number of each category, -1 where it is missing."""
        import pandas

        places = {category: number for number, category in enumerate(self.categories)}
        numbers, distinct = pandas.factorize(texts)
        known = np.array([*(places.get(text, -2) for text in distinct), -1], np.int64)
        codes = known[numbers]  # the number of a missing text is -1, which takes the last
        if (codes == -2).any():
            row = int((codes == -2).argmax())
            raise _refused(
                self.name,
                f"has the category {texts[row]!r} in row {start + row}, which is none of its {len(places)}",
                f"Known: {', '.join(self.categories[:10])}{', …' if len(places) > 10 else ''}. "
                "Rows count from 0.",
            )
        return codes


class ColumnScan:
    """Finds out what a feature is from its values, which may come batch by batch: how they are cut has no say.

    Parameters
    ----------
    categorical : {"refuse", "one_hot"}
    order
        The categories from the least to the greatest, if somebody stated them.
    """

    def __init__(self, name: str, *, categorical: str, order: Sequence[str] | None) -> None:
        self._name = name
        self._categorical = categorical
        self._order = order
        self._kinds: set[Raw] = set()
        self._texts: set[str] = set()
        self._example = ""
        self._rows = self._present = self._strays = 0
        self._stray = (0, "")

    def add(self, series: Any, start: int = 0) -> None:
        """Take the next values; the first is that of row `start`.

        Raises
        ------
        CaseError
            If they are of no kind that is known.
        """
        present = ~series.isna().to_numpy(dtype=bool)
        self._rows += len(series)
        self._present += int(present.sum())
        if self._order is None and present.any():
            raw = kind_of(series, self._name)
            self._kinds.add(raw)
            if raw == "text":
                self._add_texts(texts_of(series), present, start)

    def _add_texts(self, texts: NDArray[np.object_], present: NDArray[np.bool_], start: int) -> None:
        import pandas

        values: Any = pandas.Series(texts, dtype=object)
        parsed: Any = pandas.to_numeric(values, errors="coerce")
        stray = present & np.isnan(np.asarray(parsed, np.float64))
        if stray.any():
            row = int(stray.argmax())
            self._stray = self._stray if self._strays else (start + row, str(texts[row]))
            self._strays += int(stray.sum())
        self._example = self._example or str(texts[int(present.argmax())])
        if len(self._texts) <= _MOST_TEXTS:
            self._texts.update(set(texts[present].tolist()))

    def column(self) -> Column:
        """Return what the feature is.

        Raises
        ------
        CaseError
            If it is a date, a text that nobody said how to encode, or a text that is no category.
        """
        name = self._name
        if not self._present:
            raise _no_value(name)
        if self._order is not None:
            return Column(name, "ordinal", tuple(self._order))
        if self._kinds == {"date"}:
            raise _refused(
                name,
                "holds dates",
                f"Make numbers of it, such as frame[{name!r}].dt.month or days since a day, name it as order=, or "
                f"leave it out with leave_out=[{name!r}].",
            )
        if self._kinds <= {"number", "boolean"}:
            return Column(name, "boolean" if self._kinds == {"boolean"} else "number")
        if self._kinds & {"number", "boolean"}:
            raise _refused(
                name,
                "holds numbers in some rows and texts in others",
                f"Make them all numbers or all texts, such as frame[{name!r}].astype(str), or leave the column out.",
            )
        return Column(name, "one_hot", self._categories())

    def _categories(self) -> tuple[str, ...]:
        name = self._name
        if (
            self._strays and self._strays * 2 < self._present
        ):  # one stray word makes a whole column of a CSV texts
            row, word = self._stray
            raise _refused(
                name,
                f"has the text {word[:40]!r} in row {row} among numbers",
                "Correct it or leave it empty; rows count from 0.",
            )
        if self._categorical == "refuse":
            raise _refused(
                name,
                f"holds texts such as {self._example[:40]!r}",
                f"Write categorical='one_hot', give their order with ordinal={{{name!r}: [...]}}, or leave it out "
                f"with leave_out=[{name!r}].",
            )
        count = len(self._texts)
        if count > MOST_CATEGORIES or (count > 20 and count > self._rows / 2):
            over = "over " if count > _MOST_TEXTS else ""
            raise _refused(
                name,
                f"holds {over}{count:,} different texts in {self._rows:,} rows, too many for categories",
                f"Leave it out with leave_out=[{name!r}], or put rare ones together first.",
            )
        return tuple(sorted(self._texts))


def kind_of(series: Any, name: str) -> Raw:
    """Return what values a column holds.

    Raises
    ------
    CaseError
        If they are of no kind that is known, or all are missing.
    """
    import pandas
    from pandas.api import types

    dtype = series.dtype
    if series.isna().all():
        raise _no_value(name)
    if types.is_bool_dtype(dtype):
        return "boolean"
    if types.is_datetime64_any_dtype(dtype) or isinstance(dtype, pandas.PeriodDtype):
        return "date"
    if types.is_numeric_dtype(dtype) and not types.is_complex_dtype(dtype):
        return "number"
    inferred = types.infer_dtype(series, skipna=True)
    known: dict[str, Raw] = {
        "string": "text",
        "categorical": "text",
        "boolean": "boolean",
        **dict.fromkeys(("integer", "floating", "mixed-integer-float", "decimal"), "number"),
        **dict.fromkeys(("date", "datetime", "datetime64"), "date"),
    }
    if inferred not in known:
        raise _refused(
            name,
            f"holds {inferred.replace('-', ' ')} values ({dtype})",
            f"Make them all numbers or all texts, such as frame[{name!r}].astype(str), or leave the column out.",
        )
    if inferred == "string" and series.dropna().astype(str).str.fullmatch(_DATE).all():
        return "date"
    return known[inferred]


def numbers_of(series: Any, name: str, start: int = 0) -> NDArray[np.float64]:
    """Return numbers or booleans as float64, missing values as NaN; the first is that of row `start`."""
    values = series.to_numpy(dtype=np.float64, na_value=np.nan)
    with np.errstate(invalid="ignore"):
        bad = np.flatnonzero(np.isinf(values))
        if len(bad):
            raise _refused(
                name,
                f"is {values[bad[0]]} in row {start + bad[0]}",
                "Replace it by a number or leave it empty; rows count from 0.",
            )
        whole = not str(series.dtype).lower().startswith("float") and series.dtype != object
        beyond = np.flatnonzero(np.abs(values) > _EXACT)
        if whole and len(beyond):
            raise _refused(
                name,
                f"has whole numbers beyond 2**53, as identifiers are, in row {start + beyond[0]}",
                f"Leave it out with leave_out=[{name!r}], or rescale it.",
            )
    # One not-a-number for all: its bits count in the fingerprint. And there is one zero.
    return np.where(np.isnan(values), np.nan, values + 0.0)


def texts_of(series: Any) -> NDArray[np.object_]:
    """Return a column as texts, None where a value is missing."""
    present = ~series.isna().to_numpy(dtype=bool)
    texts = np.full(len(series), None, dtype=object)
    texts[present] = [str(value) for value in series[present]]
    return texts


def codes_of(series: Any, name: str) -> NDArray[np.int64]:
    """Return the places of a column's values among its sorted distinct ones, -1 where missing."""
    raw = kind_of(series, name)
    present = ~series.isna().to_numpy(dtype=bool)
    there = series[present]
    if raw == "date":
        values = _instants(there, name)
    else:
        values = texts_of(there).astype(str) if raw == "text" else numbers_of(there, name)
    codes = np.full(len(series), -1, np.int64)
    codes[present] = np.unique(values, return_inverse=True)[1]
    return codes


def _instants(series: Any, name: str) -> NDArray[np.int64]:
    """Return dates as whole numbers in their order."""
    import pandas

    texts = series.astype(str)
    try:
        moments = pandas.to_datetime(texts, utc=True, format="ISO8601")
    except ValueError as error:
        raise _refused(
            name, f"holds a date that cannot be read ({error})", "Write dates as 2026-12-03."
        ) from error
    return moments.to_numpy(dtype="datetime64[ns]").astype(np.int64)


def _no_value(name: str) -> CaseError:
    return _refused(name, "holds no value at all", f"Leave it out with leave_out=[{name!r}], or fill it in.")


def _refused(name: str, what: str, remedy: str) -> CaseError:
    return CaseError(f"the column {name!r} {what}.", where="data", remedy=remedy)
