"""The widgets' front ends: whole, in the wheel, and missed in plain words where they are not there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from aner_nb.front_ends import MISSING, NAMES, front_end

ROOT = Path(__file__).parents[1]
FILES = {path.name for path in (ROOT / "widgets").glob("*.*s") if path.suffix in (".js", ".css")}
WHAT_IS_LOADED = """
import aner_nb as aner, aner_nb.front_ends as front_ends
print(front_ends.front_end_folder())
for widget in (aner.CasePicker("quick"), aner.ClusterPanel(), aner.RunMonitor(), aner.StudyView()):
    print("export default { render }" in widget._esm, ".aner {" in widget._css, widget._esm == NOTICE)
"""
RUN = """
name: one
data: iris
layers: [3]
batch: 30
epochs: 1
ranks: ["numpy:1"]
channel: inline
"""


@pytest.mark.parametrize("name", NAMES)
def test_a_module_is_whole_and_defines_nothing_twice(name: str, tmp_path: Path) -> None:
    module, style = front_end(name)
    assert not re.search(r"^import ", module, re.MULTILINE)
    assert re.findall(r"^export .*$", module, re.MULTILINE) == ["export default { render };"]
    assert ".aner {" in style
    assert "http" not in re.sub(r"http://www\.w3\.org/2000/svg", "", module + style)
    file = tmp_path / f"{name}.mjs"
    file.write_text(module)
    try:
        subprocess.run(["node", "--check", str(file)], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no Node here: the browser tests load the module too")


@pytest.mark.parametrize("name", NAMES)
def test_no_text_is_ever_put_in_as_markup(name: str) -> None:
    module, _ = front_end(name)
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert forbidden not in module


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package as the wheel brings it."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)],
        cwd=ROOT,
        env={**os.environ, "HATCH_BUILD_NO_HOOKS": "true"},  # what else is built is not looked at here
        check=True,
        capture_output=True,
    )
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def in_folder(site: Path, *arguments: str) -> str:
    """Run Python on the package in a folder, far from the checkout."""
    command = [sys.executable, "-P", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(site), "NO_COLOR": "1"}
    done = subprocess.run(command, cwd=site.parent, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded(site: Path) -> list[str]:
    notice = f"NOTICE = {front_end_notice()!r}\n"
    return in_folder(site, "-c", notice + WHAT_IS_LOADED).splitlines()


def front_end_notice() -> str:
    from aner_nb.front_ends import _notice

    return _notice(MISSING)


def test_the_wheel_has_every_front_end_and_loads_it(installed: Path) -> None:
    assert {"base.css", "case_picker.js", "dom.js"} <= FILES
    assert {path.name for path in (installed / "aner_nb" / "static").iterdir()} >= FILES
    assert loaded(installed) == [str(installed / "aner_nb" / "static"), *["True True False"] * 4]


def test_without_front_ends_a_widget_says_so_and_the_command_line_runs(
    installed: Path, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    shutil.copytree(installed, site)
    shutil.rmtree(site / "aner_nb" / "static")
    assert loaded(site) == ["None", *["False False True"] * 4]
    assert "lacks the widgets' front end" in front_end_notice()
    (tmp_path / "one.yaml").write_text(RUN)
    in_folder(site, "-m", "aner_nb.cli", "run", "one.yaml", "--out", "out")
    assert (tmp_path / "out" / "public" / "trials.jsonl").exists()
