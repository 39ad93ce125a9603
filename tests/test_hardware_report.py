"""The text for an issue says what the bundle says, a damaged bundle's damage included."""

from __future__ import annotations

import shutil
from pathlib import Path

from aner_nb.hardware_report import hardware_report

BUNDLE = Path(__file__).parent.parent / "docs" / "results" / "cpu"


def test_machines_proofs_cases_and_verification_are_told() -> None:
    text = hardware_report(BUNDLE)
    assert "- Atlas-01: Linux x86_64, " in text
    assert "- cpu:1 with tensorflow 2.21.0: 96 rank(s); produced on CPU:0, executed graph on CPU:0" in text
    assert text.count("| passed |") == 19
    assert "nothing found" in text


def test_what_verify_finds_is_told(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(BUNDLE, tmp_path / "copy"))
    page = copy / "report.html"
    page.write_text(page.read_text("utf-8") + " ", "utf-8")
    text = hardware_report(copy)
    assert "nothing found" not in text
    assert "report.html" in text
