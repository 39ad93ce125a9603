"""A small gradient of an accelerator beside the NumPy reference's, before anything is trained on it.

Drivers and plug-ins have been known to give wrong numbers without an error. A few rows find that in milliseconds.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from aner_nb.backends.base import AbstractGradientFunction, DrawMasks, Partition, Probe
from aner_nb.backends.numpy import NumpyGradientFunction
from aner_nb.case import Placement
from aner_nb.counter import normal
from aner_nb.errors import ContractBroken
from aner_nb.network import Network

TOLERANCE: Final = {"float32": 1e-3, "float64": 1e-9}
"""Largest difference in any of the model's arrays, over the array's largest gradient."""

TF32_TOLERANCE: Final = 3e-2
"""TensorFloat-32 keeps 10 bits of each factor."""

_ROWS: Final = 4
_POINTS: Final = 3
_SMALL: Final = 1e-3
"""An array whose gradients are all smaller than this part of the largest is measured by that part."""


def probe(
    gradient: AbstractGradientFunction,
    model: Network,
    partition: Partition,
    placement: Placement,
    draw: DrawMasks | None = None,
    *,
    tolerance: float,
) -> Probe:
    """Compare a gradient function with the reference on the first rows, at three random points.

    The median of the points counts: at one alone, rounding may put a unit on the other side of zero, where its
    gradient jumps.

    Raises
    ------
    ContractBroken
        If they differ by more than the tolerance.
    """
    rows = min(_ROWS, len(partition.features))
    targets = partition.targets[:rows]
    exact = targets.astype(np.float64) if targets.dtype.kind == "f" else targets
    own_rows = Partition(partition.features[:rows].astype(np.float64), exact)
    reference = NumpyGradientFunction(model, own_rows, draw)
    size = model.layout.size
    own, right = np.empty(size), np.empty(size)
    errors: list[float] = []
    for seed in range(1, _POINTS + 1):
        point = model.initial(seed) + 0.1 * normal(seed, "probe", (size,))
        vector = point.astype(partition.features.dtype)
        gradient(vector, (0, rows), own)
        reference(vector.astype(np.float64), (0, rows), right)
        errors.append(_error(model, own, right))
    found = Probe(float(np.median(errors)), tolerance)
    if not found.error <= tolerance:
        raise ContractBroken(
            f"{placement} computes other gradients than the reference: on {rows} rows they differ by "
            f"{found.error:.2g} of the largest, where {tolerance:.0e} is allowed.",
            remedy="Its driver or plug-in gives wrong results for this model: update it, or use another backend.",
        )
    return found


def _error(model: Network, own: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    """Return the largest difference of any array, over its own largest gradient."""
    least = _SMALL * float(np.abs(right).max()) or 1.0
    views = zip(model.layout.views(own), model.layout.views(right), strict=True)
    parts = [float(np.abs(a - b).max() / max(float(np.abs(b).max()), least)) for a, b in views]
    return max(parts) if np.isfinite(parts).all() else float("inf")
