"""Do what a Binder does, without Docker, and measure the memory of a full run of notebook 01; see README.md."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOTEBOOK = "notebooks/01_first_run.ipynb"
LIMIT_BYTES = 1_800_000_000
SAMPLE_SECONDS = 0.25
NO_TENSORFLOW = "import sys\nassert 'tensorflow' not in sys.modules, 'the kernel loaded TensorFlow'"


def main() -> None:
    """Build, start, run, measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environment", type=Path, help="Where the environment is kept, or is already.")
    chosen = parser.parse_args().environment
    with tempfile.TemporaryDirectory(prefix="aner-binder-") as folder:
        copy = Path(folder, "repository")
        export(copy)
        environment = (chosen or Path(folder, "environment")).resolve()
        variables = environment_variables(environment, Path(folder, "home"))
        if not (environment / "bin" / "jupyter").exists():
            build(copy, environment, variables)
        peak = run(copy, variables)
    shown = ", ".join(f"{kind} {size / 1e9:.2f} GB" for kind, size in peak.items())
    print(f"peak over all processes: {shown}; limit: Pss {LIMIT_BYTES / 1e9:.1f} GB")
    if peak["Pss"] > LIMIT_BYTES:
        sys.exit("More memory than a Binder has.")


def export(target: Path) -> None:
    """Write the files of the last commit, as a Binder gets them."""
    target.mkdir()
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True)
    subprocess.run(["tar", "-x"], cwd=target, input=archive.stdout, check=True)


def environment_variables(environment: Path, home: Path) -> dict[str, str]:
    """Return variables that know nothing of this machine's own packages and settings."""
    home.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "JUPYTER"))}
    return {**kept, "PATH": f"{environment / 'bin'}:{os.environ['PATH']}", "HOME": str(home)}


def build(copy: Path, environment: Path, variables: dict[str, str]) -> None:
    """Make a virtual environment and run `postBuild` in it."""
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    subprocess.run(["bash", "binder/postBuild"], cwd=copy, env=variables, check=True)


def run(copy: Path, variables: dict[str, str]) -> dict[str, int]:
    """Start JupyterLab, run the notebook, and return the peak of each kind of memory."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    lab = ["bash", "binder/start", "jupyter", "lab", "--no-browser", "--allow-root", f"--port={port}"]
    server = start([*lab, "--ip=127.0.0.1", "--IdentityProvider.token="], copy, variables)
    try:
        check_start_page(f"http://127.0.0.1:{port}/", server)
        with_check = add_cell(copy / NOTEBOOK)
        execute = ["jupyter", "nbconvert", "--to", "notebook", "--execute", "--inplace", str(with_check)]
        notebook = start(["bash", "binder/start", *execute], copy, variables)
        peak = watch(notebook, [server.pid, notebook.pid])
        if notebook.wait() != 0:
            sys.exit("The notebook did not run; see above.")
        return peak
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)


def start(command: list[str], folder: Path, variables: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own, by which its descendants are found."""
    return subprocess.Popen(command, cwd=folder, env=variables, start_new_session=True)


def check_start_page(url: str, server: subprocess.Popen[bytes]) -> None:
    """Wait for the server, and see where it leads."""
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                break
        except OSError:
            if server.poll() is not None or time.monotonic() > deadline:
                sys.exit("JupyterLab did not start; see above.")
            time.sleep(0.2)
    if not answer.url.endswith(f"/lab/tree/{NOTEBOOK}"):
        sys.exit(f"JupyterLab opens with {answer.url.split('/', 3)[3]} and not with notebook 01.")
    print("JupyterLab opens with", NOTEBOOK)


def add_cell(notebook: Path) -> Path:
    """Write the notebook with one more cell, which fails if the kernel loaded TensorFlow."""
    document = json.loads(notebook.read_text("utf-8"))
    empty = {"cell_type": "code", "outputs": [], "metadata": {}, "execution_count": None}
    document["cells"].append({**empty, "id": "check", "source": NO_TENSORFLOW})
    target = notebook.with_name("checked.ipynb")
    target.write_text(json.dumps(document), "utf-8")
    return target


def watch(process: subprocess.Popen[bytes], sessions: list[int]) -> dict[str, int]:
    """Return the largest sums over all processes of the sessions, until the process ends."""
    peak = {"Pss": 0, "Rss": 0}
    ended = threading.Event()
    threading.Thread(target=lambda: (process.wait(), ended.set()), daemon=True).start()
    while not ended.wait(SAMPLE_SECONDS):
        sums = dict.fromkeys(peak, 0)
        for memory in map(memory_of, members(sessions)):
            for kind in sums:
                sums[kind] += memory.get(kind, 0)
        peak = {kind: max(peak[kind], sums[kind]) for kind in peak}
    return peak


def members(sessions: list[int]) -> list[Path]:
    """Return the processes of these sessions and their descendants, wherever those have gone."""
    parents: dict[int, int] = {}
    inside: set[int] = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            parents[int(entry.name)] = int(fields[1])
            if int(fields[3]) in sessions:
                inside.add(int(entry.name))
    grown = True
    while grown:  # a kernel has a session of its own
        more = {child for child, parent in parents.items() if parent in inside} - inside
        inside |= more
        grown = bool(more)
    return [Path("/proc", str(number)) for number in inside]


def memory_of(process: Path) -> dict[str, int]:
    """Return a process's memory in bytes: Rss counts shared pages in full, Pss each page once over all processes."""
    with contextlib.suppress(OSError):
        lines = (process / "smaps_rollup").read_text().splitlines()
        pairs = (line.split(":") for line in lines if line.startswith(("Rss:", "Pss:")))
        return {kind: int(size.split()[0]) * 1024 for kind, size in pairs}
    return {}


if __name__ == "__main__":
    if shutil.which("git") is None:
        sys.exit("git is needed to export the last commit.")
    main()
