"""The shape of the code: imports point down the list in docs/architecture.md, and a few bans."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "aner_nb"
LIST = re.findall(r"^\| `([a-z_.]+)` \|", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE)
FILES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.name != "__init__.py"
}
ONLY_IN = {
    "tensorflow": {"backends.tensorflow"},
    "keras": {"backends.tensorflow"},
    "dask": {"cluster", "launch"},
    "distributed": {"cluster", "launch"},
    "altair": {"charts", "report"},
    "ipywidgets": {"widgets"},
    "anywidget": {"widgets"},
    "traitlets": {"widgets"},
    "pickle": set(),
    "cloudpickle": set(),
    "marshal": set(),
}
SEAMS = {"backends.base", "channels.base", "collectives.base"}


def imported(path: Path) -> set[str]:
    """Return every module that a file imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def own(path: Path) -> set[str]:
    """Return the modules of the package that a file imports."""
    names = {name.removeprefix("aner_nb.") for name in imported(path) if name.startswith("aner_nb.")}
    return names & set(FILES)


def test_every_module_is_in_the_list_and_the_list_names_no_other() -> None:
    assert sorted(LIST) == sorted(FILES)


@pytest.mark.parametrize("module", sorted(FILES))
def test_imports_point_down_the_list(module: str) -> None:
    above = set(LIST[: LIST.index(module)])
    assert own(FILES[module]) <= above


@pytest.mark.parametrize("module", sorted(FILES))
def test_heavy_packages_stay_in_their_module(module: str) -> None:
    roots = {name.split(".")[0] for name in imported(FILES[module])}
    for package, allowed in ONLY_IN.items():
        assert package not in roots or module.split(".")[0] in allowed or module in allowed


@pytest.mark.parametrize("module", ["coordinator", "rank", "master"])
def test_the_loops_know_the_seams_and_no_implementation(module: str) -> None:
    inside = {name for name in own(FILES[module]) if "." in name}
    assert inside <= SEAMS


@pytest.mark.parametrize("module", sorted(FILES))
def test_no_file_is_too_long_to_read(module: str) -> None:
    assert len(FILES[module].read_text().splitlines()) <= 420


@pytest.mark.parametrize("module", sorted(FILES))
def test_nothing_is_evaluated_or_global(module: str) -> None:
    for node in ast.walk(ast.parse(FILES[module].read_text())):
        assert not isinstance(node, ast.Global)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("eval", "exec", "compile")
