"""Writing files so that they are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def write_atomically(path: Path, fill: Callable[[BinaryIO], object]) -> None:
    """Write a file; after this call, a crash or a power cut, it is complete or was never there.

    Parameters
    ----------
    fill
        Writes the content to the open binary file that it is given.

    Raises
    ------
    OSError
        If it cannot be written; what was at `path` before is untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
