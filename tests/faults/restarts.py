"""Kill a training that writes checkpoints with SIGKILL at random updates, resume it, and compare the bits.

``python -m tests.faults.restarts --kills 20`` prints a table. Every kill strikes a training of its own, in a process of
its own; the resumed one runs in another, from the file that was left.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

RUN = """
import json, pathlib, sys, time
import aner_nb as aner
path, every, pace = sys.argv[1], sys.argv[2], float(sys.argv[3])
case = aner.Case("durable", data=aner.digits(), layers=[32, 10], dtype=sys.argv[4], batch=60, epochs=6,
                 ranks=["numpy", ("numpy", 3)], channel="inline", optimizer=aner.Adam(0.01))
def slowly(event):
    if pace and type(event).__name__ == "UpdateDone":
        print(event.index, flush=True)
class Slow:
    def __init__(self, inner): self.inner, self.wire, self.reduction, self.rank_count = inner, inner.wire, inner.reduction, 2
    def exchange(self, update):
        time.sleep(pace)
        return self.inner.exchange(update)
durability = aner.Durability(pathlib.Path(path), every if every == "epoch" else int(every))
trial = aner.run(case, durability=durability, subscribers=[slowly], wrap=lambda inner, work: Slow(inner))
print(json.dumps({"final": trial.receipt.fingerprints.final_parameters, "from": trial.receipt.resumed_from}))
"""


@dataclass(frozen=True, slots=True)
class Restarts:
    """What came of it."""

    kills: int
    struck: int
    """Kills that struck while the training ran."""
    resumed: int
    """Trainings that went on from a checkpoint; the others were killed before the first one."""
    identical: int
    """Trainings that ended with the very bits of the one that nobody killed."""


def _command(path: Path, every: str, pace: float, dtype: str) -> list[str]:
    return [sys.executable, "-c", RUN, str(path), every, str(pace), dtype]


def _finish(path: Path, every: str, dtype: str) -> dict[str, object]:
    done = subprocess.run(_command(path, every, 0.0, dtype), check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def kill_and_resume(kills: int, folder: Path, seed: int = 1) -> Restarts:
    """Kill `kills` trainings, each once, and resume each."""
    chance = random.Random(seed)
    whole = {
        dtype: _finish(folder / f"whole-{dtype}", "epoch", dtype)["final"] for dtype in ("float32", "float64")
    }
    struck = resumed = identical = 0
    for number in range(kills):
        path, dtype = folder / f"{number}.safetensors", chance.choice(list(whole))
        every = chance.choice(("epoch", "1", "7"))
        update = chance.randrange(100)
        process = subprocess.Popen(_command(path, every, 0.004, dtype), stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip().isdigit() and int(line) >= update:
                break
        time.sleep(chance.uniform(0, 0.01))
        struck += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        found = _finish(path, every, dtype)
        resumed += bool(found["from"])
        identical += found["final"] == whole[dtype]
    return Restarts(kills, struck, resumed, identical)


def main() -> None:
    """Print a table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--kills", type=int, default=20)
    options.add_argument("--seed", type=int, default=1)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        found = kill_and_resume(chosen.kills, Path(name), chosen.seed)
    for field in Restarts.__slots__:
        print(f"{field:<10} {getattr(found, field)}")


if __name__ == "__main__":
    main()
