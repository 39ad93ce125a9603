"""The master state: one fused pass equals plain NumPy to the bit, whatever the blocks and threads."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from aner_nb import master as module
from aner_nb.backends.base import GradientSum
from aner_nb.collectives.base import Exchange
from aner_nb.master import MasterState, Shaping
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


def test_any_number_of_threads_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 5 * module._BLOCK + 5
    random = np.random.default_rng(0)
    start, parts, ends = random.standard_normal(size), random.standard_normal((3, size)), set()
    for cores in (1, 2, 3, 5):
        monkeypatch.setattr(module.machine, "usable_cores", lambda cores=cores: cores)
        wire = np.zeros(size, np.float32)
        with closing(MasterState(start.copy(), Adam())) as state:
            assert len(state._shares) == cores
            for _ in range(3):
                state.apply(exchange(parts, 10), wire)
            ends.add((state.parameters.tobytes(), wire.tobytes()))
    assert len(ends) == 1


def test_threads_are_no_more_than_cores_blocks_and_eight(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, size, expected in (
        (64, module._THREADED - 1, 1),
        (64, module._THREADED, 2),
        (64, 20 * module._BLOCK, 8),
        (3, 20 * module._BLOCK, 3),
    ):
        monkeypatch.setattr(module.machine, "usable_cores", lambda cores=cores: cores)
        with closing(MasterState(np.zeros(size), SGD())) as state:
            assert len(state._shares) == expected
            assert sum(len(share) for share in state._shares) == -(-size // module._BLOCK)


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


def test_an_error_in_another_thread_is_not_lost() -> None:
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


def shaped(size: int, clip: float | None, *, l2: bool) -> tuple[np.ndarray, list[float]]:
    """Return the parameters and penalties of three updates."""
    random = np.random.default_rng(5)
    start, weights = random.standard_normal(size), random.random(size)
    penalties, wire = [], np.zeros(size)
    with closing(MasterState(start, SGD(0.1, 0.5), Shaping(clip, weights if l2 else None))) as state:
        for _ in range(3):
            penalties.append(state.apply(exchange(random.standard_normal((2, size)), 4), wire))
        np.testing.assert_array_equal(wire, state.parameters)
    return state.parameters, penalties


@pytest.mark.parametrize("size", [1, 4097, 2 * module._CHUNK + 1])
@pytest.mark.parametrize(("clip", "l2"), [(0.5, False), (None, True), (0.5, True), (1e9, True)])
def test_clipping_and_l2_are_those_of_plain_numpy(size: int, clip: float | None, l2: bool) -> None:  # noqa: FBT001
    random = np.random.default_rng(5)
    parameters, weights = random.standard_normal(size), random.random(size) * l2
    velocity, penalties = np.zeros(size), []
    for _ in range(3):
        gradient = random.standard_normal((2, size)).sum(axis=0) / 8 + 2 * weights * parameters
        penalties.append(float(np.sum(weights * parameters**2)))
        norm = float(np.linalg.norm(gradient))
        if clip is not None and norm > clip:
            gradient *= clip / norm
        velocity = 0.5 * velocity - 0.1 * gradient
        parameters = parameters + velocity
    found, told = shaped(size, clip, l2=l2)
    np.testing.assert_allclose(found, parameters, rtol=1e-12, atol=1e-14)
    assert told == pytest.approx(penalties, rel=1e-12)


@pytest.mark.parametrize("block", [module._CHUNK, 3 * module._CHUNK])
@pytest.mark.parametrize("cores", [1, 2, 3, 5])
def test_a_norm_depends_neither_on_blocks_nor_on_threads(
    block: int, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = module._THREADED + 5
    expected, penalties = shaped(size, 0.5, l2=True)
    monkeypatch.setattr(module, "_BLOCK", block)
    monkeypatch.setattr(module.machine, "usable_cores", lambda: cores)
    found, told = shaped(size, 0.5, l2=True)
    assert (found.tobytes(), told) == (expected.tobytes(), penalties)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_is_not_hidden_by_clipping(bad: float) -> None:
    parts = np.array([[1.0, bad]])
    with closing(MasterState(np.zeros(2), SGD(0.1), Shaping(clip_norm=1.0))) as state:
        state.apply(exchange(parts, 1), np.zeros(2))
        assert np.isnan(state.parameters).all()


def test_a_gradient_within_its_bound_keeps_its_bits() -> None:
    parts = np.array([[3.0, 4.0]])
    ends = []
    for shaping in (Shaping(), Shaping(clip_norm=5.0), Shaping(clip_norm=2.5)):
        with closing(MasterState(np.zeros(2), SGD(0.1), shaping)) as state:
            state.apply(exchange(parts, 1), np.zeros(2))
            ends.append(state.parameters.tolist())
    assert ends[0] == ends[1]
    assert ends[2] == pytest.approx([-0.15, -0.2])
