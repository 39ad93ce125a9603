"""Facts: every published or kept figure is declared once, with its meaning, unit and privacy."""

from __future__ import annotations

import functools
import typing
from collections.abc import Mapping
from typing import Any, cast

import msgspec
from msgspec import Meta


def fact(meaning: str, unit: str = "", *, public: bool = True) -> Meta:
    """Declare a field of a record; ``unit`` is empty for plain counts and texts."""
    declared = {"unit": unit, "public": public}
    return Meta(description=meaning, extra=declared, extra_json_schema=declared)


def private(meaning: str, unit: str = "") -> Meta:
    """Declare a field that is never published."""
    return fact(meaning, unit, public=False)


class Record(msgspec.Struct, frozen=True):
    """Base of the records."""


def public_view(record: msgspec.Struct) -> dict[str, Any]:
    """Return the record with only the fields that are declared public, as plain values."""
    return {name: _public_value(getattr(record, name)) for name in _public_fields(type(record))}


@functools.cache
def _public_fields(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the public fields of a kind of record; reading its declarations takes longer than a whole view."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return tuple(name for name in kind.__struct_fields__ if _meta(hints[name])["public"])


def _public_value(value: object) -> Any:
    if isinstance(value, msgspec.Struct):
        return public_view(value)
    if isinstance(value, tuple | list):
        return [_public_value(item) for item in cast("tuple[object, ...]", value)]
    if isinstance(value, Mapping):
        return {key: _public_value(item) for key, item in cast("Mapping[str, object]", value).items()}
    return value


def _meta(hint: Any) -> Mapping[str, Any]:
    for item in hint.__metadata__:
        if isinstance(item, Meta) and item.extra is not None:
            return item.extra
    raise TypeError(f"{hint} declares no unit and privacy")
