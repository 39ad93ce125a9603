"""The code of the guide runs: the blocks of a page one after the other, as a reader would type them."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import aner_nb as aner

mktestdocs = pytest.importorskip("mktestdocs")

DOCS = Path(__file__).parent.parent / "docs"
NOT_RUN = {
    "clusters.md": "its blocks connect to machines that are not here; tests/hosts does what they say",
    "widgets.md": "its blocks show widgets; the browser tests drive them",
}
PAGES = sorted(page.name for page in DOCS.glob("*.md") if "```python" in page.read_text("utf-8"))


@pytest.mark.parametrize("page", [page for page in PAGES if page not in NOT_RUN])
def test_the_code_of_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mktestdocs.check_md_file(DOCS / page, memory=True)


def test_the_reference_names_what_is_public_and_nothing_else() -> None:
    told = re.findall(r"^::: (\S+)$", (DOCS / "api.md").read_text("utf-8"), re.MULTILINE)
    homes = {path.rpartition(".")[2]: importlib.import_module(path.rpartition(".")[0]) for path in told}
    assert sorted(homes) == sorted(set(aner.__all__) - {"__version__"})
    assert all(getattr(home, name) is getattr(aner, name) for name, home in homes.items())


def test_pages_that_are_not_run_have_code_and_a_reason() -> None:
    assert set(NOT_RUN) <= set(PAGES)
