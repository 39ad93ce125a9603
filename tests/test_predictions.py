"""Predictions of a suite: kept before it runs, set beside what was measured afterwards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import aner_nb as aner
from aner_nb.charts import chart_svg
from aner_nb.errors import AnerError
from aner_nb.predictions import CasePrediction, Comparison, Predictions
from aner_nb.suites import Suite


def case(name: str, ranks: list[object]) -> aner.Case:
    return aner.Case(
        name, data=aner.digits(), layers=[32, 10], batch=120, epochs=2, dtype="float64", ranks=ranks
    )


@pytest.mark.cluster
def test_what_was_predicted_is_kept_and_compared_with_what_was_measured(
    cluster: aner.Cluster, tmp_path: Path
) -> None:
    chosen = Suite("two", (case("alone", ["numpy"]), case("uneven", ["numpy", ("numpy", 3)])), repetitions=1)
    before = aner.predict_suite(chosen, cluster, out=tmp_path)
    assert [found.update_s for found in before.cases] == [None, None]
    assert before.median_error is None
    alone, uneven = (found.predicted for found in before.cases)
    assert 0 < alone.update_s < alone.native_fit_s
    assert (alone.ratio, uneven.ratio is None) == (None, False)
    kept = (tmp_path / "predictions.json").read_bytes()
    study = aner.run_suite(chosen, cluster, out=tmp_path)
    after = aner.predict_suite(chosen, cluster, out=tmp_path)
    assert (tmp_path / "predictions.json").read_bytes() == kept
    fits = [summary.native_fit.median_ns / 1e9 for summary in study.summary().cases if summary.native_fit]
    assert [found.native_fit_s for found in after.cases] == fits
    assert all(found.error == found.predicted.native_fit_s / found.native_fit_s - 1 for found in after.cases)
    assert after.winners[1] == 1
    assert "alone" in str(after) and "of 1 groups" in str(after)
    assert "measured" in chart_svg(after.chart())
    assert not list(tmp_path.glob("public/*predict*"))


def prediction(ratio: float | None) -> CasePrediction:
    return CasePrediction("0" * 64, "case", 0.001, 0.0001, 1.2, ratio)


def test_errors_and_winners() -> None:
    found = Predictions(
        (
            Comparison(prediction(None), 0.001, 1.0, None),
            Comparison(prediction(1.3), 0.001, 2.0, 1.1),
            Comparison(prediction(0.9), 0.001, 1.2, 1.1),
            Comparison(prediction(1.5), None, None, None),
        )
    )
    assert found.median_error == pytest.approx(0.2)
    assert found.winners == (1, 2)


def test_damaged_predictions_are_named(tmp_path: Path) -> None:
    (tmp_path / "predictions.json").write_text(json.dumps({"cases": [{"case": 1}]}))
    with pytest.raises(AnerError, match=r"cannot be read.*afresh"):
        aner.predict_suite(Suite("one", (case("alone", ["numpy"]),)), out=tmp_path)
