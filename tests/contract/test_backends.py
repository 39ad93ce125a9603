"""What every backend promises: the reference's gradients, proof of the device, one trace, no copy left behind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aner_nb.backends.base import AbstractGradientFunction, Partition
from aner_nb.backends.numpy import NumpyGradientFunction
from aner_nb.case import Placement
from aner_nb.channels.shared_memory import aligned_wire
from aner_nb.errors import BackendUnavailable
from aner_nb.layers import Dense
from aner_nb.model import Model, gradient_sum

BLOCKS = [(0, 16), (16, 32), (32, 37), (5, 5)]
WAYS = [
    pytest.param("numpy", True, id="numpy"),
    pytest.param("cpu", True, id="tensorflow-resident", marks=pytest.mark.tensorflow),
    pytest.param("cpu", False, id="tensorflow-streamed", marks=pytest.mark.tensorflow),
]


def make(
    backend: str, resident: bool, dtype: str, loss: str = "softmax_cross_entropy", activation: str = "tanh"
) -> tuple[AbstractGradientFunction, Model, Partition, np.ndarray]:
    random = np.random.default_rng(5)
    model = Model(7, (Dense(6, activation), Dense(4, "linear")), loss)  # type: ignore[arg-type]
    features = random.standard_normal((37, 7)).astype(dtype)
    if loss == "softmax_cross_entropy":
        targets: np.ndarray[Any, Any] = random.integers(0, 4, 37).astype(np.int32)
    else:
        targets = random.standard_normal((37, 4)).astype(dtype)
    partition = Partition(features, targets)
    wire = aligned_wire(model.layout.size, dtype)
    wire[:] = model.initial(1) + 0.1 * random.standard_normal(model.layout.size)
    if backend == "numpy":
        return NumpyGradientFunction(model, partition), model, partition, wire
    from aner_nb.backends.tensorflow import TensorflowGradientFunction

    placement = Placement.parse("cpu:1")
    function = TensorflowGradientFunction(model, partition, placement, blocks=BLOCKS, resident=resident)
    return function, model, partition, wire


@pytest.mark.parametrize(("backend", "resident"), WAYS)
@pytest.mark.parametrize("loss", ["softmax_cross_entropy", "mean_squared_error"])
@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid", "linear"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 2e-5)])
def test_gradients_are_the_references(
    backend: str, resident: bool, loss: str, activation: str, dtype: str, tolerance: float
) -> None:
    function, model, partition, wire = make(backend, resident, dtype, loss, activation)
    out, expected = np.full(wire.size, np.nan), np.empty(wire.size)
    for start, stop in BLOCKS:
        part = function(wire, (start, stop), out)
        reference = gradient_sum(
            model,
            wire.astype(np.float64),
            partition.features[start:stop].astype(np.float64),
            partition.targets[start:stop],
            expected,
        )
        assert part.rows == stop - start
        assert part.gradient is out
        np.testing.assert_allclose(out, expected, rtol=tolerance, atol=tolerance * 10)
        assert part.loss_sum == pytest.approx(reference, rel=1e-5, abs=1e-9)
        assert len(part.phases_ns) == 4
        assert min(part.phases_ns) >= 0
    assert function.trace_count == 1
    function.close()


@pytest.mark.parametrize(("backend", "resident"), WAYS)
def test_new_values_in_the_same_wire_are_seen(backend: str, resident: bool) -> None:
    function, _, _, wire = make(backend, resident, "float32")
    first, second = np.empty(wire.size), np.empty(wire.size)
    function(wire, (0, 16), first)
    wire *= 0.5
    function(wire, (0, 16), second)
    assert not np.allclose(first, second)


@pytest.mark.parametrize(("backend", "resident"), WAYS)
def test_the_proof_names_the_device_of_every_operation(backend: str, resident: bool) -> None:
    proof = make(backend, resident, "float32")[0].proof
    assert proof.produced_on == (proof.requested,) == ("CPU:0",)
    assert set(proof.operations_on) == {"CPU:0"}
    assert proof.operations_on["CPU:0"] > 5
    assert not proof.emulated


@pytest.mark.tensorflow
def test_resident_and_streamed_rows_give_the_same_bits() -> None:
    sums = []
    for resident in (True, False):
        function, _, _, wire = make("cpu", resident, "float32")
        out = np.empty(wire.size)
        function(wire, (16, 32), out)
        sums.append(out)
    np.testing.assert_array_equal(*sums)


@pytest.mark.tensorflow
def test_a_process_runs_with_one_count_of_threads() -> None:
    from aner_nb.backends.tensorflow import configure

    make("cpu", True, "float32")
    with pytest.raises(BackendUnavailable, match="already runs in this process with other settings"):
        configure(Placement.parse("cpu:2"))


@pytest.mark.tensorflow
def test_a_device_that_is_not_there_is_named() -> None:
    from aner_nb.backends.tensorflow import configure

    with pytest.raises(BackendUnavailable, match=r"cuda:5|other settings"):
        configure(Placement.parse("cuda:5"))
