"""The canonical state: float64 parameters and the optimizer's, on CPU, and one update of them."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aner_nb.collectives.base import Exchange
from aner_nb.optimizers import OptimizerSpec

_BLOCK: Final = 65_536
"""Parameters of one block: few enough for a processor's cache, many enough that the calls themselves cost little."""

_THREADED: Final = 131_072
"""From this many parameters on, a second thread does half of the blocks: ranks are idle at that moment."""


class MasterState:
    """Parameters and optimizer state; the only place where they change.

    Parameters
    ----------
    parameters : (parameters,) float64
        The initial vector; changed in place from then on.
    """

    def __init__(self, parameters: NDArray[np.float64], optimizer: OptimizerSpec) -> None:
        self.parameters = parameters
        self.optimizer = optimizer.init(parameters.size)
        self._spec = optimizer
        blocks = [slice(start, start + _BLOCK) for start in range(0, parameters.size, _BLOCK)]
        threads = 2 if parameters.size >= _THREADED and (os.cpu_count() or 1) > 1 else 1
        self._shares = [blocks[index::threads] for index in range(threads)]
        self._sums = [np.empty(min(_BLOCK, parameters.size)) for _ in range(threads)]
        self._pool = ThreadPoolExecutor(threads - 1, "aner-master") if threads > 1 else None

    def restore(
        self, parameters: NDArray[np.float64], slots: tuple[NDArray[np.float64], ...], count: int
    ) -> None:
        """Take over the state of a checkpoint."""
        self.parameters[:] = parameters
        for own, kept in zip(self.optimizer.slots, slots, strict=True):
            own[:] = kept
        self.optimizer.count = count

    def write_to(self, wire: NDArray[np.floating]) -> None:
        """Write the parameters to the wire vector, rounded to its dtype."""
        np.copyto(wire, self.parameters, casting="same_kind")

    def apply(self, exchange: Exchange, wire: NDArray[np.floating]) -> None:
        """Add the ranks' sums, take the mean over the rows, step, and write the result to the wire.

        All of it block by block, while a block is in the cache. Every operation is elementwise, so the result
        depends neither on the blocks nor on the threads.
        """
        self.optimizer.count += 1
        if self._pool is None:
            self._apply_share(0, exchange, wire)
            return
        other = self._pool.submit(self._apply_share, 1, exchange, wire)
        self._apply_share(0, exchange, wire)
        other.result()

    def _apply_share(self, share: int, exchange: Exchange, wire: NDArray[np.floating]) -> None:
        scale = 1.0 / exchange.rows
        for block in self._shares[share]:
            parameters = self.parameters[block]
            gradient = self._sums[share][: parameters.size]
            exchange.sum_into(block, gradient)
            gradient *= scale
            self._spec.update(parameters, gradient, self.optimizer.block(block))
            np.copyto(wire[block], parameters, casting="same_kind")

    def close(self) -> None:
        """End the second thread."""
        if self._pool is not None:
            self._pool.shutdown()
