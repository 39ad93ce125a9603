"""Kill a suite's run with SIGKILL at random moments, run the same command again each time, and look at what is kept.

Run as a program it prints a table: ``python -m tests.faults.suite_kills --kills 20``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

SUITE = """
name: kills
placements: ["numpy:1", "numpy:1"]
repetitions: {repetitions}
defaults: {{data: digits, layers: [32, 10], dtype: float64, batch: 60, epochs: 8}}
cases:
  - {{name: alone, ranks: ["numpy:1"]}}
  - {{name: pair, ranks: ["numpy:1", "numpy:1"]}}
  - {{name: socket-pair, ranks: ["numpy:1", "numpy:1"], channel: socket}}
"""
CASES = 3


@dataclass(frozen=True, slots=True)
class Kills:
    """What came of it."""

    kills: int
    within_a_trial: int
    """Kills that struck after at least one trial of that run had ended, and before the suite's end."""
    passed: int
    planned: int
    changed: int
    """Finished receipts, columns or parameters that a later run changed or lost."""
    repeated: int
    """Trials with more than one passed receipt."""
    left_over: int
    """Processes of a killed run that were still alive 10 seconds later."""
    findings: tuple[str, ...]
    """Of `aner-nb verify` on the bundle in the end."""


def finished_files(folder: Path) -> dict[str, str]:
    """Return the digest of every file of a finished trial, by its path."""
    receipts = [path for path in (folder / "receipts").glob("*/*.json")]
    stems = {path.parent / path.name.removesuffix(".json") for path in receipts}
    found: dict[str, str] = {}
    for stem in stems:
        for ending in (".json", ".steps.npz", ".parameters.npy"):
            path = stem.with_name(stem.name + ending)
            if path.exists():
                found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def kill_at_random(kills: int, folder: Path, *, repetitions: int = 30, seed: int = 1) -> Kills:
    """Run a suite of real worker processes, killed `kills` times, to its end."""
    moments = random.Random(seed)
    suite = folder / "kills.yaml"
    suite.write_text(SUITE.format(repetitions=repetitions))
    out = folder / "results"
    changed = within = left_over = 0
    for _ in range(kills):
        before = finished_files(out)
        process = _start(suite, out)
        time.sleep(moments.uniform(0.5, 7.0))
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        alive = process.poll() is None
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        after = finished_files(out)
        within += alive and len(after) > len(before)
        changed += sum(after.get(name) != digest for name, digest in before.items())
        _, alive_still = psutil.wait_procs(family, timeout=10)
        left_over += len(alive_still)
    before = finished_files(out)
    last = _start(suite, out)
    assert last.wait(timeout=300) == 0, "the last run, which nobody killed, did not end well"
    after = finished_files(out)
    changed += sum(after.get(name) != digest for name, digest in before.items())
    passed = [json.loads(path.read_text()) for path in (out / "receipts").glob("*/*.json")]
    passed = [receipt for receipt in passed if receipt["status"] == "passed"]
    keys = {(receipt["case_name"], receipt["role"], receipt["repetition"]) for receipt in passed}
    verified = subprocess.run(
        [sys.executable, "-m", "aner_nb.cli", "verify", str(out)], capture_output=True, text=True, check=False
    )
    return Kills(
        kills=kills,
        within_a_trial=within,
        passed=len(keys),
        planned=CASES * (1 + repetitions),
        changed=changed,
        repeated=len(passed) - len(keys),
        left_over=left_over,
        findings=tuple(verified.stdout.splitlines()) if verified.returncode else (),
    )


def run_command(suite: Path, out: Path) -> list[str]:
    """Return the command that runs a suite into a folder, with this Python."""
    return [sys.executable, "-m", "aner_nb.cli", "run", str(suite), "--out", str(out)]


def _start(suite: Path, out: Path) -> subprocess.Popen[bytes]:
    # A killed process cannot take away the folder of a socket that it listens on: it stays in this one.
    environment = {**os.environ, "TMPDIR": str(suite.parent)}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(run_command(suite, out), env=environment, **quiet)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        found = kill_at_random(options.kills, Path(name), seed=options.seed)
    for field in Kills.__slots__:
        print(f"{field.replace('_', ' '):<16} {getattr(found, field)}")


if __name__ == "__main__":
    main()
