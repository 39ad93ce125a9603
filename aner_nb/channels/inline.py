"""A rank in the coordinator's own process: no copy, no message."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from aner_nb.backends.base import GradientSum
from aner_nb.channels.base import AbstractChannel

Compute = Callable[[int, tuple[int, int], NDArray[np.floating], NDArray[np.float64]], GradientSum]
"""(update, block, parameters, out) to the gradient sum."""


class InlineChannel(AbstractChannel):
    """Computes when it is polled.

    Parameters
    ----------
    wire : (parameters,) in the case's dtype
        The vector that the coordinator writes before each update.
    """

    kind = "inline"
    encryption = "none needed: one process"
    payload_bytes = 0

    def __init__(
        self,
        rank: int,
        wire: NDArray[np.floating],
        compute: Compute,
        report: Callable[[], dict[str, object]],
    ) -> None:
        self.rank = rank
        self._wire = wire
        self._slot = np.zeros(wire.size)
        self._compute = compute
        self._report = report
        self._asked = (-1, (0, 0))

    def post(self, update: int, block: tuple[int, int]) -> None:
        """Note the request; `poll` computes it."""
        self._asked = (update, block)

    def poll(self) -> GradientSum | None:
        """Compute the update that was asked for."""
        return self._compute(*self._asked, self._wire, self._slot)

    def fileno(self) -> int:
        """Return -1: there is nothing to wait for."""
        return -1

    def close(self) -> dict[str, object]:
        """Return the closing report."""
        return self._report()

    def abort(self) -> None:
        """Nothing runs between two calls."""
