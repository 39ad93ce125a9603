"""The published JSON Schema of a receipt is the one that the declarations give."""

from __future__ import annotations

import json
from pathlib import Path

from aner_nb.receipts import json_schema

PUBLISHED = Path(__file__).parent.parent / "docs" / "receipt.schema.json"


def test_the_published_schema_is_current() -> None:
    assert json.loads(PUBLISHED.read_text()) == json.loads(json.dumps(json_schema()))


def test_every_field_has_meaning_unit_and_privacy() -> None:
    fields = [
        (name, field, value)
        for name, record in json_schema()["$defs"].items()
        for field, value in record["properties"].items()
    ]
    assert len(fields) > 100
    for name, field, value in fields:
        assert value["description"].endswith("."), (name, field)
        assert {"unit", "public"} <= set(value), (name, field)
