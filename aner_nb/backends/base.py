"""The seam between a rank and the framework that computes its gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

RANK_PHASES: Final = ("upload", "compute", "readback", "total")
"""Names of a rank's phases of one update, in the order of `GradientSum.phases_ns`.

``upload``: parameters (and streamed rows) to the device. ``compute``: forward and backward, until the device
has finished. ``readback``: device to the reply's float64 slot. ``total``: from the request's arrival to the
reply's being handed to the channel.
"""

PLUGGABLE_DEVICE_VARIABLE: Final = "ANER_NB_PLUGGABLE_DEVICE"
"""Names a shared library that emulates an accelerator; for tests only, and said so in the receipt."""


@dataclass(frozen=True, slots=True)
class DeviceProof:
    """What shows that a gradient was computed where its placement says."""

    requested: str
    """Device asked for, such as ``CPU:0`` or ``GPU:0``."""
    produced_on: tuple[str, ...]
    """Distinct devices read from the gradient tensors themselves."""
    operations_on: dict[str, int]
    """Device to the count of operations of the executed graph placed there."""
    framework: str
    """Name and version of what computed."""
    emulated: bool = False
    """Whether the device only imitates an accelerator."""


@dataclass(frozen=True, slots=True)
class Probe:
    """How far an accelerator's gradients are from the reference's, on a few rows before the trial."""

    error: float
    """Largest difference, over the largest gradient of the same array."""
    tolerance: float


@dataclass(frozen=True, slots=True)
class Partition:
    """The rows that a rank holds, in the order of its shards."""

    features: NDArray[np.floating]
    """(rows, features), in the case's dtype."""
    targets: NDArray[np.generic]
    """(rows,) int32 classes, or (rows, outputs) in the case's dtype."""


DrawMasks = Callable[[int, tuple[int, int]], Sequence[NDArray[np.bool_]]]
"""(update, block) to a mask for each Dropout layer, (rows, units): whether a unit is kept."""


@dataclass(frozen=True, slots=True)
class GradientSum:
    """A rank's answer to one update."""

    rows: int
    loss_sum: float
    gradient: NDArray[np.float64]
    """(parameters,), summed over the rows; a view that is valid until the next request."""
    phases_ns: tuple[int, ...]
    """Durations on the rank's own clock, one for each of `RANK_PHASES`."""


class AbstractGradientFunction(ABC):
    """A compiled gradient function with its rank's rows on the device."""

    proof: DeviceProof
    compile_ns: int
    """Time to trace, compile and place the data."""
    trace_count: int
    """How often the function was traced; more than 1 is a fault."""
    probe: Probe | None = None
    """Of an accelerator."""

    @abstractmethod
    def __call__(
        self,
        parameters: NDArray[np.floating],
        block: tuple[int, int],
        out: NDArray[np.float64],
        update: int = 0,
    ) -> GradientSum:
        """Write the sum of gradients over rows ``block[0]:block[1]`` of the partition into `out`.

        Parameters
        ----------
        parameters : (parameters,) in the case's dtype
            May be shared memory: read only during the call.
        block : (start, stop)
            May be empty; the sum is then zero.
        out : (parameters,) float64
        update
            Number of the update, which dropout's masks are drawn for.
        """

    @abstractmethod
    def device_bytes(self) -> dict[str, int | None]:
        """Return tracked device memory in bytes: ``current`` and ``peak``; None where it is not tracked."""

    @abstractmethod
    def close(self) -> None:
        """Release what the device holds."""
