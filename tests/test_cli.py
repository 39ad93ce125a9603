"""The command line: exit codes, one sentence for what is wrong, exports."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from rich.console import Console

from aner_nb.cli import main
from tests.study_fixtures import make_study, suite


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    study = make_study(
        tmp_path_factory.mktemp("study"), chosen=suite().select(names=["solo-f64", "pair-f64"])
    )
    study.publish()
    return study.folder.path


def code_of(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["aner-nb", *arguments])
    with pytest.raises(SystemExit) as leaving:
        main()
    assert isinstance(leaving.value.code, int)
    return leaving.value.code


def test_verify_ends_with_zero_on_a_clean_bundle_and_one_on_another(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(monkeypatch, "verify", str(results)) == 0
    assert capsys.readouterr().out.startswith("verified: ")
    broken = shutil.copytree(results / "public", tmp_path / "public")
    (broken / "trials.jsonl").write_text("")
    assert code_of(monkeypatch, "verify", str(broken)) == 1
    assert "trials.jsonl" in capsys.readouterr().out


def test_what_is_wrong_is_one_sentence_and_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(monkeypatch, "report", str(tmp_path)) == 1
    found = " ".join(capsys.readouterr().err.split())
    assert found.startswith("error ")
    assert "the folder holds no results. Run a suite into it first." in found
    assert code_of(monkeypatch, "run", "quick", "--out", str(tmp_path), "--only", "[nothing]") == 1
    assert "suite 'quick': no case is left." in " ".join(capsys.readouterr().err.split())


def test_a_wrong_use_ends_with_two(monkeypatch: pytest.MonkeyPatch) -> None:
    assert code_of(monkeypatch, "run") == 2
    assert code_of(monkeypatch, "nonsense") == 2


@pytest.mark.parametrize("name", ["table.csv", "table.md", "table.tex"])
def test_export_writes_the_table(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    assert code_of(monkeypatch, "export", str(results), "--out", str(tmp_path / name)) == 0
    text = (tmp_path / name).read_text()
    assert "solo-f64" in text
    assert "pair-f64" in text


def test_export_writes_a_trace(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "trace.json"
    assert code_of(monkeypatch, "export", str(results), "--out", str(target), "--case", "pair-f64") == 0
    assert json.loads(target.read_bytes())["traceEvents"]
    assert code_of(monkeypatch, "export", str(results), "--out", str(target)) == 1
    assert "Cases: solo-f64, pair-f64" in " ".join(capsys.readouterr().err.split())


def test_doctor_shows_remedies_to_the_letter(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from aner_nb.doctor import Diagnosis

    lines = (Diagnosis("cuda", False, "no [bold]card", "pip install 'aner-nb[cuda]'", required=False),)
    monkeypatch.setattr("aner_nb.doctor.diagnose", lambda: lines)
    monkeypatch.setattr("aner_nb.cli._console", Console(width=120))
    assert code_of(monkeypatch, "doctor") == 0
    shown = capsys.readouterr().out
    assert "'aner-nb[cuda]'" in shown
    assert "no [bold]card" in shown
