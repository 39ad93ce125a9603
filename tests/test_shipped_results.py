"""What the repository says of the results that it ships is what the results say."""

from __future__ import annotations

import re
from pathlib import Path

import aner_nb as aner
from aner_nb.verification import verify

_ROOT = Path(__file__).parent.parent
_BUNDLE = _ROOT / "docs" / "results" / "cpu"


def test_the_shipped_bundle_verifies_and_is_small() -> None:
    assert verify(_BUNDLE) == []
    assert sum(path.stat().st_size for path in _BUNDLE.rglob("*") if path.is_file()) <= 2 * 2**20


def test_the_readme_states_the_bundles_groups() -> None:
    summary = aner.open_study(_BUNDLE).summary()
    groups = [case for case in summary.cases if len(case.placements) > 1]
    ratios = [case.fit_comparison.ratio for case in groups if case.fit_comparison]
    said = re.search(
        r"(\d+) of (\d+) groups beat their fastest standalone placement there, ([\d.]+) to ([\d.]+) times",
        (_ROOT / "README.md").read_text().replace("\n", " "),
    )
    assert said is not None
    assert said.groups() == (
        str(sum(ratio > 1 for ratio in ratios)),
        str(len(groups)),
        f"{min(ratios):.2f}",
        f"{max(ratios):.2f}",
    )
