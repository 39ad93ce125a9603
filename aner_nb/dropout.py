"""Which units dropout keeps: a function of seed, layer, update, the row's number and the unit, and of nothing else.

So a group draws exactly what a standalone run draws, whoever computes a row, and a run that goes on from a checkpoint
draws what it would have drawn. The masks are made here, in the rank, for every backend: integer arithmetic is the same
on each device only if it is done on none of them, and it costs less than the same hash as a graph of TensorFlow
operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aner_nb.counter import words_at
from aner_nb.layers import Dropout, Layer

Mask = NDArray[np.bool_]
"""(rows, units): whether a unit is kept."""

_LANES: Final = 4
"""Numbers of 16 bits in a word."""


@dataclass(frozen=True, slots=True)
class Masks:
    """Draws the masks of a stack's Dropout layers."""

    seed: int
    layers: tuple[tuple[int, int, int], ...]
    """Of each Dropout layer its place in the stack, its units, and its rate in units of 2**-16."""

    def draw(self, update: int, rows: NDArray[np.int64]) -> tuple[Mask, ...]:
        """Return a mask for each Dropout layer.

        Parameters
        ----------
        update
            Number of the update.
        rows : (rows,)
            Numbers of the rows among the training rows.
        """
        return tuple(self._mask(update, rows, *layer) for layer in self.layers)

    def _mask(self, update: int, rows: NDArray[np.int64], place: int, units: int, dropped: int) -> Mask:
        width = -(-units // _LANES)
        stream = f"dropout of layer {place} in update {update}"
        drawn = words_at(self.seed, stream, rows, width).astype("<u8", copy=False).view("<u2")
        return drawn[:, :units] >= dropped


def make_masks(layers: Sequence[Layer], features: int, seed: int) -> Masks | None:
    """Return what draws the masks of a stack; None: it drops nothing."""
    found: list[tuple[int, int, int]] = []
    units = features
    for place, layer in enumerate(layers):
        if isinstance(layer, Dropout):
            found.append((place, units, layer.dropped))
        else:
            units = getattr(layer, "units", units)
    return Masks(seed, tuple(found)) if found else None


@dataclass(frozen=True, slots=True)
class RowMasks:
    """The masks of a rank's rows."""

    masks: Masks
    rows: NDArray[np.int64]
    """Number among the training rows of each row that the rank holds."""

    def __call__(self, update: int, block: tuple[int, int]) -> tuple[NDArray[Any], ...]:
        """Return a mask for each Dropout layer, for a block of the rank's rows."""
        return self.masks.draw(update, self.rows[slice(*block)])
