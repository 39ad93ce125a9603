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
    with (
        closing(MasterState(start.copy(), Adam())) as whole,
        closing(MasterState(start.copy(), Adam())) as other,
    ):
        for parts in gradients[:3]:
            whole.apply(exchange(parts, 4), wire)
        other.restore(whole.parameters.copy(), tuple(slot.copy() for slot in whole.optimizer.slots), 3)
        for parts in gradients[3:]:
            whole.apply(exchange(parts, 4), wire)
            other.apply(exchange(parts, 4), wire)
        np.testing.assert_array_equal(whole.parameters, other.parameters)


SPECS = [SGD(0.1), SGD(0.1, momentum=0.9), SGD(0.1, momentum=0.9, nesterov=True), Adam(0.01)]


@pytest.mark.parametrize("size", [module._BLOCK, 2 * module._BLOCK + 1, module._THREADED])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_three_steps_of_any_optimizer_are_those_of_the_whole_vector(spec: SGD | Adam, size: int) -> None:
    random = np.random.default_rng(size)
    start = random.standard_normal(size)
    plain, remembered = start.copy(), spec.init(size)
    wire = np.zeros(size)
    with closing(MasterState(start, spec)) as state:
        for rows in (7, 30, 1):
            parts = random.standard_normal((2, size))
            state.apply(exchange(parts, rows), wire)
            remembered.count += 1
            spec.update(plain, (parts[0] + parts[1]) * (1.0 / (2 * rows)), remembered)
            np.testing.assert_array_equal(state.parameters, plain)
            np.testing.assert_array_equal(wire, plain)
        assert state.optimizer.count == 3
        for own, other in zip(state.optimizer.slots, remembered.slots, strict=True):
            np.testing.assert_array_equal(own, other)


def test_one_thread_and_two_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    size = module._THREADED + 5
    random = np.random.default_rng(0)
    start, parts, ends = random.standard_normal(size), random.standard_normal((3, size)), []
    for cores in (1, 8):
        monkeypatch.setattr(module.os, "cpu_count", lambda cores=cores: cores)
        wire = np.zeros(size, np.float32)
        with closing(MasterState(start.copy(), Adam())) as state:
            assert len(state._shares) == min(cores, 2)
            for _ in range(3):
                state.apply(exchange(parts, 10), wire)
            ends.append((state.parameters.tobytes(), wire.tobytes()))
    assert ends[0] == ends[1]


def test_sums_are_added_in_rank_order() -> None:
    # 1e16 + 1 is 1e16: only ((1e16 - 1e16) + 1) is 1.
    wire = np.zeros(1)
    with closing(MasterState(np.zeros(1), SGD(1.0))) as state:
        state.apply(exchange(np.array([[1e16], [-1e16], [1.0]]), 1), wire)
        assert state.parameters.tolist() == [-1 / 3]
        state.apply(exchange(np.array([[1e16], [1.0], [-1e16]]), 1), wire)
        assert state.parameters.tolist() == [-1 / 3]
        state.apply(exchange(np.array([[0.0], [0.0], [1e16], [-1e16], [5.0]]), 1), wire)
        assert state.parameters.tolist() == [-1 / 3 - 1.0]


def test_the_ranks_sums_are_left_as_they_were() -> None:
    parts = np.arange(6.0).reshape(2, 3)
    with closing(MasterState(np.zeros(3), Adam())) as state:
        state.apply(exchange(parts, 1), np.zeros(3))
    assert parts.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


def test_the_wire_has_the_parameters_rounded_to_its_type() -> None:
    wire = np.zeros(2, np.float32)
    with closing(MasterState(np.array([1 / 3, 1e-3]), SGD())) as state:
        state.write_to(wire)
    assert wire.tolist() == [np.float32(1 / 3), np.float32(1e-3)]


def test_an_error_in_the_second_thread_is_not_lost() -> None:
    size = module._THREADED
    parts = np.zeros((1, size))
    with closing(MasterState(np.zeros(size), SGD())) as state:
        if state._pool is None:
            pytest.skip("one core: there is no second thread")
        state._shares[1] = ["no block"]  # type: ignore[list-item]
        with pytest.raises(IndexError, match="valid indices"):
            state.apply(exchange(parts, 1), np.zeros(size))


def test_a_checkpoint_of_another_optimizer_cannot_be_restored() -> None:
    with closing(MasterState(np.zeros(3), Adam())) as state:
        with pytest.raises(ValueError, match="shorter"):
            state.restore(np.ones(3), (np.ones(3),), 4)
