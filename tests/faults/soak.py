"""Run many trials in one client and watch memory and descriptors: ``python -m tests.faults.soak --trials 200``."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import psutil

import aner_nb as aner


@dataclass(frozen=True, slots=True)
class Reading:
    """Of the client's process, which also hosts the scheduler of a local cluster."""

    trials: int
    rss_mib: float
    descriptors: int
    threads: int
    children: int


def read(trials: int) -> Reading:
    own = psutil.Process()
    return Reading(
        trials,
        own.memory_info().rss / 2**20,
        own.num_fds(),
        own.num_threads(),
        len(own.children(recursive=True)),
    )


def soak(trials: int, every: int) -> list[Reading]:
    """Run trials of a pair, over shared memory and sockets in turn; return readings after each `every`."""
    readings: list[Reading] = []
    with aner.local_cluster(["numpy:1", "numpy:1"]) as cluster:
        for number in range(1, trials + 1):
            case = aner.Case(
                "soak",
                data=aner.digits(),
                layers=[64, 10],
                batch=60,
                epochs=1,
                ranks=["numpy", "numpy"],
                channel=("shared_memory", "socket")[number % 2],
            )
            aner.run(case, cluster).raise_unless_passed()
            if number % every == 0 or number == 1:
                readings.append(read(number))
    return readings


def main() -> None:
    """Print a table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--trials", type=int, default=200)
    options.add_argument("--every", type=int, default=25)
    chosen = options.parse_args()
    print("| trials | resident memory | descriptors | threads | processes |\n|---|---|---|---|---|")
    for one in soak(chosen.trials, chosen.every):
        print(
            f"| {one.trials} | {one.rss_mib:.0f} MiB | {one.descriptors} | {one.threads} | {one.children} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
