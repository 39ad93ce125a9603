"""Columns of a person's table: what each is, and how it becomes numbers, or the sentence why it cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from aner_nb.errors import CaseError

Kind = Literal["number", "boolean", "one_hot", "ordinal"]
Raw = Literal["number", "boolean", "text", "date"]

MOST_CATEGORIES: Final = 1000
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

    def encode(self, series: Any) -> NDArray[np.float64]:
        """Return values as numbers, shape (rows, width), missing ones as NaN.

        Raises
        ------
        CaseError
            If a value is not of the column's kind, or a category is unknown.
        """
        raw = kind_of(series, self.name)
        if self.kind in ("number", "boolean"):
            if raw not in ("number", "boolean"):
                raise _refused(self.name, f"holds {raw} values where numbers were", "Give numbers.")
            return numbers_of(series, self.name)[:, None]
        codes = self._codes(texts_of(series))
        if self.kind == "ordinal":
            return np.where(codes < 0, np.nan, codes)[:, None]
        encoded = np.zeros((len(codes), self.width))
        known = codes >= 0
        encoded[np.flatnonzero(known), codes[known]] = 1.0
        encoded[~known] = np.nan
        return encoded

    def _codes(self, texts: NDArray[np.object_]) -> NDArray[np.int64]:
        """Return the number of each category, -1 where it is missing."""
        places = {category: number for number, category in enumerate(self.categories)}
        codes = np.empty(len(texts), np.int64)
        for row, text in enumerate(texts):
            number = -1 if text is None else places.get(text, -2)
            if number == -2:
                raise _refused(
                    self.name,
                    f"has the category {text!r} in row {row}, which is none of its {len(places)}",
                    f"Known: {', '.join(self.categories[:10])}{', …' if len(places) > 10 else ''}. "
                    "Rows count from 0.",
                )
            codes[row] = number
        return codes


def describe_column(
    series: Any, name: str, *, categorical: str, ordinal: Mapping[str, Sequence[str]]
) -> Column:
    """Return what a feature is.

    Raises
    ------
    CaseError
        If it is a date, a text that nobody said how to encode, or a text that is no category.
    """
    if name in ordinal:
        return Column(name, "ordinal", tuple(ordinal[name]))
    raw = kind_of(series, name)
    if raw == "date":
        raise _refused(
            name,
            "holds dates",
            f"Make numbers of it, such as frame[{name!r}].dt.month or days since a day, name it as order=, or "
            f"leave it out with leave_out=[{name!r}].",
        )
    if raw in ("number", "boolean"):
        return Column(name, raw)
    texts = texts_of(series)
    _check_mixture(series, texts, name)
    if categorical == "refuse":
        example = next(text for text in texts if text is not None)
        raise _refused(
            name,
            f"holds texts such as {example[:40]!r}",
            f"Write categorical='one_hot', give their order with ordinal={{{name!r}: [...]}}, or leave it out "
            f"with leave_out=[{name!r}].",
        )
    categories = sorted({text for text in texts if text is not None})
    if len(categories) > MOST_CATEGORIES or (len(categories) > 20 and len(categories) > len(texts) / 2):
        raise _refused(
            name,
            f"holds {len(categories):,} different texts in {len(texts):,} rows, too many for categories",
            f"Leave it out with leave_out=[{name!r}], or put rare ones together first.",
        )
    return Column(name, "one_hot", tuple(categories))


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
        raise _refused(
            name, "holds no value at all", f"Leave it out with leave_out=[{name!r}], or fill it in."
        )
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


def numbers_of(series: Any, name: str) -> NDArray[np.float64]:
    """Return a column of numbers or booleans as float64, missing values as NaN."""
    values = series.to_numpy(dtype=np.float64, na_value=np.nan)
    with np.errstate(invalid="ignore"):
        bad = np.flatnonzero(np.isinf(values))
        if len(bad):
            raise _refused(
                name,
                f"is {values[bad[0]]} in row {bad[0]}",
                "Replace it by a number or leave it empty; rows count from 0.",
            )
        whole = not str(series.dtype).lower().startswith("float") and series.dtype != object
        if whole and (np.abs(values) > _EXACT).any():
            raise _refused(
                name,
                f"has whole numbers beyond 2**53, as identifiers are, in row {np.argmax(np.abs(values) > _EXACT)}",
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


def _check_mixture(series: Any, texts: NDArray[np.object_], name: str) -> None:
    """Refuse a few texts among numbers: one stray word makes a whole column of a CSV texts."""
    import pandas

    values: Any = pandas.Series(texts, dtype=object)
    numbers: Any = pandas.to_numeric(values, errors="coerce")
    parsed = np.asarray(numbers, np.float64)
    present = ~series.isna().to_numpy(dtype=bool)
    stray = present & np.isnan(parsed)
    if stray.any() and stray.sum() * 2 < present.sum():
        row = int(stray.argmax())
        raise _refused(
            name,
            f"has the text {str(texts[row])[:40]!r} in row {row} among numbers",
            "Correct it or leave it empty; rows count from 0.",
        )


def _refused(name: str, what: str, remedy: str) -> CaseError:
    return CaseError(f"the column {name!r} {what}.", where="data", remedy=remedy)
