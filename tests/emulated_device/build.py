"""Compiles the emulated accelerator against the headers of the installed TensorFlow, without importing it."""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).parent
_SOURCES: Final = (_HERE / "plugin.c", _HERE / "kernels.c")
_HEADERS: Final = (_HERE / "emulated.h",)
_FLAGS: Final = ("-std=c11", "-D_POSIX_C_SOURCE=200809L", "-O3", "-Wall", "-Wextra", "-fvisibility=hidden")


class BuildError(RuntimeError):
    """The emulated accelerator can't be built here."""


def build(folder: Path) -> Path:
    """Return the path of the plug-in in `folder`, compiled unless it is there already.

    Its name carries a hash of the sources, the flags and TensorFlow's version, so that several versions can
    share a folder, and processes that build at the same time do no harm.

    Raises
    ------
    BuildError
        If this isn't Linux, there is no C compiler or no TensorFlow, or the compilation fails.
    """
    if sys.platform != "linux":
        raise BuildError(f"the emulated accelerator is only built on Linux, not on {sys.platform}.")
    compiler = shutil.which(os.environ.get("CC", "gcc"))
    if compiler is None:
        raise BuildError("no C compiler: install gcc, or set CC to a compiler that takes gcc's options.")
    tensorflow, version = _find_tensorflow()
    digest = hashlib.sha256("\0".join((version, *_FLAGS)).encode())
    for source in (*_SOURCES, *_HEADERS):
        digest.update(source.read_bytes())
    library = folder / f"aner_emulated-{version}-{digest.hexdigest()[:16]}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            compiled = Path(scratch) / library.name
            _compile(compiler, tensorflow, compiled)
            compiled.replace(library)
    return library


def _find_tensorflow() -> tuple[Path, str]:
    """Return the folder and the version of the installed TensorFlow."""
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or not spec.submodule_search_locations:
        raise BuildError(f"TensorFlow is not installed for {sys.executable}.")
    distributions = importlib.metadata.packages_distributions()["tensorflow"]
    return Path(spec.submodule_search_locations[0]), importlib.metadata.version(distributions[0])


def _compile(compiler: str, tensorflow: Path, library: Path) -> None:
    # The C API lies in libtensorflow_framework. TensorFlow loads it privately, so the plug-in has to name it
    # to see its symbols; by then it is in the process, and no search path is needed.
    command = [
        *(compiler, *_FLAGS, "-fPIC", "-shared", *map(str, _SOURCES), "-o", str(library)),
        *("-isystem", str(tensorflow / "include")),
        *(f"-L{tensorflow}", "-l:libtensorflow_framework.so.2", "-lm"),
    ]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        raise BuildError(f"{compiler} could not compile the emulated accelerator:\n{finished.stderr}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the plug-in is put")
    print(build(parser.parse_args().folder))
