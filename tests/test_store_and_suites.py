"""Suites from YAML, their seeded schedule, and the results folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aner_nb as aner
from aner_nb.errors import CaseError
from aner_nb.receipts import ReceiptError, decode_receipt, encode_receipt
from aner_nb.store import ResultsFolder, StoreError
from aner_nb.suites import parse_suite, suite, suite_names


def trial(**changes: Any) -> aner.Trial:
    fields = {"layers": [3], "batch": 45, "epochs": 1, "ranks": ["numpy"], "channel": "inline", **changes}
    return aner.run(aner.Case("tiny", data=aner.iris(), **fields))


def test_every_shipped_suite_can_be_read() -> None:
    assert {"cpu", "quick"} <= set(suite_names())
    for name in suite_names():
        assert suite(name).name == name


def test_the_cpu_suite_is_nineteen_cases() -> None:
    cases = suite("cpu").cases
    assert len(cases) == 19
    assert sum(case.is_group for case in cases) == 8
    assert {case.dtype for case in cases} == {"float32", "float64"}
    assert any(case.weights == (1, 7) for case in cases)
    roles = [slot.role for slot in suite("cpu").schedule()]
    assert (roles.count("warm_up"), roles.count("measured")) == (19, 57)


def test_rounds_interleave_all_cases_in_a_seeded_order() -> None:
    slots = suite("quick").schedule()
    by_round = [[slot.case.name for slot in slots if slot.round == number] for number in range(4)]
    assert all(sorted(names) == sorted(by_round[0]) for names in by_round)
    assert by_round[1] != by_round[2]
    assert [slot.position for slot in slots[:6]] == list(range(6))
    assert suite("quick").schedule() == slots


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cases: [\n  {name: a", r"mine\.yaml, line 2, column \d+: not YAML"),
        ("a: b: c", "line 1, column 5: not YAML"),
        ("cases: []", "is not a list"),
        ("[1, 2]", "is not a mapping"),
        ("name: x", "the field 'cases' is missing"),
        ("cases: [{name: a}]\nfoo: 1", "unknown field 'foo'"),
        (
            "repetitions: 0\ncases: [{name: a, data: iris, layers: [3], batch: 3, epochs: 1}]",
            "repetitions: 0 is not",
        ),
        ("cases: [{name: a, layers: [3], batch: 3, epochs: 1}]", "case 'a': the field 'data' is missing"),
    ],
)
def test_mistakes_in_a_suite_are_named(text: str, message: str) -> None:
    with pytest.raises(CaseError, match=message):
        parse_suite(text, "mine.yaml")


def test_a_single_case_is_a_suite_of_one() -> None:
    found = parse_suite("{name: one, data: iris, layers: [3], batch: 30, epochs: 1}", "one.yaml")
    assert [case.name for case in found.cases] == ["one"]


def test_unknown_suites_and_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CaseError, match="there is no suite 'slow'. Name one of cpu"):
        suite("slow")
    with pytest.raises(CaseError, match="cannot be read"):
        suite(tmp_path / "none.yaml")


def test_names_are_used_once() -> None:
    case = aner.Case("a", data=aner.iris(), layers=[3], batch=3, epochs=1)
    with pytest.raises(CaseError, match="the name 'a' is used twice"):
        aner.Suite("s", (case, case))


def test_a_receipt_survives_its_file() -> None:
    receipt = trial().receipt
    assert decode_receipt(encode_receipt(receipt)) == receipt


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b"\xff", b'{"schema_version": 99}', b"[" * 100_000])
def test_what_is_no_receipt_is_refused(data: bytes) -> None:
    with pytest.raises(ReceiptError, match="not a receipt of schema version 1"):
        decode_receipt(data)


def test_a_saved_trial_can_be_read_with_steps_and_vector(tmp_path: Path) -> None:
    done = trial(epochs=3)
    folder = ResultsFolder(tmp_path)
    with folder.writing():
        path = folder.save(done)
    assert path.name == "trial-1.json"
    assert folder.receipts() == [done.receipt]
    np.testing.assert_array_equal(folder.vector(done.receipt), done.parameters)
    steps = folder.steps(done.receipt)
    assert steps is not None
    assert steps["loss"].shape == (6,)
    assert steps["ranks_ns"].shape[:2] == (6, 1)


def test_failed_trials_are_kept_beside_each_other(tmp_path: Path) -> None:
    folder = ResultsFolder(tmp_path)
    failed = aner.run(
        aner.Case(
            "tiny", data=aner.iris(), layers=[3], batch=45, epochs=9, ranks=["numpy"], channel="inline"
        ),
        stop=lambda: True,
    )
    with folder.writing():
        names = [folder.save(failed).name, folder.save(failed).name]
    assert names == ["trial-1.cancelled-1.json", "trial-1.cancelled-2.json"]


def test_a_second_run_into_the_folder_is_refused_and_the_holder_named(tmp_path: Path) -> None:
    with ResultsFolder(tmp_path).writing():
        with pytest.raises(StoreError, match=f"another run writes here \\(process {os.getpid()}\\)"):
            with ResultsFolder(tmp_path).writing():
                pass


def test_a_full_disk_loses_nothing_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ResultsFolder(tmp_path)
    with folder.writing():
        folder.save(trial())

        def full(_descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(StoreError, match="No space left on device"):
            folder.save(trial(seed=1))
    assert len(folder.receipts()) == 1
    assert not [path for path in tmp_path.rglob(".*") if path.name not in (".lock",)]


def test_a_damaged_receipt_is_named(tmp_path: Path) -> None:
    folder = ResultsFolder(tmp_path)
    with folder.writing():
        folder.save(trial()).write_text('{"half": ')
    with pytest.raises(ReceiptError, match=r"receipts/tiny/trial-1\.json"):
        folder.receipts()
