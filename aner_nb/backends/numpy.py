"""Gradients with NumPy alone: the reference, and ranks where TensorFlow is not installed."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from aner_nb.backends.base import AbstractGradientFunction, DeviceProof, DrawMasks, GradientSum, Partition
from aner_nb.network import Network


class NumpyGradientFunction(AbstractGradientFunction):
    """The canonical reference as a backend."""

    def __init__(self, model: Network, partition: Partition, draw: DrawMasks | None = None) -> None:
        self._draw = draw
        self._model = model
        self._partition = partition
        self.proof = DeviceProof(
            requested="CPU:0",
            produced_on=("CPU:0",),
            operations_on={"CPU:0": len(model.operations())},
            framework=f"numpy {np.__version__}",
        )
        self.compile_ns = 0
        self.trace_count = 1

    def __call__(
        self,
        parameters: NDArray[np.floating],
        block: tuple[int, int],
        out: NDArray[np.float64],
        update: int = 0,
    ) -> GradientSum:
        start, stop = block
        began = time.perf_counter_ns()
        loss = self._model.gradient_sum(
            parameters,
            self._partition.features[start:stop],
            self._partition.targets[start:stop],
            out,
            self._draw(update, block) if self._draw is not None else (),
        )
        spent = time.perf_counter_ns() - began
        return GradientSum(stop - start, loss, out, (0, spent, 0, spent))

    def device_bytes(self) -> dict[str, int | None]:
        """NumPy has no device of its own."""
        return {"current": None, "peak": None}

    def close(self) -> None:
        """Nothing is held."""
