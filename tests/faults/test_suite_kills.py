"""A suite that is killed again and again loses nothing and repeats nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.suite_kills import kill_at_random

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(400)]


def test_kills_lose_no_finished_trial_and_repeat_none(tmp_path: Path) -> None:
    found = kill_at_random(6, tmp_path)
    assert found.within_a_trial > 0
    assert (found.changed, found.repeated, found.left_over) == (0, 0, 0)
    assert found.passed == found.planned
    assert found.findings == ()
