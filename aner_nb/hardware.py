"""Which backend runs with which TensorFlow, how it is installed, and on what it was seen to work.

The doctor, the check of the workers' versions and docs/hardware.md say what stands here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

TENSORFLOW_VERSIONS: Final = ((2, 18), (2, 21))
"""The oldest and newest TensorFlow that is supported, both included."""


@dataclass(frozen=True, slots=True)
class Support:
    """A backend on a kind of machine."""

    backend: str
    system: str
    tensorflow: tuple[str, ...]
    """Versions that are meant to work."""
    install: str
    verified: tuple[str, ...] = ()
    """For each report of somebody who ran it: model of the device, TensorFlow, date. Empty: nobody has yet."""


_VERSIONS: Final = tuple(
    f"2.{minor}" for minor in range(TENSORFLOW_VERSIONS[0][1], TENSORFLOW_VERSIONS[1][1] + 1)
)
CPU: Final = Support("cpu", "Linux, macOS", _VERSIONS, "pip install aner-nb")
CUDA: Final = Support(
    "cuda", "Linux with an NVIDIA card and its driver", _VERSIONS, "pip install 'aner-nb[cuda]'"
)
METAL: Final = Support(
    "metal", "macOS on Apple silicon, Python 3.11 or 3.12", ("2.18",), "pip install 'aner-nb[metal]'"
)
SUPPORTED: Final = (CPU, CUDA, METAL)


def table() -> str:
    """Return the table of docs/hardware.md as Markdown."""
    lines = ["| backend | machine | TensorFlow | install | verified on |", "|---|---|---|---|---|"]
    for one in SUPPORTED:
        versions = one.tensorflow[0] + (f" to {one.tensorflow[-1]}" if len(one.tensorflow) > 1 else "")
        verified = "; ".join(one.verified)
        lines.append(f"| {one.backend} | {one.system} | {versions} | `{one.install}` | {verified} |")
    return "\n".join(lines)
