"""What is installed, which backends work, what is missing, and the command that mends it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aner_nb import machine
from aner_nb.front_ends import front_end_folder
from aner_nb.hardware import CUDA, METAL, SUPPORTED

_PROBE = """
import json, os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
gpus = tf.config.list_physical_devices("GPU")
def works(device):
    try:
        tf.config.set_soft_device_placement(False)
        with tf.device(device):
            a = tf.random.stateless_uniform([64, 64], seed=(1, 2))
            return bool(float(tf.reduce_sum(tf.matmul(a, a))) > 0) or "wrong result"
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]
print(json.dumps({"version": tf.__version__, "cpu": works("/CPU:0"),
                  "gpus": [works(f"/GPU:{i}") for i in range(len(gpus))]}))
"""
_PROBE_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One line of the doctor."""

    subject: str
    good: bool
    finding: str
    remedy: str = ""
    required: bool = True
    """Whether the tool is of no use without it."""


def diagnose() -> tuple[Diagnosis, ...]:
    """Look at this machine and environment; loads TensorFlow in a process of its own."""
    facts = machine.capacity()
    lines = [
        Diagnosis(
            "python",
            (3, 11) <= sys.version_info[:2] <= (3, 13),
            facts["packages"]["python"],
            "Use Python 3.11, 3.12 or 3.13.",
        ),
        Diagnosis(
            "machine",
            facts["usable_cores"] >= 2,
            f"{facts['processor']}, {facts['usable_cores']} usable cores, {facts['memory_gib']} GiB",
            "A group needs 2 cores to be faster than one.",
            required=False,
        ),
    ]
    versions = facts["packages"]
    for package in ("numpy", "distributed"):
        lines.append(
            Diagnosis(
                package, package in versions, versions.get(package, "not installed"), f"pip install {package}"
            )
        )
    front_ends = front_end_folder() is not None
    lines.append(
        Diagnosis(
            "widgets",
            front_ends,
            "front ends installed" if front_ends else "their front ends are not in this installation",
            "install aner-nb again from its wheel or a whole checkout; the command line works without",
            required=False,
        )
    )
    extension = Path(sys.prefix, "share", "jupyter", "labextensions", "aner-nb-lab", "package.json").is_file()
    lines.append(
        Diagnosis(
            "JupyterLab extension",
            extension,
            "installed" if extension else "not installed: results do not open as reports in JupyterLab",
            "pip install aner-nb, from its wheel or a whole checkout, into JupyterLab's environment",
            required=False,
        )
    )
    return (*lines, *_tensorflow(versions), *_accelerators(facts))


def _tensorflow(versions: dict[str, str]) -> list[Diagnosis]:
    if "tensorflow" not in versions:
        install = "pip install tensorflow-cpu" if sys.platform == "linux" else "pip install tensorflow"
        return [Diagnosis("backend cpu", False, "TensorFlow is not installed", install)]
    import json

    try:
        answer = subprocess.run(
            [sys.executable, "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=True,
        )
        found = json.loads(answer.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, ValueError, IndexError) as error:
        detail = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1:]
        return [
            Diagnosis(
                "backend cpu",
                False,
                f"TensorFlow does not start: {''.join(detail)}"[:200],
                "pip install --force-reinstall tensorflow-cpu",
            )
        ]
    lines = [
        Diagnosis(
            "backend cpu",
            found["cpu"] is True,
            f"TensorFlow {found['version']}" + ("" if found["cpu"] is True else f", {found['cpu']}"),
        )
    ]
    kind = "metal" if "tensorflow-metal" in versions else "cuda"
    for index, works in enumerate(found["gpus"]):
        lines.append(
            Diagnosis(
                f"backend {kind}:{index}",
                works is True,
                f"computes; {_verified(kind)}" if works is True else str(works),
                required=False,
            )
        )
    return lines


def _verified(backend: str) -> str:
    reports = [report for one in SUPPORTED if one.backend == backend for report in one.verified]
    return f"verified on {'; '.join(reports)}" if reports else "nobody has reported a verified run yet"


def _accelerators(facts: dict[str, Any]) -> list[Diagnosis]:
    lines: list[Diagnosis] = []
    if sys.platform == "darwin":
        lines.append(
            Diagnosis(
                "metal",
                machine.metal_available(facts),
                "plug-in " + ("installed" if machine.metal_available(facts) else "not installed"),
                METAL.install,
                required=False,
            )
        )
    elif not facts["gpus"]:
        lines.append(
            Diagnosis(
                "cuda",
                False,
                "the driver shows no CUDA device here",
                f"with an NVIDIA card: install its driver, then {CUDA.install}",
                required=False,
            )
        )
    return lines
