"""JSON and YAML of strangers: read exactly or refused, and never at a price that a few bytes can set."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aner_nb.errors import CaseError
from aner_nb.plain import read_json, read_yaml

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(plain)
def test_what_json_can_tell_is_read_back(value: Any) -> None:
    assert read_json(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"NaN", "NaN is not a number"),
        (b"[-Infinity]", "-Infinity is not a number"),
        (b"1e999", "1e999 is beyond the largest number"),
        (b"18446744073709551616", "a whole number has over 64 bits"),
        (b"1" * 5000, "integer string conversion|over 64 bits"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "the key 'c' is repeated"),
        (rb'"\ud800"', "surrogates not allowed"),
        (rb'{"\udc00": 1}', "surrogates not allowed"),
        (b"[" * 70 + b"]" * 70, "values nest deeper than 64"),
        (b"[" * 200_000, "values nest deeper than 64"),
        (b'{"a":' * 200_000, "values nest deeper than 64"),
        (b"\xff", "can't decode byte"),
        (b"", "Expecting value"),
        ("{}".encode("utf-16"), "can't decode byte"),
    ],
)
def test_json_with_a_surprise_is_refused(text: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_json(text)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "name: a\nbatch: 3\nname: b\n",
            r"my\.yaml, line 3, column 1: the key 'name' is repeated; it stands in line 1",
        ),
        ("cases:\n- {name: a, 'name': b}\n", r"my\.yaml, line 2, column 13: the key 'name' is repeated"),
        ("a: {b: {c: 1, c: 1}}", r"line 1, column 15: the key 'c' is repeated.* Keep one of the two"),
        ("a: &a [*a]", r"line 1, column 4: not YAML: an alias stands inside of what it stands for"),
        ("&a {<<: *a}", "an alias stands inside"),
        ("a: 0x" + "f" * 5000, "a whole number has over 64 bits"),
        ("a: " + "9" * 5000, "integer string conversion|over 64 bits"),
        ('a: "\\ud800"', "surrogates not allowed"),
        ("a: !!binary aGk=", "a value of type bytes is neither text"),
        ("a: !!set {b}", "a value of type set is neither text"),
        ("? [a]\n: b", "line 1, column 3: not YAML: found unhashable key"),
        ("a: " + "[" * 70 + "]" * 70, "values nest deeper than 64"),
        ("a: " + "[" * 5000, "recursion depth exceeded"),
        ("a: 2020-99-99", "month must be in 1..12"),
        ("a: !!int x", "not YAML: invalid literal"),
        ("a: !!timestamp x", "not YAML"),
    ],
)
def test_yaml_with_a_surprise_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(CaseError, match=sentence):
        read_yaml(text, "my.yaml")


def test_aliases_and_merges_are_read_and_what_stands_beside_a_merge_wins() -> None:
    text = "base: &base {a: 1, b: 2}\nother: {<<: *base, b: 3}\nagain: *base\n"
    assert read_yaml(text, "x") == {
        "base": {"a": 1, "b": 2},
        "other": {"a": 1, "b": 3},
        "again": {"a": 1, "b": 2},
    }


@pytest.mark.parametrize("form", ["- &{name} [{items}]", "- &{name} {{<<: [{items}]}}"])
def test_aliases_that_multiply_are_refused_at_once(form: str) -> None:
    lines = ["- &a0 {x: 1}"]
    lines += [
        form.format(name=f"a{level}", items=", ".join([f"*a{level - 1}"] * 9)) for level in range(1, 30)
    ]
    began = time.perf_counter()
    with pytest.raises(CaseError, match="with its aliases written out it has over 200,000 values"):
        read_yaml("\n".join(lines), "x")
    assert time.perf_counter() - began < 2
