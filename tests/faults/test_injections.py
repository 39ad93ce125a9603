"""One fault of each kind that needs no hosts of its own; the script beside this injects hundreds."""

from __future__ import annotations

import pytest

from tests.faults.injections import inject

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    "kind",
    [
        "rank killed",
        "scheduler killed",
        *(
            pytest.param(kind, marks=pytest.mark.long)
            for kind in (
                "rank frozen",
                "out of memory",
                "worker leaves during placement",
                "coordinator killed",
            )
        ),
    ],
)
def test_a_fault_is_seen_named_and_leaves_nothing(kind: str) -> None:
    (found,) = inject(1, 5, [kind], 100)
    assert (found.hung, found.lost, found.wrong, found.left_over) == (False, 0, 0, 0)
    assert found.named
    assert found.seconds < 5
