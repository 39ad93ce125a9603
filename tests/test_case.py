"""Cases: placements, identities, round trips, and one clear sentence for each mistake."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import aner_nb as aner
from aner_nb.case import Case, Dense, Placement, canonical_json, case_from_record
from aner_nb.errors import CaseError


def make(**changes: Any) -> Case:
    fields: dict[str, Any] = {
        "data": aner.iris(),
        "layers": [16, 3],
        "batch": 30,
        "epochs": 5,
        "ranks": ["cpu:1", ("cpu:1", 7)],
    }
    return Case(**{"name": "iris", **fields, **changes})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cpu", Placement("cpu")),
        ("cpu:2", Placement("cpu", threads=2)),
        ("Atlas-01/cpu:1", Placement("cpu", "Atlas-01", 1)),
        ("Atlas-03/cuda:1", Placement("cuda", "Atlas-03", device=1)),
        ("metal", Placement("metal")),
    ],
)
def test_placements_are_read_and_written_alike(text: str, expected: Placement) -> None:
    assert Placement.parse(text) == expected
    assert Placement.parse(str(expected)) == expected


@pytest.mark.parametrize("text", ["", "tpu", "cpu:0", "cpu:x", "a/b/cpu", "metal:1", "cpu:-1", "1/cpu"])
def test_other_placements_are_refused(text: str) -> None:
    with pytest.raises(CaseError, match="placement|threads|Metal"):
        Placement.parse(text)


def test_defaults_are_filled_in() -> None:
    case = make()
    assert case.dense_layers == (Dense(16, "relu"), Dense(3, "linear"))
    assert case.weights == (1, 7)
    assert case.is_group


def test_a_case_survives_its_record() -> None:
    case = make(layers=[Dense(8, "tanh", "he_uniform"), 3], optimizer=aner.Adam(0.01), seed=4)
    record = json.loads(json.dumps(case.to_record()))
    assert case_from_record(record) == case


def test_the_contract_id_is_the_same_everywhere() -> None:
    assert make().contract_id == "d98a54ccac0fd289796ee699bc9347ff951e8bb854e1e1c78398ca97c47b8388"


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "other"},
        {"data": aner.digits(), "layers": [16, 10]},
        {"layers": [17, 3]},
        {"dtype": "float64"},
        {"batch": 31},
        {"epochs": 6},
        {"optimizer": aner.SGD(0.02)},
        {"ranks": ["cpu:1", ("cpu:1", 6)]},
        {"seed": 1},
        {"split": (0.8, 0.1, 0.1)},
        {"channel": "socket"},
        {"staging": "streamed"},
        {"balance": "auto"},
    ],
)
def test_any_change_changes_the_contract_id(changes: dict[str, Any]) -> None:
    assert make(**changes).contract_id != make().contract_id


def test_the_work_id_leaves_out_who_computes() -> None:
    other = make(name="b", ranks=["cpu:2"], channel="socket", staging="streamed")
    assert other.work_id == make().work_id
    assert make(dtype="float64").work_id != make().work_id


@given(st.dictionaries(st.text(max_size=5), st.integers() | st.floats(allow_nan=False, allow_infinity=False)))
def test_canonical_json_ignores_order_and_reads_back(value: dict[str, Any]) -> None:
    backwards = dict(reversed(list(value.items())))
    assert canonical_json(value) == canonical_json(backwards)
    assert json.loads(canonical_json(value)) == value


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_canonical_json_refuses_what_json_has_not(value: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json([value])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "../x"}, r"case\.name: '\.\./x' is not a usable name"),
        ({"name": ""}, "not a usable name"),
        ({"batch": 0}, r"batch: 0 is not a whole number of at least 1"),
        ({"epochs": 0}, r"epochs: 0 is not"),
        ({"epochs": True}, r"epochs: True is not"),
        ({"layers": []}, "at least one layer"),
        ({"layers": [0]}, r"layers\[0\]: 0 is not"),
        ({"layers": [Dense(3, "gelu")]}, r"layers\[0\]\.activation: 'gelu' is not known"),
        ({"dtype": "float16"}, "dtype: 'float16' is not known. Choose float32 or float64"),
        ({"ranks": []}, "at least one rank"),
        ({"ranks": ["tpu:0"]}, r"ranks\[0\]: 'tpu:0' is not a placement"),
        ({"ranks": ["cuda:0", "cuda:0"]}, r"ranks\[1\]: cuda:0 already hosts rank 0"),
        ({"ranks": [("cpu:1", 0)]}, r"ranks\[0\]: the weight 0 is not a whole number"),
        ({"ranks": [("cpu:1", -1)]}, "weight -1"),
        ({"ranks": [("cpu:1", math.nan)]}, "weight nan"),
        ({"ranks": [("cpu:1", 1.5)]}, r"weight 1\.5"),
        ({"ranks": ["metal"], "dtype": "float64"}, "dtype: Metal has no float64"),
        ({"split": (0.5, 0.2, 0.2)}, "does not divide the rows"),
        ({"split": (1.0, 0.0, 0.0)}, "does not divide the rows"),
        ({"loss": "hinge"}, "loss: 'hinge' is not known"),
        ({"channel": "pigeon"}, "channel: 'pigeon' is not known"),
    ],
)
def test_each_mistake_gets_its_sentence(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CaseError, match=message):
        make(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batchs": 3}, "unknown field 'batchs'. Known: name"),
        ({"layers": None}, "layers: None is not a list"),
        ({"optimizer": "rmsprop2"}, "names no optimizer"),
        ({"optimizer": {"kind": "sgd", "rate": 1}}, "sgd has no 'rate'"),
        ({"optimizer": {"kind": "sgd", "learning_rate": -1}}, "learning_rate: -1 is out of range"),
        ({"layers": [{"unit": 3}]}, "does not describe a Dense layer"),
        ({"data": "mnist"}, "mnist"),
    ],
)
def test_mistakes_in_files_are_named(changes: dict[str, Any], message: str) -> None:
    record = {**make().to_record(), **changes}
    with pytest.raises(CaseError, match=message):
        case_from_record(record)


def test_a_missing_field_is_named() -> None:
    record = make().to_record()
    del record["layers"]
    with pytest.raises(CaseError, match="the field 'layers' is missing"):
        case_from_record(record)


def test_cases_are_values() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        make().batch = 3  # type: ignore[misc]
