"""A few seconds of the fuzz run, every kept input as it is, and values of any shape."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aner_nb.errors import AnerError
from aner_nb.receipts import decode_receipt
from aner_nb.suites import parse_suite
from aner_nb.verification import content_findings
from tests.fuzz.parsers import corpus, parsers
from tests.fuzz.run import fuzz

INPUTS = {"suite": 500, "receipt": 3000, "frames": 3000, "bundle": 300}
FIELDS = (
    "name",
    "data",
    "layers",
    "batch",
    "epochs",
    "ranks",
    "cases",
    "defaults",
    "seed",
    "optimizer",
    "split",
    "dtype",
    "kind",
    "learning_rate",
    "clip_norm",
    "class_weights",
    "stop_early",
    "rate",
)

leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(("iris", "cpu:1"))
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=6),
    max_leaves=12,
)


@pytest.mark.parametrize("name", INPUTS)
def test_only_our_errors_come_out_of_a_parser(name: str) -> None:
    tally = fuzz(parsers()[name], INPUTS[name], seed=0)
    assert tally.others == []
    assert tally.accepted > 0 and tally.refused > tally.inputs / 4
    assert tally.slowest < 5


def test_the_corpus_is_sound_before_it_is_mutated() -> None:
    for text in corpus("suite").values():
        parse_suite(text.decode(), "kept")
    for data in corpus("receipt").values():
        decode_receipt(data)
    assert content_findings(corpus("bundle")) == []
    assert len(corpus("frames")) >= 5


@settings(max_examples=150, deadline=None)
@given(values)
def test_values_of_any_shape_are_a_suite_or_a_sentence(value: Any) -> None:
    with contextlib.suppress(AnerError):
        parse_suite(json.dumps(value), "any.yaml", "any").to_record()


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(corpus("bundle"))), values)
def test_values_of_any_shape_in_a_bundle_are_findings(name: str, value: Any) -> None:
    assert content_findings({**corpus("bundle"), name: json.dumps(value).encode()})
