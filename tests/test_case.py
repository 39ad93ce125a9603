"""Cases: placements, identities, round trips, and one clear sentence for each mistake."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aner_nb as aner
from aner_nb.case import Case, Placement, canonical_json, case_from_record
from aner_nb.errors import CaseError
from aner_nb.layers import Dense


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
    assert case.stack == (Dense(16, "relu"), Dense(3, "linear"))
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


# ---------------------------------------------------------------- placements


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("cuda", "cuda:0"),
        ("cuda:01", "cuda:1"),
        ("numpy:3", "numpy:3"),
        ("cpu", "cpu"),
        ("A_b-3/metal", "A_b-3/metal"),
    ],
)
def test_a_placement_has_one_way_to_be_written(text: str, written: str) -> None:
    assert str(Placement.parse(text)) == written


@given(
    st.sampled_from(["", "Atlas-01/", "x/"]),
    st.one_of(
        st.tuples(st.sampled_from(["cpu", "numpy"]), st.integers(1, 999_999)),
        st.tuples(st.just("cuda"), st.integers(0, 999_999)),
        st.tuples(st.sampled_from(["cpu", "numpy", "metal"]), st.none()),
    ),
)
def test_any_placement_is_read_back(platform: str, rest: tuple[str, int | None]) -> None:
    backend, number = rest
    text = f"{platform}{backend}" + ("" if number is None else f":{number}")
    assert str(Placement.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "tpu",
            r"^ranks: 'tpu' is not a placement\. Write \[platform/\]backend\[:number\] with one of cpu, cuda, metal",
        ),
        ("CPU:1", "'CPU:1' is not a placement"),
        ("cpu:1\n", "is not a placement"),
        (" cpu", "is not a placement"),
        ("cpu:\u0661", "is not a placement"),
        ("cpu:1000000", "is not a placement"),
        ("cpu:" + "9" * 5000, "is not a placement"),
        ("/cpu", "is not a placement"),
        ("cpu:0", r"^ranks: 'cpu:0' asks for 0 threads\. Write 1 or more"),
        ("numpy:00", "asks for 0 threads"),
        ("metal:0", r"'metal:0' gives 'metal' a number\. A machine has one Metal device: write 'metal'"),
    ],
)
def test_a_text_that_is_no_placement_gets_its_sentence(text: str, sentence: str) -> None:
    with pytest.raises(CaseError, match=sentence):
        Placement.parse(text)


# ---------------------------------------------------------------- identities and records

cases = st.builds(
    make,
    name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True),
    data=st.sampled_from([aner.iris(), aner.digits(), aner.teacher(100, 4, 3, label_noise=0.1)]),
    layers=st.lists(
        st.one_of(
            st.integers(1, 99),
            st.builds(
                Dense,
                st.integers(1, 99),
                st.sampled_from([None, "linear", "relu", "tanh", "sigmoid"]),
                st.sampled_from(["glorot_uniform", "he_uniform", "zeros"]),
            ),
        ),
        min_size=1,
        max_size=4,
    ),
    dtype=st.sampled_from(["float32", "float64"]),
    batch=st.integers(1, 2**53 - 1),
    epochs=st.integers(1, 1000),
    optimizer=st.one_of(
        st.builds(aner.SGD, st.floats(1e-9, 1e9), st.floats(0, 0.999), st.booleans()),
        st.builds(aner.SGD, st.integers(1, 9)),
        st.builds(aner.Adam, st.floats(1e-9, 1e9), st.floats(0, 0.999), st.floats(0, 0.999)),
    ),
    loss=st.sampled_from([None, "softmax_cross_entropy", "mean_squared_error"]),
    ranks=st.lists(
        st.one_of(
            st.sampled_from(["cpu:1", "numpy", "B-1/cpu"]),
            st.tuples(st.just("cpu"), st.integers(1, 1_000_000)),
        ),
        min_size=1,
        max_size=4,
    ),
    seed=st.integers(0, 2**53 - 1),
    split=st.sampled_from([(0.6, 0.2, 0.2), (1 / 3, 1 / 3, 1 / 3), (0.98, 0.01, 0.01)]),
    channel=st.sampled_from(["auto", "shared_memory", "socket", "inline"]),
    staging=st.sampled_from(["auto", "resident", "streamed"]),
    balance=st.sampled_from(["declared", "auto"]),
)


@settings(max_examples=40)
@given(cases)
def test_any_case_survives_its_record_and_keeps_its_ids(case: Case) -> None:
    read = case_from_record(json.loads(canonical_json(case.to_record())))
    assert read == case
    assert hash(read) == hash(case)
    assert (read.contract_id, read.work_id) == (case.contract_id, case.work_id)


@settings(max_examples=40)
@given(cases, cases)
def test_cases_are_equal_exactly_if_their_contracts_are(left: Case, right: Case) -> None:
    assert (left == right) == (left.contract_id == right.contract_id)


def test_every_field_is_in_the_record_in_its_order() -> None:
    fields = [field.name for field in dataclasses.fields(Case)]
    added = fields[fields.index("balance") + 1 :]
    assert (
        list(make().to_record()) == fields[: -len(added)]
    )  # what was added later leaves other ids as they were


def test_the_record_has_every_default_filled_in() -> None:
    case = Case("a", data=aner.iris(), layers=[3], batch=30, epochs=1)
    assert case.to_record() == {
        "name": "a",
        "data": {"source": "iris"},
        "layers": [{"units": 3, "activation": "linear", "initialiser": "glorot_uniform"}],
        "dtype": "float32",
        "batch": 30,
        "epochs": 1,
        "optimizer": {"kind": "sgd", "learning_rate": 0.01, "momentum": 0.0, "nesterov": False},
        "loss": None,
        "ranks": [["cpu:1", 1]],
        "seed": 0,
        "split": [0.6, 0.2, 0.2],
        "channel": "auto",
        "staging": "auto",
        "collective": "star",
        "balance": "declared",
    }
    assert not case.is_group


def test_a_default_may_be_written_out() -> None:
    short = make(layers=[16, 3])
    long = make(
        layers=[Dense(16, "relu"), Dense(3, "linear", "glorot_uniform")],
        ranks=["cpu:1", (Placement("cpu", threads=1), 7)],
    )
    assert short == long
    assert short.contract_id == long.contract_id


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": aner.SGD(momentum=0.9)},
        {"optimizer": aner.SGD(nesterov=True)},
        {"optimizer": aner.Adam()},
        {"loss": "softmax_cross_entropy"},
        {"layers": [Dense(16, "tanh"), 3]},
        {"layers": [Dense(16, "relu", "he_uniform"), 3]},
        {"layers": [16, 16, 3]},
        {"ranks": ["cpu:1"]},
        {"ranks": ["cpu:2", ("cpu:1", 7)]},
        {"ranks": [("cpu:1", 7), "cpu:1"]},
        {"ranks": ["Atlas-01/cpu:1", ("cpu:1", 7)]},
    ],
)
def test_any_smaller_change_changes_the_contract_id(changes: dict[str, Any]) -> None:
    assert make(**changes).contract_id != make().contract_id


WHO = {"name", "ranks", "channel", "collective", "staging", "balance"}
CHANGED: dict[str, Any] = {
    "name": "b",
    "data": aner.digits(),
    "layers": [8, 3],
    "dtype": "float64",
    "batch": 31,
    "epochs": 6,
    "optimizer": aner.Adam(),
    "loss": "softmax_cross_entropy",
    "ranks": ["cuda:0", ("Atlas-02/metal", 3), "numpy"],
    "seed": 1,
    "split": (0.5, 0.25, 0.25),
    "channel": "inline",
    "staging": "streamed",
    "balance": "auto",
}
ADDED: dict[str, Any] = {
    "clip_norm": 1.0,
    "class_weights": "balanced",
    "stop_early": aner.EarlyStopping(3),
}
"""Fields that a record has only where they are used."""


@pytest.mark.parametrize(
    "field",
    [field.name for field in dataclasses.fields(Case) if field.name not in ("collective", "model", "tf32")],
)
def test_the_work_id_depends_on_what_is_computed_alone(field: str) -> None:
    assert (make(**{field: (CHANGED | ADDED)[field]}).work_id == make().work_id) == (field in WHO)


def test_rounder_products_are_other_work() -> None:
    card = make(ranks=["cuda:0"])
    assert card.work_id == make().work_id
    assert dataclasses.replace(card, tf32=True).work_id != card.work_id


def test_the_work_id_is_the_same_everywhere() -> None:
    assert make().work_id == "d94bbd5a0ba7b819248156eb807e15594c1fa34c053a3f26bb03044596359d45"


# ---------------------------------------------------------------- canonical JSON

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@given(values)
def test_any_json_value_is_read_back_and_written_alike(value: Any) -> None:
    try:
        text = canonical_json(value)
    except UnicodeEncodeError:
        assert any("\ud800" <= letter <= "\udfff" for letter in json.dumps(value, ensure_ascii=False))
        return
    assert json.loads(text) == value
    assert canonical_json(json.loads(text)) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [1.0, 0.1, 1e22, 5e-324, -0.0]}, '{"a":[1.0,0.1,1e+22,5e-324,-0.0],"b":1}'),
        ({"é": "ß€𝄞", "z": '"\\\n\x00'}, '{"z":"\\"\\\\\\n\\u0000","é":"ß€𝄞"}'),
        ([None, True, 2**70, ()], "[null,true,1180591620717411303424,[]]"),
    ],
)
def test_canonical_json_is_pinned(value: object, text: str) -> None:
    assert canonical_json(value) == text.encode()


@pytest.mark.parametrize("value", [math.nan, -math.inf, {"a": [math.nan]}, {"a": {"b": math.inf}}])
def test_numbers_that_json_has_not_are_refused_at_any_depth(value: object) -> None:
    with pytest.raises(ValueError, match="Out of range float values are not JSON compliant"):
        canonical_json(value)


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"name": "a/b"}, r"^case\.name: 'a/b' is not a usable name\. Use 1 to 80 letters, digits"),
        ({"name": ".hidden"}, "not a usable name"),
        ({"name": "a" * 81}, "not a usable name"),
        ({"name": "a\n"}, "not a usable name"),
        ({"name": "größe"}, "not a usable name"),
        ({"name": 5}, "5 is not a usable name"),
        (
            {"batch": -1},
            r"^case 'iris': batch: -1 is not a whole number of at least 1\. Correct the value\.$",
        ),
        ({"batch": 1.0}, r"batch: 1\.0 is not a whole number"),
        ({"batch": "30"}, "batch: '30' is not a whole number"),
        ({"batch": math.nan}, "batch: nan is not"),
        ({"batch": 2**53}, "batch: 9007199254740992 is not"),
        ({"epochs": -5}, "epochs: -5 is not"),
        ({"epochs": None}, "epochs: None is not"),
        ({"seed": -1}, "seed: -1 is not a whole number of at least 0"),
        ({"layers": None}, r"layers: a model needs at least one layer\. For example \[16, 3\]"),
        ({"layers": [16, True]}, r"layers\[1\]: True is not a whole number"),
        ({"layers": [2.5]}, r"layers\[0\]: 2\.5 is not"),
        ({"layers": ["16"]}, r"layers\[0\]: '16' is not"),
        (
            {"layers": [Dense(3, None, "ones")]},
            r"layers\[0\]\.initialiser: 'ones' is not known\. Choose glorot_uniform or",
        ),
        (
            {"layers": [Dense(3, "softmax")]},
            r"layers\[0\]\.activation: 'softmax' is not known\. Choose linear or relu or",
        ),
        ({"dtype": ["float32"]}, r"dtype: \['float32'\] is not known"),
        ({"staging": "mapped"}, "staging: 'mapped' is not known. Choose auto or resident or streamed"),
        ({"balance": "fair"}, "balance: 'fair' is not known. Choose declared or auto"),
        ({"collective": "ring"}, "collective: 'ring' is not known. Choose star"),
        ({"ranks": "cpu:1"}, r"ranks: a case needs at least one rank\. For example \['cpu:1'\]"),
        ({"ranks": [5]}, r"ranks\[0\]: 5 is not a placement\. Write a placement such as 'cpu:1'"),
        ({"ranks": [("cpu:1", 1, 2)]}, r"ranks\[0\]: .* is not a placement"),
        (
            {"ranks": ["cpu:1", ("cpu:1", True)]},
            r"ranks\[1\]: the weight True is not a whole number from 1 to 1,000,000",
        ),
        ({"ranks": [("cpu:1", 1_000_001)]}, "the weight 1000001 is not"),
        ({"ranks": [("cpu:1", "2")]}, r"the weight '2' is not .* to leave a rank out, remove it"),
        (
            {"ranks": ["cuda", "cuda:1", "cuda:0"]},
            r"ranks\[2\]: cuda:0 already hosts rank 0\. A device takes one rank",
        ),
        ({"ranks": ["A/metal", "B/metal", "A/metal"]}, r"ranks\[2\]: A/metal already hosts rank 0"),
        (
            {"ranks": ["cpu:1", "A/metal"], "dtype": "float64"},
            r"^case 'iris': dtype: Metal has no float64\. Write dtype: float32, or run the case on cpu or cuda\.$",
        ),
        (
            {"split": (0.6, 0.4)},
            r"split: \(0\.6, 0\.4\) does not divide the rows\. Give three positive fractions",
        ),
        ({"split": (0.8, 0.3, -0.1)}, "does not divide the rows"),
        ({"split": (math.nan, 0.5, 0.5)}, "does not divide the rows"),
        ({"split": (True, 0, 0)}, "does not divide the rows"),
        ({"split": ("0.6", 0.2, 0.2)}, "does not divide the rows"),
        ({"split": 1}, "split: 1 does not divide the rows"),
        ({"split": (0.6, 0.2, 0.2 + 1e-8)}, "does not divide the rows"),
    ],
)
def test_each_further_mistake_gets_its_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CaseError, match=sentence):
        make(**changes)


def test_ranks_may_share_processors_but_not_devices() -> None:
    shared = make(ranks=["cpu:1", "cpu:1", "numpy", "numpy", "A/cuda:0", "B/cuda:0", "A/cuda:1"])
    assert len(shared.placements) == 7


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"rnaks": [], "zeal": 1},
            r"^my\.yaml: unknown field 'rnaks'\. Known: name, data, layers, dtype, batch, epochs",
        ),
        ({3: 4}, "my.yaml: unknown field '3'"),
        ({"layers": "16, 3"}, r"my\.yaml: layers: '16, 3' is not a list\. Write \[first, second, …\]"),
        (
            {"layers": [{"units": 3, "bias": False}]},
            "does not describe a Dense layer. Give 'units' and, if wanted, activation",
        ),
        ({"layers": [{}]}, "{} does not describe a Dense layer"),
        ({"ranks": {"cpu": 1}}, "my.yaml: ranks: {'cpu': 1} is not a list"),
        ({"ranks": [["cpu:1", 0.5]]}, r"ranks\[0\]: the weight 0\.5 is not a whole number"),
        ({"split": 0.6}, "my.yaml: split: 0.6 is not a list"),
        ({"optimizer": 3}, "my.yaml: optimizer: 3 names no optimizer"),
        (
            {"optimizer": {"kind": "adam", "beta": 1}},
            "my.yaml: optimizer: adam has no 'beta'. It takes learning_rate, beta_1",
        ),
        (
            {"optimizer": {"kind": "adam", "beta_2": 1}},
            "beta_2: 1 is out of range. Give a finite number of at least 0 and below 1",
        ),
        ({"data": None}, "my.yaml: data.source: None is not a source of data"),
        ({"data": {"source": "iris", "rows": 3}}, "my.yaml: data: unknown field 'rows'"),
        ({"data": {"source": "teacher", "rows": 3}}, "my.yaml: data: the field 'features' is missing"),
    ],
)
def test_each_mistake_in_a_file_is_named_with_its_place(changes: dict[Any, Any], sentence: str) -> None:
    with pytest.raises(CaseError, match=sentence):
        case_from_record({**make().to_record(), **changes}, "my.yaml")


@pytest.mark.parametrize("field", ["name", "data", "layers", "batch", "epochs"])
def test_each_required_field_is_missed(field: str) -> None:
    record = make().to_record()
    del record[field]
    with pytest.raises(
        CaseError, match=f"^case: the field '{field}' is missing. A case needs name, data, layers"
    ):
        case_from_record(record)


@pytest.mark.parametrize("field", sorted(set(CHANGED) - {"name", "data", "layers", "batch", "epochs"}))
def test_every_other_field_may_be_left_out(field: str) -> None:
    record = Case("a", data=aner.iris(), layers=[3], batch=30, epochs=1).to_record()
    whole = case_from_record(record)
    del record[field]
    assert case_from_record(record) == whole
