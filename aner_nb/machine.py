"""Facts about the machine and the process that this code runs in."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import os
import platform
import resource
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import psutil

from aner_nb import cuda
from aner_nb.backends.base import PLUGGABLE_DEVICE_VARIABLE

PACKAGES: Final = ("aner-nb", "numpy", "distributed", "keras")
TENSORFLOW_NAMES: Final = ("tensorflow", "tensorflow-cpu", "tensorflow-macos")
EMULATED: Final = "emulated-accelerator"
"""Stands among the packages of a process that would compute on an emulated device: its results are not published."""


def machine_key() -> str:
    """Return a hash that tells machines apart and names none."""
    identity = f"{platform.node()}/{uuid.getnode()}"
    with contextlib.suppress(OSError):
        identity += Path("/etc/machine-id").read_text().strip()
    return hashlib.sha256(f"aner_nb machine {identity}".encode()).hexdigest()


def package_versions() -> dict[str, str]:
    """Return the versions of the packages that decide what is computed; absent ones are left out."""
    versions: dict[str, str] = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    for name in TENSORFLOW_NAMES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.setdefault("tensorflow", importlib.metadata.version(name))
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        versions["tensorflow-metal"] = importlib.metadata.version("tensorflow-metal")
    if os.environ.get(PLUGGABLE_DEVICE_VARIABLE):
        versions[EMULATED] = "in use"
    return versions


def capacity() -> dict[str, Any]:
    """Return the capacity facts that a configuration id is made of: hardware and software, no names."""
    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "processor": processor_model(),
        "cores": os.cpu_count() or 1,
        "usable_cores": usable_cores(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "gpus": cuda.devices(),
        "packages": package_versions(),
    }


def usable_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@functools.cache
def processor_model() -> str:
    """Return the processor's model name."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    if sys.platform == "darwin":
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()
    return platform.processor() or platform.machine()


def metal_available(facts: Mapping[str, Any]) -> bool:
    """Return whether a machine is a Mac with Apple silicon and the Metal plug-in, by its `capacity`."""
    apple = (facts["system"], facts["machine"]) == ("Darwin", "arm64")
    return apple and "tensorflow-metal" in facts["packages"]


def devices(facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the placements of a machine by its `capacity`: ``cpu``, then ``cuda:0`` and so on, then ``metal``."""
    cards = tuple(f"cuda:{index}" for index in range(len(facts["gpus"])))
    return ("cpu", *cards, *(("metal",) if metal_available(facts) else ()))


def run_as_batch() -> None:
    """Ask the kernel not to let this thread, and those it starts, push aside the thread that wakes them (Linux).

    A coordinator that wakes one rank would lose its core to it before it has asked the next.
    """
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):  # a container may forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def rss_bytes() -> int:
    """Return this process's resident memory now."""
    return int(psutil.Process().memory_info().rss)


def rss_high_water_bytes() -> int:
    """Return the largest resident memory that this process had.

    Linux keeps it for each address space (``VmHWM``); `getrusage` would include the parent's from before exec.
    """
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def noise_sample() -> dict[str, float]:
    """Return what may disturb a measurement: load, stolen and total processor time, frequency."""
    sample = {"load_1_minute": os.getloadavg()[0]}
    times = psutil.cpu_times()
    sample["steal_seconds"] = float(getattr(times, "steal", 0.0))
    sample["busy_seconds"] = float(sum(times)) - float(times.idle)
    with contextlib.suppress(OSError, ValueError):
        path = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq")
        sample["frequency_mhz"] = int(path.read_text()) / 1000
    return sample
