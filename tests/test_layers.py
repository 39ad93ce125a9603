"""The shape of the code: imports point down the list in docs/architecture.md, and a few bans."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "aner_nb"
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
LIST = re.findall(r"^\| `([a-z_.]+)` \|", PAGE, re.MULTILINE)
LOOKED_UP = dict(re.findall(r"^- `([a-z_.]+)` looks up `([a-z_.]+)`: .{20}", PAGE, re.MULTILINE))
LONG = dict(re.findall(r"^- `([a-z_.]+)` is longer: (.+)$", PAGE, re.MULTILINE))
FILES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.name != "__init__.py"
}
PACKAGES = {
    ".".join(path.relative_to(ROOT).parent.parts): path for path in sorted(PACKAGE.rglob("__init__.py"))
}
ALL = FILES | PACKAGES
ONLY_IN = {
    "tensorflow": {"backends.tensorflow", "backends.keras"},
    "keras": {"backends.keras"},
    "dask": {"cluster", "launch", "dask_frames"},
    "distributed": {"cluster", "launch", "dask_frames"},
    "altair": {"charts", "report"},
    "ipywidgets": {"widgets"},
    "anywidget": {"widgets"},
    "traitlets": {"widgets"},
    "IPython": {"widgets", "magics"},
    "pickle": set(),
    "cloudpickle": set(),
    "marshal": set(),
}
SEAMS = {"backends.base", "channels.base", "collectives.base"}
READABLE, LONGEST = 400, 440  # lines; the page gives the reason of each module between the two
DYNAMIC = ("importlib.import_module", "import_module", "__import__")


def imported(path: Path) -> set[str]:
    """Return every module that a file imports, anywhere in it, by statement or by name."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno}: a relative import"
            assert node.module
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in DYNAMIC:
            names |= {item.value for item in node.args if isinstance(item, ast.Constant)}
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
    assert own(FILES[module]) - {LOOKED_UP.get(module)} <= above


@pytest.mark.parametrize("module", sorted(ALL))
def test_heavy_packages_stay_in_their_module(module: str) -> None:
    roots = {name.split(".")[0] for name in imported(ALL[module])}
    for package, allowed in ONLY_IN.items():
        assert package not in roots or module.split(".")[0] in allowed or module in allowed


@pytest.mark.parametrize("module", ["coordinator", "rank", "master"])
def test_the_loops_know_the_seams_and_no_implementation(module: str) -> None:
    inside = {name for name in own(FILES[module]) if "." in name}
    assert inside <= SEAMS


@pytest.mark.parametrize("module", sorted(FILES))
def test_no_file_is_too_long_to_read(module: str) -> None:
    lines = len(FILES[module].read_text("utf-8").splitlines())
    assert lines <= (LONGEST if module in LONG else READABLE)


def test_a_module_that_may_be_longer_exists_and_has_a_reason() -> None:
    assert set(LONG) <= set(FILES)
    assert all(len(reason) > 20 for reason in LONG.values())


@pytest.mark.parametrize("module", sorted(ALL))
def test_nothing_is_evaluated_or_global(module: str) -> None:
    for node in ast.walk(ast.parse(ALL[module].read_text("utf-8"))):
        assert not isinstance(node, ast.Global)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("eval", "exec", "compile")
