"""The master state: one fused pass equals plain NumPy to the bit, whatever the blocks and threads."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from aner_nb import master as module
from aner_nb.backends.base import GradientSum
from aner_nb.collectives.base import Exchange
from aner_nb.master import MasterState
from aner_nb.optimizers import SGD, Adam


def exchange(parts: np.ndarray, rows: int) -> Exchange:
    sums = tuple(GradientSum(rows, 0.0, part, ()) for part in parts)
    return Exchange(rows * len(parts), 0.0, sums, (), ())


@pytest.mark.parametrize("size", [1, 1000, module._BLOCK - 1, module._BLOCK + 1, module._THREADED + 5])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_step_is_that_of_plain_numpy(size: int, count: int) -> None:
    random = np.random.default_rng(size)
    start, parts = random.standard_normal(size), random.standard_normal((count, size))
    wire = np.zeros(size, np.float32)
    with closing(MasterState(start.copy(), SGD(0.1))) as state:
        state.apply(exchange(parts, 10), wire)
        total = parts[0].copy()
        for part in parts[1:]:
            total += part
        expected = start - (total * (1.0 / (10 * count))) * 0.1
        np.testing.assert_array_equal(state.parameters, expected)
        np.testing.assert_array_equal(wire, expected.astype(np.float32))


def test_a_restored_state_goes_on_as_if_nothing_had_been() -> None:
    random = np.random.default_rng(0)
    start, wire = random.standard_normal(50), np.zeros(50)
    gradients = random.standard_normal((6, 1, 50))
    with closing(MasterState(start.copy(), Adam())) as whole, closing(MasterState(start.copy(), Adam())) as other:
        for parts in gradients[:3]:
            whole.apply(exchange(parts, 4), wire)
        other.restore(whole.parameters.copy(), tuple(slot.copy() for slot in whole.optimizer.slots), 3)
        for parts in gradients[3:]:
            whole.apply(exchange(parts, 4), wire)
            other.apply(exchange(parts, 4), wire)
        np.testing.assert_array_equal(whole.parameters, other.parameters)
