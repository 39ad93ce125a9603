"""Suites: the shipped ones, mistakes in a file, and the order of trials to the last one."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import aner_nb as aner
from aner_nb.case import case_from_record
from aner_nb.errors import CaseError
from aner_nb.suites import Schedule, Suite, parse_suite, suite, suite_names

ONE = "{name: a, data: iris, layers: [3], batch: 30, epochs: 1}"


def make(count: int, **changes: int) -> Suite:
    cases = tuple(
        aner.Case(f"c{index}", data=aner.iris(), layers=[3], batch=30, epochs=1, seed=index)
        for index in range(count)
    )
    return Suite("s", cases, **changes)


# ---------------------------------------------------------------- shipped suites


@pytest.mark.parametrize("name", suite_names())
def test_a_shipped_suite_survives_its_record(name: str) -> None:
    found = suite(name)
    record = json.loads(json.dumps(found.to_record()))
    assert tuple(case_from_record(case) for case in record["cases"]) == found.cases
    assert found.description.endswith(".")
    assert len({case.contract_id for case in found.cases}) == len(found.cases)


def test_the_cpu_suite_has_eleven_standalone_cases_eight_groups_and_76_trials() -> None:
    found = suite("cpu")
    groups = [case for case in found.cases if case.is_group]
    assert (len(found.cases), len(groups), len(found.cases) - len(groups)) == (19, 8, 11)
    assert [case.name for case in groups if case.weights == (1, 7)] == ["wide-f32-1to7"]
    assert len(found.schedule()) == 76
    offered = {place.threads for place in map(aner.Placement.parse, found.placements)}
    assert {place.threads for case in found.cases for place in case.placements} == offered == {1, 2}


def test_every_group_of_the_cpu_suite_has_a_standalone_case_of_the_same_work() -> None:
    cases = suite("cpu").cases
    alone = {case.work_id for case in cases if not case.is_group}
    assert all(case.work_id in alone for case in cases if case.is_group)


def test_the_portable_suite_covers_three_machines_and_three_backends() -> None:
    found = suite("portable")
    groups = [case for case in found.cases if case.is_group]
    assert (len(found.cases), len(groups)) == (19, 8)
    assert {place.platform for case in found.cases for place in case.placements} == {
        "Atlas-01",
        "Atlas-02",
        "Atlas-03",
    }
    mixed = [("/".join(sorted(place.backend for place in case.placements)), case.dtype) for case in groups]
    assert sorted(mixed) == [
        ("cpu/cpu", "float32"),
        ("cpu/cpu", "float64"),
        ("cpu/cuda", "float32"),
        ("cpu/cuda", "float32"),
        ("cpu/cuda", "float64"),
        ("cpu/cuda/metal", "float32"),
        ("cpu/metal", "float32"),
        ("cuda/metal", "float32"),
    ]
    assert [case.weights for case in groups if len(set(case.weights)) > 1] == [(1, 7)]


@pytest.mark.parametrize(
    ("devices", "placements"),
    [
        (("cpu",), ["cpu:4", "cpu:4"]),
        (("cpu", "cuda:0", "cuda:1"), ["cpu:4", "cpu:4", "cuda:0"]),
        (("cpu", "metal"), ["cpu:4", "cpu:4", "metal"]),
    ],
)
def test_on_one_host_a_suite_keeps_each_distinct_case_once(
    devices: tuple[str, ...], placements: list[str]
) -> None:
    found = suite("portable").on_one_host(devices, 8)
    assert not any(place.platform for case in found.cases for place in case.placements)
    assert sorted(found.placements) == placements
    names = [case.name for case in found.cases]
    assert "a1-cpu-f32" in names
    assert "a2-cpu-f32" not in names  # the same as the first, once no machine is named
    assert len(names) == 15
    assert found.on_one_host(devices, 8) == found


# ---------------------------------------------------------------- schedule


def test_the_order_of_the_cpu_suite_is_pinned() -> None:
    order = [
        f"{slot.round} {slot.position} {slot.role} {slot.repetition} {slot.case.name}"
        for slot in suite("cpu").schedule()
    ]
    assert order[0] == "0 0 warm_up 1 tall-f32-pair"
    assert order[19] == "1 0 measured 1 digits-f64"
    assert (
        hashlib.sha256("\n".join(order).encode()).hexdigest()
        == "73909d1596771c3070caab3c5731022c9343bcdf71bea3e203971a097b4a5215"
    )


def test_a_round_has_an_order_of_its_own() -> None:
    def orders(warm_ups: int, repetitions: int) -> list[str]:
        places = Schedule(19, tuple("012345")).places(warm_ups, repetitions)
        return ["".join(name for name, *_ in places[start : start + 6]) for start in range(0, len(places), 6)]

    assert orders(0, 3) == ["231450", "310452", "042513"]
    assert orders(1, 1)[0] != orders(1, 1)[1]


def test_cases_are_selected_by_name_dtype_backend_and_kind() -> None:
    cpu = suite("cpu")
    assert len(cpu.select().cases) == 19
    assert [case.name for case in suite("quick").select(names=["iris*", "*-pair-f32"]).cases] == [
        "iris-cpu-f64",
        "iris-pair-f64",
        "digits-pair-f32",
        "teacher-pair-f32",
    ]
    assert len(cpu.select(kind="group").cases) == 8
    assert len(cpu.select(kind="standalone").cases) == 11
    assert {case.dtype for case in cpu.select(dtype="float64").cases} == {"float64"}
    assert len(cpu.select(backend="cpu").cases) == 19
    numpy = dataclasses.replace(cpu.cases[0], name="numpy", ranks=["numpy", "numpy"])
    mixed = dataclasses.replace(numpy, name="mixed", ranks=["numpy", "cpu:1"])
    some = Suite("some", (*cpu.cases, numpy, mixed))
    assert some.select(backend="numpy").cases == (numpy,)
    with pytest.raises(CaseError, match=r"suite 'quick': no case is left\. Its cases: iris-cpu-f64, "):
        suite("quick").select(names=["nothing"])


def test_a_suite_run_into_a_folder_of_another_keeps_its_cases_and_schedule() -> None:
    whole = make(5, seed=3)
    part = whole.select(names=[case.name for case in whole.cases[1:3]])
    grown = whole.merged(part)
    assert {case.name for case in grown.cases} == {case.name for case in whole.cases}
    assert part.own_schedule() in grown.earlier
    assert whole.own_schedule() in grown.earlier
    assert grown.own_schedule() not in grown.earlier
    assert part.merged(whole) == dataclasses.replace(whole, earlier=(part.own_schedule(),))
    assert whole.merged(whole) == whole


@given(st.integers(1, 6), st.integers(0, 3), st.integers(1, 4), st.integers(0, 99))
def test_rounds_interleave_all_cases(count: int, warm_ups: int, repetitions: int, seed: int) -> None:
    found = make(count, warm_ups=warm_ups, repetitions=repetitions, seed=seed)
    slots = found.schedule()
    assert len(slots) == count * (warm_ups + repetitions)
    for start in range(0, len(slots), count):
        part = slots[start : start + count]
        assert sorted(slot.case.name for slot in part) == [case.name for case in found.cases]
        assert [slot.position for slot in part] == list(range(count))
        number = start // count
        warm = number < warm_ups
        labels = (
            ("warm_up", number + 1, 0) if warm else ("measured", number - warm_ups + 1, number - warm_ups + 1)
        )
        assert {(slot.role, slot.repetition, slot.round) for slot in part} == {labels}


def test_the_seed_chooses_the_order_and_nothing_else() -> None:
    first, second = make(6).schedule(), make(6, seed=1).schedule()
    assert [slot.case.name for slot in first] != [slot.case.name for slot in second]
    assert {(slot.case.name, slot.role, slot.repetition) for slot in first} == {
        (slot.case.name, slot.role, slot.repetition) for slot in second
    }


def test_a_suite_can_be_narrowed() -> None:
    groups = suite("quick").only(lambda case: case.is_group)
    assert [case.name for case in groups.cases] == ["iris-pair-f64", "digits-pair-f32", "teacher-pair-f32"]
    with pytest.raises(CaseError, match="suite 'quick': there are no cases. List at least one"):
        suite("quick").only(lambda _case: False)


# ---------------------------------------------------------------- files


def test_a_file_of_ones_own_fills_in_defaults(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "warm_ups: 0\nseed: 4\nplacements: [numpy]\n"
        "defaults: {data: iris, batch: 30, epochs: 2, ranks: [numpy]}\n"
        "cases:\n  - {name: a, layers: [3]}\n  - {name: b, layers: [{units: 3, initialiser: zeros}], epochs: 5}\n"
    )
    found = suite(path)
    assert (found.name, found.warm_ups, found.repetitions, found.seed, found.placements) == (
        "mine",
        0,
        3,
        4,
        ("numpy",),
    )
    assert [(case.name, case.epochs, case.batch) for case in found.cases] == [("a", 2, 30), ("b", 5, 30)]
    assert suite(str(path)) == found


def test_a_case_in_a_file_takes_its_name_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "flowers.yml"
    path.write_text("data: iris\nlayers: [3]\nbatch: 30\nepochs: 1\nname: lilies\n")
    assert (suite(path).name, suite(path).cases[0].name) == ("lilies", "lilies")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [1,\n  b: }", r"my\.yaml, line 2, column 6: not YAML: .* Correct it there"),
        ("cases:\n\t- {name: a}", r"my\.yaml, line 2, column 1: not YAML: found character '\\t'"),
        ("a: *b", r"my\.yaml, line 1, column 4: not YAML: found undefined alias"),
        (
            "a: !!python/name:os.system x",
            r"my\.yaml, line 1, column 4: not YAML: could not determine a constructor",
        ),
        ("a: \x07", "not YAML: .*special characters are not allowed"),
        ("[" * 600, "not YAML: maximum recursion depth exceeded"),
        ("", "'None' is not a mapping. Write lines of 'field: value'"),
        ("just words", "'just words' is not a mapping"),
    ],
)
def test_what_is_not_yaml_is_refused_with_line_and_column(text: str, sentence: str) -> None:
    with pytest.raises(CaseError, match=sentence):
        parse_suite(text, "my.yaml")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "{cases: [%s], rounds: 3}",
            r"my\.yaml: unknown field 'rounds'\. A suite has name, description, placements",
        ),
        ("{cases: [%s], 3: 3}", "unknown field '3'"),
        (
            "{cases: [%s, %s]}",
            "suite 'my.yaml': the name 'a' is used twice. Give every case a name of its own",
        ),
        ("{cases: [7]}", r"my\.yaml: cases\[0\]: '7' is not a mapping"),
        ("{cases: {a: 1}}", r"my\.yaml: cases: .* is not a list\. Write lines that begin with '- '"),
        ("{cases: [%s], defaults: [1]}", r"my\.yaml: defaults: '\[1\]' is not a mapping"),
        ("{cases: [%s], placements: cpu}", r"my\.yaml: placements: 'cpu' is not a list"),
        (
            "{cases: [%s], warm_ups: -1}",
            "warm_ups: -1 is not a whole number from 0 to 1000. Correct the value",
        ),
        ("{cases: [%s], repetitions: true}", "repetitions: True is not a whole number from 1"),
        ("{cases: [%s], repetitions: 1001}", "repetitions: 1001 is not"),
        ("{cases: [%s], seed: 1.5}", "seed: 1.5 is not"),
        (
            "{cases: [{name: a, epoch: 3}]}",
            r"my\.yaml: case 'a': unknown field 'epoch'\. Known: name, data, layers",
        ),
        ("{cases: [{layers: [3]}]}", r"my\.yaml: case 0: the field 'name' is missing"),
        (
            "{name: a, data: iris, layers: [3], batch: 30, epochs: 1, repetition: 2}",
            "case 'a': unknown field 'repetition'",
        ),
        ("{name: a, data: {source: iris, size: 3}, layers: [3]}", "the field 'batch' is missing"),
        (ONE.replace("iris", "{source: iris, size: 3}"), "data: unknown field 'size'"),
        (ONE.replace("[3]", "[{units: 3, bias: 0}]"), "does not describe a Dense layer"),
        (ONE.replace("epochs: 1", "epochs: 1, optimizer: {kind: adam, beta1: 0.5}"), "adam has no 'beta1'"),
        (ONE.replace("epochs: 1", "epochs: 1, optimizer: {kind: [sgd]}"), "names no optimizer"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_its_place(text: str, sentence: str) -> None:
    with pytest.raises(CaseError, match=sentence):
        parse_suite(text.replace("%s", ONE), "my.yaml")


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9")
    with pytest.raises(
        CaseError, match=r"latin\.yaml: the file is not UTF-8 text \(byte 9\)\. Save it as UTF-8"
    ):
        suite(tmp_path / "latin.yaml")
    (tmp_path / "large.yaml").write_bytes(b" " * (2**20 + 1))
    with pytest.raises(CaseError, match=r"large\.yaml: the file is over 1048576 bytes"):
        suite(tmp_path / "large.yaml")
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(
        CaseError, match=r"folder\.yaml: the file cannot be read \(Is a directory\)\. Check the path"
    ):
        suite(tmp_path / "folder.yaml")


def test_a_suite_that_does_not_exist_is_refused_and_the_others_named(tmp_path: Path) -> None:
    with pytest.raises(
        CaseError, match=r"^there is no suite 'slow'\. Name one of cpu, .*quick.*, or a \.yaml file"
    ):
        suite("slow")
    with pytest.raises(CaseError, match=r"none\.yaml: the file cannot be read \(No such file or directory\)"):
        suite(tmp_path / "none.yaml")


def test_the_cpu_suite_warms_up_once_and_measures_three_times_in_both_types() -> None:
    roles = [slot.role for slot in suite("cpu").schedule()]
    assert (roles.count("warm_up"), roles.count("measured")) == (19, 57)
    assert {case.dtype for case in suite("cpu").cases} == {"float32", "float64"}
