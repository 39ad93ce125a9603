"""What the NVIDIA driver says: which CUDA devices this process may use, and its memory on them.

Devices are numbered as TensorFlow numbers them: by PCI bus, and of those the ones that ``CUDA_VISIBLE_DEVICES`` lets
through, in its order. The driver's library knows all devices, whatever that variable says, so numbers are translated.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, Final

ORDER_VARIABLE: Final = "CUDA_DEVICE_ORDER"
BUS_ORDER: Final = "PCI_BUS_ID"
"""The driver's own order; CUDA's default puts the fastest card first, and the same number would mean two cards."""

VISIBLE_VARIABLE: Final = "CUDA_VISIBLE_DEVICES"
_FIRST_PID_NAMESPACE: Final = "pid:[4026531836]"
"""Linux gives the machine's own numbering of processes this identity in every kernel."""


def devices() -> list[dict[str, Any]]:
    """Return the CUDA devices that this process may use: model, memory, driver, compute capability.

    Empty without `nvidia-ml-py` or a driver.
    """
    with _driver() as nvml:
        if nvml is None:
            return []
        found: list[dict[str, Any]] = []
        for handle in _visible_handles(nvml):
            major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
            found.append(
                {
                    "model": str(nvml.nvmlDeviceGetName(handle)),
                    "memory_gib": round(nvml.nvmlDeviceGetMemoryInfo(handle).total / 2**30),
                    "driver": str(nvml.nvmlSystemGetDriverVersion()),
                    "compute_capability": f"{major}.{minor}",
                }
            )
        return found


def process_vram_bytes(device: int) -> tuple[int | None, str]:
    """Return this process's memory on a CUDA device and, where there is no figure, the reason."""
    if in_container():
        # A process of the machine may bear the number that this one has in here: a match would prove nothing.
        return None, "this process runs in a container, and the driver numbers processes as the machine does"
    with _driver() as nvml:
        if nvml is None:
            return None, "nvidia-ml-py is not installed, or there is no driver"
        try:
            handles = _visible_handles(nvml)
            if device >= len(handles):
                return None, f"the driver shows {len(handles)} devices to this process"
            processes = nvml.nvmlDeviceGetComputeRunningProcesses(handles[device])
        except nvml.NVMLError as error:
            return None, f"the driver answered: {error}"
    used = [process.usedGpuMemory for process in processes if process.pid == os.getpid()]
    if not used or used[0] is None:
        return (
            None,
            "the driver hides memory by process" if used else "the driver lists no process with this PID",
        )
    return int(used[0]), ""


def in_container() -> bool:
    """Return whether this process has another number outside, so that the driver's lists do not name it."""
    if sys.platform != "linux":
        return False
    with contextlib.suppress(OSError):
        return str(Path("/proc/self/ns/pid").readlink()) != _FIRST_PID_NAMESPACE
    return True


def visible_devices(identities: Sequence[str], setting: str | None) -> tuple[int, ...]:
    """Return which devices ``CUDA_VISIBLE_DEVICES`` lets through, in its order.

    Parameters
    ----------
    identities
        Each device's UUID, such as ``GPU-5a…``, in the driver's order.
    setting
        The variable: numbers, or beginnings of UUIDs. None: all. As in CUDA, what names no device ends the list,
        and a device that is named twice leaves none.

    Examples
    --------
    >>> visible_devices(["GPU-aa", "GPU-bb", "GPU-bc"], "2,GPU-a,-1,1")
    (2, 0)
    """
    if setting is None:
        return tuple(range(len(identities)))
    chosen: list[int] = []
    for entry in map(str.strip, setting.split(",")):
        if entry.isdecimal():
            matching = [index for index in range(len(identities)) if index == int(entry)]
        else:
            matching = [index for index, name in enumerate(identities) if entry and name.startswith(entry)]
        if len(matching) != 1:
            break
        chosen += matching
    return tuple(chosen) if len(set(chosen)) == len(chosen) else ()


def _visible_handles(nvml: Any) -> list[Any]:
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    identities = [str(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    return [handles[index] for index in visible_devices(identities, os.environ.get(VISIBLE_VARIABLE))]


@contextlib.contextmanager
def _driver() -> Generator[Any]:
    """Give the driver's library, or None where there is none or no driver."""
    try:
        import pynvml
    except ImportError:
        yield None
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
