"""The table of a study: one row a case, the same figures in every format."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import pandas
import pytest
from rich.console import Console

from aner_nb.analysis import StudySummary
from aner_nb.errors import CaseError
from aner_nb.tables import HEAD, Row, csv_of, frame_of, latex_of, markdown_of, rich_table, rows_of, table_text
from tests.study_fixtures import make_study, suite

HOSTILE = Row(
    case="a|b_c <script>&50% {x}\n~^\\",
    ranks="cpu:1 ×2 + cpu:1",
    dtype="float32",
    native_fit=1.5,
    native_fit_minimum=1.25,
    native_fit_maximum=1234.5,
    ratio=1.5,
    baseline="b",
    test=0.5,
    classifies=True,
    agrees=False,
    difference=0.25,
    trials=3,
    status="passed",
)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Any:
    only = suite().select(names=["solo-f64", "unequal-f64"])
    return make_study(tmp_path_factory.mktemp("study"), chosen=only)


def test_the_frame_has_the_figures_of_the_summary(study: Any) -> None:
    table, summary = study.table(), study.summary()
    assert list(table.index) == ["solo-f64", "unequal-f64"]
    for case in summary.cases:
        row = table.loc[case.case]
        assert row["native_fit_s"] == case.native_fit.median_ns / 1e9
        assert row["native_fit_minimum_s"] == case.native_fit.minimum_ns / 1e9
        assert row["complete_command_maximum_s"] == case.complete_command.maximum_ns / 1e9
        assert row["largest_rank_rss_mib"] == case.memory.worker_rss_bytes / 2**20
        assert row["test"] == case.test_accuracy
        assert row["difference"] == case.agreement.maximum_relative
        assert (row["trials"], row["status"]) == (3, "passed")
    group = summary.cases[1]
    assert table.loc["unequal-f64", "ratio"] == group.fit_comparison.ratio
    assert table.loc["unequal-f64", "command_ratio"] == group.command_comparison.ratio
    assert table.loc["unequal-f64", "baseline"] == "solo-f64"
    assert pandas.isna(table.loc["solo-f64", "ratio"])
    assert table.loc["unequal-f64", "ranks"] == "numpy ×1 + numpy ×7"


def test_csv_reads_back_as_the_frame(study: Any, tmp_path: Path) -> None:
    read = pandas.read_csv(study.save_table(tmp_path / "table.csv"), index_col="case")
    pandas.testing.assert_frame_equal(
        read[["native_fit_s", "trials", "status"]], study.table()[["native_fit_s", "trials", "status"]]
    )


def test_markdown_has_one_line_a_case(study: Any, tmp_path: Path) -> None:
    lines = study.save_table(tmp_path / "table.md").read_text().splitlines()
    assert len(lines) == 2 + 2
    assert all(line.count(" | ") == len(HEAD) - 1 for line in lines)
    assert lines[2].startswith("| solo-f64 | numpy | ")


def test_names_never_become_markup() -> None:
    markdown, latex = markdown_of([HOSTILE]), latex_of([HOSTILE])
    assert markdown.splitlines()[2].startswith(r"| a\|b\_c \<script\>\&50% {x} \~^\\ | ")
    assert r"a\textbar{}b\_c \textless{}script\textgreater{}\&50\% \{x\} \textasciitilde{}" in latex
    assert r"cpu:1 $\times$2 + cpu:1" in latex
    assert r"1.500 [1.250 : 1234.500]" in latex
    assert r"1.50$\times$ & 50.00\% & NO, 2.5e-01" in latex
    assert pandas.read_csv(io.StringIO(csv_of([HOSTILE])))["case"][0] == HOSTILE.case


def test_a_case_without_trials_says_why() -> None:
    row = dataclasses.replace(HOSTILE, trials=0, native_fit=None, status="not run: no CUDA device")
    assert row.cells()[2] == ""
    assert row.cells()[-1] == "not run: no CUDA device"
    assert frame_of([row])["status"].item() == "not run: no CUDA device"


def test_cases_that_have_not_run_yet_are_there() -> None:
    rows = rows_of(StudySummary(cases=(), warnings=()), suite().cases)
    assert [row.status for row in rows] == ["not yet run"] * 4


def test_an_unknown_suffix_is_refused() -> None:
    with pytest.raises(
        CaseError, match=r"there is no table format '\.xls'\. End the name in \.csv, \.md, \.tex"
    ):
        table_text([HOSTILE], ".xls")


@pytest.mark.parametrize("width", [80, 100, 140])
def test_the_terminals_table_cuts_no_figure_off(study: Any, width: int) -> None:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(rich_table("small", study.rows(), width))
    text = console.export_text()
    assert "…" not in text
    squeezed = "".join(text.split())
    for row in study.rows():
        assert row.case in text
        assert f"{row.native_fit:.3f}" in squeezed
    assert ("complete command" in text.split("A wider")[0]) == (width >= 132)
