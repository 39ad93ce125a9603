"""Frozen records from what people write: kinds, choices and bounds, refused in one sentence."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from aner_nb.errors import CaseError

TINY: Final = 5e-324
"""The least number above 0."""


def hold_numbers(record: object, prefix: str, **bounds: tuple[float, float]) -> None:
    """Hold fields of a record to ``low <= value < high``.

    Whole numbers become floats: equal values have one record.

    Parameters
    ----------
    prefix
        What stands before a field's name in an error, such as ``optimizer.``.

    Raises
    ------
    CaseError
        If a value is no finite number or out of its bounds.
    """
    for name, (low, high) in bounds.items():
        value: object = getattr(record, name)
        number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
        if not low <= number < min(high, sys.float_info.max):
            raise CaseError(
                f"{value!r} is out of range.",
                where=f"{prefix}{name}",
                remedy=("Give a finite number above 0" if low else "Give a finite number of at least 0")
                + (f" and below {high:g}." if math.isfinite(high) else "."),
            )
        object.__setattr__(record, name, float(number) + 0.0)  # of -0.0 it makes 0.0


def hold_truth(record: object, prefix: str, *names: str) -> None:
    """Hold fields of a record to true or false.

    Raises
    ------
    CaseError
        If a value is anything else.
    """
    for name in names:
        value: object = getattr(record, name)
        if not isinstance(value, bool):
            raise CaseError(
                f"{value!r} is neither true nor false.",
                where=f"{prefix}{name}",
                remedy="Write true or false, without quotation marks.",
            )


def check_choice(where: str, field: str, value: object, choices: Sequence[str]) -> None:
    """Hold a value to some words.

    Raises
    ------
    CaseError
        If it is none of them.
    """
    if value not in choices:
        raise CaseError(
            f"{value!r} is not known.", where=f"{where}: {field}", remedy=f"Choose {' or '.join(choices)}."
        )


def check_count(where: str, field: str, value: object, least: int) -> None:
    """Hold a value to a whole number of at least `least`.

    Raises
    ------
    CaseError
        If it is anything else.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least or value >= 2**53:
        raise CaseError(
            f"{value!r} is not a whole number of at least {least}.",
            where=f"{where}: {field}",
            remedy="Correct the value.",
        )


def of_kind(record: object, kinds: Mapping[str, type[Any]], *, where: str, what: str, example: str) -> Any:
    """Build a record from ``{"kind": name, …}``.

    Parameters
    ----------
    kinds
        The class of each kind.
    what
        In a sentence, what the record should have been; with its article.

    Raises
    ------
    CaseError
        If the kind, or one of the fields, is not known.
    """
    values = dict(cast("Mapping[str, Any]", record)) if isinstance(record, Mapping) else {}
    kind = values.pop("kind", None)
    if not isinstance(kind, str) or kind not in kinds:
        raise CaseError(
            f"{record!r} names no {what}.",
            where=where,
            remedy=f"Give 'kind' as one of {', '.join(kinds)}, for example {example}.",
        )
    return from_fields(values, kinds[kind], name=kind, where=where)


def from_fields(values: Mapping[str, Any], chosen: type[Any], *, name: str, where: str) -> Any:
    """Build a record from its fields.

    Raises
    ------
    CaseError
        If a field is not known or missing.
    """
    fields = dataclasses.fields(chosen)
    known = [field.name for field in fields]
    unknown = sorted(set(map(str, values)) - set(known))
    if unknown:
        raise CaseError(f"{name} has no {unknown[0]!r}.", where=where, remedy=f"It takes {', '.join(known)}.")
    missing = [field.name for field in fields if field.default is dataclasses.MISSING]
    missing = [field for field in missing if field not in values]
    if missing:
        raise CaseError(f"{name} needs {missing[0]!r}.", where=where, remedy=f"It takes {', '.join(known)}.")
    return chosen(**values)


def in_words(record: Mapping[str, Any]) -> str:
    """Return a record of a kind as a reader sees it.

    Examples
    --------
    >>> in_words({"kind": "sgd", "learning_rate": 0.1, "nesterov": False})
    'sgd (learning_rate 0.1, nesterov False)'
    """
    values = [f"{name} {told(value)}" for name, value in record.items() if name != "kind"]
    kind = str(record.get("kind", ""))
    if not kind:
        return ", ".join(values)
    return f"{kind} ({', '.join(values)})" if values else kind


def told(value: object) -> str:
    """Return a setting as a reader sees it: a record in words, a list with commas, anything else as it is."""
    if isinstance(value, Mapping):
        return in_words(cast("Mapping[str, Any]", value))
    if isinstance(value, list | tuple):
        return ", ".join(map(str, cast("Sequence[object]", value)))
    return str(value)
