"""A training that is killed and resumed ends with the bits of one that nobody killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.restarts import kill_and_resume

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]


def test_three_killed_trainings_end_with_the_same_bits(tmp_path: Path) -> None:
    found = kill_and_resume(3, tmp_path)
    assert found.struck == 3
    assert found.resumed >= 1
    assert found.identical == 3
