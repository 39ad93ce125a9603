"""A study's own views: charts, the table of steps, the summary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import aner_nb as aner
from aner_nb.charts import chart_svg, darkened, svg_png
from aner_nb.store import StoreError
from tests.study_fixtures import make_study


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return make_study(tmp_path_factory.mktemp("study"))


@pytest.mark.parametrize("name", ["duration_chart", "validation_chart", "memory_chart", "scaling_chart"])
def test_each_chart_becomes_svg_and_png(study: Any, name: str) -> None:
    svg = chart_svg(getattr(study, name)())
    assert "pair-f64" in svg
    assert svg_png(svg).startswith(b"\x89PNG")
    assert "#111111" in darkened(svg)


def test_a_typical_update_can_be_seen(study: Any) -> None:
    assert "rank 1" in chart_svg(study.timeline_chart("pair-f64"))
    with pytest.raises(StoreError, match="there are no step columns of 'x', repetition 1. Cases: solo-f64"):
        study.timeline_chart("x")


def test_steps_load_as_a_table(study: Any) -> None:
    table = study.steps("pair-f64", 2)
    assert table.shape[0] == 9
    assert table["rank0_rows"].sum() + table["rank1_rows"].sum() == 270
    assert (table["coordinator_total_ns"] >= table["coordinator_exchange_ns"]).all()
    assert {"rank1_rank_compute_ns", "rank0_response_wait_ns", "loss"} <= set(table.columns)


def test_groups_are_compared_with_their_own_placements_alone(study: Any) -> None:
    summary = study.summary()
    pair = next(case for case in summary.cases if case.case == "pair-f64")
    solo = next(case for case in summary.cases if case.case == "solo-f64")
    assert pair.fit_comparison is not None
    assert pair.fit_comparison.baseline == "solo-f64"
    assert pair.fit_comparison.ratio == solo.native_fit.median_ns / pair.native_fit.median_ns
    assert pair.fit_comparison.ideal_ratio == 2.0
    assert pair.agreement is not None
    assert pair.agreement.agrees
    assert pair.agreement.reference == "solo-f64"


def test_a_study_of_private_arrays_can_be_opened_again(tmp_path: Path) -> None:
    case = aner.Case(
        "mine",
        data=aner.arrays([[0.0], [1.0], [2.0], [3.0], [4.0]] * 4, [0, 1, 0, 1, 0] * 4),
        layers=[2],
        batch=4,
        epochs=1,
        ranks=["numpy"],
        channel="inline",
    )
    from aner_nb.store import ResultsFolder

    folder = ResultsFolder(tmp_path)
    with folder.writing():
        folder.save_document("suite", aner.Suite("own", (case,)).to_record())
        folder.save(aner.run(case))
    kept = aner.open_study(tmp_path).suite.cases[0]
    assert kept.contract_id == case.contract_id
    with pytest.raises(aner.AnerError, match="results keep the fingerprint of your own rows"):
        kept.data.load()


def test_a_public_bundle_opens_as_the_study_that_it_was_made_from(study: Any, tmp_path: Path) -> None:
    bundle = aner.open_study(study.publish(tmp_path / "given"))
    assert bundle.rows() == study.rows()
    assert bundle.complete
    assert chart_svg(bundle.validation_chart()) == chart_svg(study.validation_chart())
    assert {receipt.status for receipt in bundle.receipts} == {"passed"}
    with pytest.raises(StoreError, match="there are no step columns"):
        bundle.steps("pair-f64")
    with pytest.raises(StoreError, match="this is a public bundle already"):
        bundle.publish()
    (tmp_path / "given" / "summaries.json").write_text("[]")
    with pytest.raises(StoreError, match="summaries.json does not fit its schema.*aner-nb verify"):
        bundle.rows()
    (tmp_path / "given" / "trials.jsonl").write_text('{"case": 1}\n')
    with pytest.raises(aner.AnerError, match="trials.jsonl:1: does not fit the schema"):
        aner.open_study(tmp_path / "given")


def test_the_shipped_bundle_opens_with_its_agreement() -> None:
    shipped = aner.open_study(Path(__file__).parents[1] / "docs" / "results" / "cpu")
    assert repr(shipped) == "<Study cpu: 57 measured trials of 19 cases>"
    assert len(shipped.rows()) == 19
    assert all(case.agreement is not None and case.agreement.agrees for case in shipped.summary().cases)
