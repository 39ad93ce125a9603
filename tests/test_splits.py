"""Splits by group and by time, for any rows."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import aner_nb as aner
from aner_nb.errors import CaseError
from aner_nb.sources import Source, make_source
from aner_nb.splits import Split, split


def source_of(**more: Any) -> Source:
    rows = len(next(iter(more.values())))
    codes = {
        name: np.unique(values, return_inverse=True)[1].astype(np.int64) for name, values in more.items()
    }
    return make_source(np.arange(rows, dtype=np.float64)[:, None], np.zeros((rows, 1)), **codes)


def parts_of(divided: Split) -> list[np.ndarray]:
    return [divided.train, divided.validation, divided.test]


def ends(rows: int) -> tuple[int, int]:
    """Return where training and validation end among rows that nothing holds together."""
    parts = parts_of(split(source_of(order=range(rows))))
    return len(parts[0]), len(parts[0]) + len(parts[1])


def check_whole(divided: Split, rows: int) -> None:
    parts = parts_of(divided)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(rows))
    for part in parts:
        assert len(part) and part.dtype == np.int64
        np.testing.assert_array_equal(part, np.sort(part))


@given(st.lists(st.integers(0, 12), min_size=5, max_size=80), st.integers(0, 9))
def test_no_group_is_in_two_parts_and_no_part_exceeds_its_share_by_more_than_a_group(
    groups: list[int], seed: int
) -> None:
    assume(len(set(groups)) >= 3)
    divided = split(source_of(groups=groups), seed=seed)
    check_whole(divided, len(groups))
    held = [set(np.array(groups)[part].tolist()) for part in parts_of(divided)]
    assert not (held[0] & held[1] or held[0] & held[2] or held[1] & held[2])
    largest = max(groups.count(group) for group in groups)
    for part, share in zip(parts_of(divided), (0.6, 0.2, 0.2), strict=True):
        assert len(part) <= len(groups) * share + 1 + largest


@given(st.lists(st.integers(0, 30), min_size=5, max_size=80), st.integers(0, 9))
def test_training_comes_before_validation_and_validation_before_test(when: list[int], seed: int) -> None:
    ordered = sorted(when)
    cuts = [bisect_right(ordered, ordered[last - 1]) for last in ends(len(when))]
    if len({0, *cuts, len(when)}) < 4:
        with pytest.raises(CaseError, match="too many rows have one place in the order"):
            split(source_of(order=when), seed=seed)
        return
    divided = split(source_of(order=when), seed=seed)
    check_whole(divided, len(when))
    times = [np.array(when)[part] for part in parts_of(divided)]
    assert times[0].max() < times[1].min() and times[1].max() < times[2].min()


@given(st.permutations(range(40)))
def test_distinct_times_give_the_exact_shares_whatever_the_seed(when: list[int]) -> None:
    divided = split(source_of(order=when), seed=1)
    assert [len(part) for part in parts_of(divided)] == [24, 8, 8]
    np.testing.assert_array_equal(divided.test, split(source_of(order=when), seed=2).test)


def test_groups_come_in_a_seeded_order() -> None:
    groups = [row % 20 for row in range(100)]
    one, again, other = (split(source_of(groups=groups), seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.test, again.test)
    assert one.test.tolist() != other.test.tolist()
    assert [len(part) for part in parts_of(one)] == [60, 20, 20]


def test_two_groups_cannot_give_three_parts() -> None:
    with pytest.raises(CaseError, match="2 groups cannot give rows to 3 parts. Name a column with three"):
        split(source_of(groups=[0, 1] * 5))


def test_rows_of_one_time_stay_together() -> None:
    with pytest.raises(
        CaseError, match="so that none is left for validation. Name a column with finer values"
    ):
        split(source_of(order=[0] * 5 + [1] * 5))


def test_tables_name_the_column_of_groups_or_of_time() -> None:
    days = [f"2026-{1 + row // 28:02}-{1 + row % 28:02}" for row in range(90)][::-1]
    base: dict[str, Any] = {"x": np.arange(90.0), "y": [0, 1] * 45}
    by_time = aner.table({**base, "day": days}, target="y", order="day")
    assert by_time.to_record()["split_by"] == "order"
    assert by_time.to_record()["features"] == 1
    divided = split(by_time.load())
    assert divided.test.tolist() == list(range(18)) and divided.train.min() == 36
    patients = [f"patient {row % 10}" for row in range(90)]
    by_group = aner.table({**base, "patient": patients}, target="y", groups="patient")
    assert by_group.to_record()["split_by"] == "groups"
    held = [set(np.array(patients)[part]) for part in parts_of(split(by_group.load()))]
    assert sum(map(len, held)) == 10


def test_a_date_that_cannot_be_read_is_refused() -> None:
    frame = {"x": np.arange(4.0), "y": [0, 1, 0, 1], "day": ["2026-01-01", "2026-02-30"] * 2}
    with pytest.raises(CaseError, match="the column 'day' holds a date that cannot be read"):
        aner.table(frame, target="y", order="day")
