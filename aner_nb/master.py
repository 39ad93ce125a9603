"""The canonical state: float64 parameters and the optimizer's, on CPU, and one update of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aner_nb import machine
from aner_nb.collectives.base import Exchange
from aner_nb.optimizers import OptimizerSpec

_BLOCK: Final = 65_536
"""Parameters of one block: few enough for a processor's cache, many enough that the calls themselves cost little."""

_THREADED: Final = 131_072
"""From this many parameters on, further threads share the blocks: ranks are idle at that moment."""

_MOST_THREADS: Final = 8
"""More of them wait for memory and not for each other."""

_CHUNK: Final = 4096
"""Parameters whose squares are summed together: blocks hold whole chunks, and chunks' sums are added exactly, so
that a norm depends neither on the blocks nor on the threads."""


@dataclass(frozen=True, slots=True)
class Shaping:
    """What is done to the mean gradient before the optimizer sees it; the ranks know nothing of it."""

    clip_norm: float | None = None
    """Longest gradient, as Keras's ``global_clipnorm``."""
    l2: NDArray[np.float64] | None = None
    """(parameters,): what each parameter's square counts in the loss; its gradient comes before the clipping."""


NO_SHAPING: Final = Shaping()


class MasterState:
    """Parameters and optimizer state; the only place where they change.

    Parameters
    ----------
    parameters : (parameters,) float64
        The initial vector; changed in place from then on.
    """

    def __init__(
        self, parameters: NDArray[np.float64], optimizer: OptimizerSpec, shaping: Shaping = NO_SHAPING
    ) -> None:
        self.parameters = parameters
        self._shaping = shaping
        self.optimizer = optimizer.init(parameters.size)
        self._spec = optimizer
        blocks = [slice(start, start + _BLOCK) for start in range(0, parameters.size, _BLOCK)]
        threads = _threads(parameters.size, len(blocks))
        self._shares = [blocks[index::threads] for index in range(threads)]
        self._sums = [np.empty(min(_BLOCK, parameters.size)) for _ in range(threads)]
        self._pool = ThreadPoolExecutor(threads - 1, "aner-master") if threads > 1 else None
        shaped = shaping.clip_norm is not None or shaping.l2 is not None
        self._gradient = np.empty(parameters.size) if shaped else None
        chunks = -(-parameters.size // _CHUNK) if shaped else 0
        self._squares, self._penalties = np.zeros(chunks), np.zeros(chunks)

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

    def apply(self, exchange: Exchange, wire: NDArray[np.floating]) -> float:
        """Add the ranks' sums, take the mean over the rows, step, and write the result to the wire.

        All of it block by block, while a block is in the cache. Every operation is elementwise, so the result
        depends neither on the blocks nor on the threads.

        Returns
        -------
        float
            What L2 adds to the loss, at the parameters before the step.
        """
        self.optimizer.count += 1
        if self._gradient is None:
            self._on_all_shares(self._apply_share, exchange, wire)
            return 0.0
        gradient = self._gradient
        self._on_all_shares(self._gather_share, exchange, gradient)
        penalty = _exact_sum(self._penalties)
        if self._shaping.clip_norm is not None:
            norm = math.sqrt(_exact_sum(self._squares))
            if not norm <= self._shaping.clip_norm:
                gradient *= self._shaping.clip_norm / norm if math.isfinite(norm) else math.nan
        self._on_all_shares(self._step_share, gradient, wire)
        return penalty

    def _on_all_shares(self, work: Callable[..., None], *arguments: object) -> None:
        others = (
            [self._pool.submit(work, share, *arguments) for share in range(1, len(self._shares))]
            if self._pool
            else []
        )
        work(0, *arguments)
        for other in others:
            other.result()

    def _apply_share(self, share: int, exchange: Exchange, wire: NDArray[np.floating]) -> None:
        """Do all of an update in one pass: nothing needs the whole gradient beforehand."""
        scale = 1.0 / exchange.rows
        for block in self._shares[share]:
            parameters = self.parameters[block]
            gradient = self._sums[share][: parameters.size]
            exchange.sum_into(block, gradient)
            gradient *= scale
            self._step(block, gradient, wire)

    def _gather_share(self, share: int, exchange: Exchange, whole: NDArray[np.float64]) -> None:
        """Form the mean gradient with L2's part, and the sums of squares that norm and loss need."""
        scale = 1.0 / exchange.rows
        for block in self._shares[share]:
            gradient, work = whole[block], self.optimizer.scratch[block]
            exchange.sum_into(block, gradient)
            gradient *= scale
            chunks = slice(block.start // _CHUNK, block.start // _CHUNK - (-len(gradient) // _CHUNK))
            starts = np.arange(0, len(gradient), _CHUNK)
            if self._shaping.l2 is not None:
                parameters = self.parameters[block]
                slope = np.multiply(self._shaping.l2[block], parameters, out=work)
                slope *= 2.0
                gradient += slope
                slope *= parameters
                np.add.reduceat(slope, starts, out=self._penalties[chunks])
                self._penalties[chunks] *= 0.5
            if self._shaping.clip_norm is not None:
                np.add.reduceat(np.square(gradient, out=work), starts, out=self._squares[chunks])

    def _step_share(self, share: int, gradient: NDArray[np.float64], wire: NDArray[np.floating]) -> None:
        for block in self._shares[share]:
            self._step(block, gradient[block], wire)

    def _step(self, block: slice, gradient: NDArray[np.float64], wire: NDArray[np.floating]) -> None:
        parameters = self.parameters[block]
        self._spec.update(parameters, gradient, self.optimizer.block(block))
        np.copyto(wire[block], parameters, casting="same_kind")

    def close(self) -> None:
        """End the further threads."""
        if self._pool is not None:
            self._pool.shutdown()


def _threads(parameters: int, blocks: int) -> int:
    """Return how many threads share an update: no more than there are cores for, or blocks."""
    return min(machine.usable_cores(), blocks, _MOST_THREADS) if parameters >= _THREADED else 1


def _exact_sum(values: NDArray[np.float64]) -> float:
    """Return the sum, rounded once; NaN where it is not finite."""
    return math.fsum(values) if np.isfinite(values).all() else math.nan
