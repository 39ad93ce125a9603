"""What a process that uses the emulated accelerator needs: loading it and reading its counters."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

PLUGGABLE_DEVICE: Final = "ANER_NB_PLUGGABLE_DEVICE"
"""The environment variable that names the plug-in to load."""


def load_from_environment() -> Path | None:
    """Load the plug-in that the environment names, if it names one; return its path.

    Call it before TensorFlow makes its devices, that is before the first operation or list of devices.
    """
    library = os.environ.get(PLUGGABLE_DEVICE)
    if not library:
        return None
    from tensorflow.python.framework.load_library import load_pluggable_device_library

    load_pluggable_device_library(library)
    return Path(library)


@dataclass(frozen=True, slots=True)
class Counters:
    """What happened on one device since the process started; emulated.h has the same fields in this order."""

    bytes_in_use: int
    """Device memory that TensorFlow's allocator holds, whether or not tensors use it."""
    peak_bytes_in_use: int
    allocations: int
    uploads: int
    """Copies from host to device."""
    uploaded_bytes: int
    readbacks: int
    """Copies from device to host."""
    readback_bytes: int
    device_copies: int
    """Copies within the device."""
    kernel_runs: int
    """Runs of this plug-in's kernels; those that TensorFlow has for every device, as Reshape, don't count."""


def read_counters(library: Path, device: int) -> Counters:
    """Return the counters of a device in this process, which must have loaded the plug-in before."""
    function = ctypes.CDLL(str(library)).aner_emulated_counters
    function.restype = ctypes.POINTER(ctypes.c_int64)
    values = function(ctypes.c_int(device))
    if not values:
        raise LookupError(f"the emulated accelerator has no device {device}.")
    return Counters(*(values[index] for index in range(len(fields(Counters)))))


def tf32_enabled() -> bool:
    """Return whether TensorFlow may round float32 factors to TensorFloat-32 in this process."""
    import tensorflow as tf

    return bool(tf.config.experimental.tensor_float_32_execution_enabled())
