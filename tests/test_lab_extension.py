"""The JupyterLab extension, without a browser: built from these sources, in the wheel, nothing put in as markup."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

import aner_nb as aner
from aner_nb.analysis import StudySummary

ROOT = Path(__file__).parents[1]
LAB = ROOT / "widgets" / "lab"
BUILT = ROOT / "widgets" / "labextension"
PLACE = "data/share/jupyter/labextensions/aner-nb-lab"


def build_script() -> Any:
    spec = importlib.util.spec_from_file_location("build", LAB / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_extension_is_built_from_these_sources() -> None:
    assert (BUILT / "sources.sha256").read_text().strip() == build_script().digest(), "call: make front-end"


def test_it_is_a_prebuilt_extension_with_settings() -> None:
    record = json.loads((BUILT / "package.json").read_text())
    assert (BUILT / record["jupyterlab"]["_build"]["load"]).is_file()
    schema = json.loads((BUILT / "schemas" / "aner-nb-lab" / "plugin.json").read_text())
    assert set(schema["properties"]) == {"scheduler", "outputFolder"}


@pytest.mark.parametrize("path", sorted(LAB.glob("src/*.ts")), ids=lambda path: path.name)
def test_no_text_is_ever_put_in_as_markup(path: Path) -> None:
    source = path.read_text("utf-8")
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "DOMParser"):
        assert forbidden not in source


@pytest.mark.parametrize("version", ["standard", "editable"])
def test_installing_brings_the_extension_without_node(version: str, tmp_path: Path) -> None:
    script = "import sys, hatchling.build as b; print((b.build_editable if sys.argv[1] == 'editable' else b.build_wheel)(sys.argv[2]))"
    done = subprocess.run(
        [sys.executable, "-c", script, version, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PATH": str(tmp_path)},
        check=True,
        capture_output=True,
        text=True,
    )
    with zipfile.ZipFile(tmp_path / done.stdout.split()[-1]) as archive:
        names = archive.namelist()
    there = {name.split(f"{PLACE}/", 1)[1] for name in names if f"{PLACE}/" in name}
    assert there == {path.relative_to(BUILT).as_posix() for path in BUILT.rglob("*") if path.is_file()}


def test_results_in_one_file_say_what_the_bundle_says(tmp_path: Path) -> None:
    bundle = ROOT / "docs" / "results" / "cpu"
    study = aner.open_study(bundle)
    record = json.loads(study.save_results(tmp_path / "study.aner.json").read_text())
    assert msgspec.convert(record["summaries"], StudySummary) == study.summary()  # fields may be new since
    assert record["suite"] == json.loads((bundle / "suite.json").read_text())
    assert record["configurations"] == json.loads((bundle / "configurations.json").read_text())
    with pytest.raises(aner.AnerError, match=r"'study.json' is no name for results. End it with .aner.json"):
        study.save_results(tmp_path / "study.json")
