"""What one update's exchange costs on one host, without any computing.

Processes that run the product's own `host_rank` answer each request with a float64 slot that they fill from the
parameters. The coordinator's side is the product's own too: `Session`, and the collective that fits its ranks. Variants
and sizes are interleaved; medians over all rounds.

    python benchmarks/exchange.py [--ranks 2] [--sizes "800 B,1.6 MB,16 MB"] [--rate MB_A_SECOND] [--json FILE]

``--rate`` lets the kernel pace what each connection sends: a simulated link, which says nothing of real hardware.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import multiprocessing
import socket
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import aner_nb as aner
from aner_nb import host, session
from aner_nb.backends.base import AbstractGradientFunction, DeviceProof, GradientSum
from aner_nb.channels import socket as sockets
from aner_nb.collectives.base import AbstractCollective
from aner_nb.master import MasterState
from aner_nb.optimizers import SGD
from aner_nb.session import Session
from aner_nb.work import make_setups, make_work

SIZES = {"800 B": 25, "1.6 MB": 50_000, "16 MB": 500_000}
"""Units of a layer that has eight parameters a unit, float32."""
LIMITS_MS = {
    ("shared memory", "800 B"): 0.35,
    ("shared memory", "1.6 MB"): 3.0,
    ("socket", "800 B"): 0.5,
    ("socket", "1.6 MB"): 8.0,
}
MAX_PACING_RATE = 47  # SO_MAX_PACING_RATE of Linux


class Echo(AbstractGradientFunction):
    """Computes nothing; fills the slot from the parameters, as a rank must write its sum."""

    proof = DeviceProof("none", ("none",), {}, "none")
    compile_ns = 0
    trace_count = 1

    def __call__(self, parameters: Any, block: tuple[int, int], out: Any, update: int = 0) -> GradientSum:
        np.copyto(out, parameters)
        return GradientSum(block[1] - block[0], 0.0, out, (0, 0, 0, 0))

    def device_bytes(self) -> dict[str, int | None]:
        return {"current": None, "peak": None}

    def close(self) -> None:
        pass


def pace(rate: float) -> None:
    """Let every connection of this process send at most so many megabytes a second."""
    plain = sockets._tune

    def paced(connection: socket.socket) -> None:
        plain(connection)
        connection.setsockopt(socket.SOL_SOCKET, MAX_PACING_RATE, int(rate * 1e6))

    if rate:
        sockets._tune = paced


def rank_process(invitation: dict[str, Any], rate: float) -> None:
    """Host a rank that computes nothing."""
    pace(rate)
    host.open_gradient = lambda _setup, _partition: Echo()
    host.host_rank(invitation)


def case(units: int, ranks: int) -> aner.Case:
    """Return a case that is longer than any measurement."""
    return aner.Case(
        "exchange", data=aner.iris(), layers=[units, 3], batch=30, epochs=100_000, ranks=["numpy"] * ranks
    )


@contextlib.contextmanager
def connected(
    units: int, ranks: int, rate: float, *, channel: str, address: str, encryption: Any, star: bool
) -> Iterator[AbstractCollective]:
    """Start the rank processes and connect them."""
    session.LARGEST_STAR, session.SMALLEST_CHAINED = ranks if star else 1, 1
    work, _ = make_work(case(units, ranks))
    opened = Session(channel=channel, host=address, check=lambda: None, encryption=encryption)
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=rank_process, args=(dataclasses.asdict(opened.invitation(rank)), rate))
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    try:
        found = opened.gather(make_setups(work), work.partitions, [None] * ranks)  # type: ignore[list-item]
        yield found.collective(60, lambda: None)
    finally:
        opened.close()
        for process in processes:
            process.join(15)


def variants(ranks: int) -> dict[str, dict[str, Any]]:
    """Return the ways to connect ranks by name."""
    loopback = {"channel": "socket", "address": "127.0.0.1", "encryption": "tls", "star": True}
    ways = {
        "shared memory": {**loopback, "channel": "shared_memory"},
        "socket": loopback,
    }
    own = own_address()
    if own:
        ways["socket, TLS"] = {**loopback, "address": own}
        ways["socket, network"] = {**loopback, "address": own, "encryption": "network"}
    if ranks > 2:
        chains = {
            name.replace("socket", "chain"): {**way, "star": False}
            for name, way in ways.items()
            if way["channel"] == "socket"
        }
        ways |= chains
    return ways


def one_round(collective: AbstractCollective, seconds: float, ranks: int, *, apply: bool) -> list[float]:
    """Return milliseconds of updates, the first few left out."""
    series: list[float] = []
    work, _ = make_work(case(25, ranks))
    began_all = time.perf_counter()
    with contextlib.closing(MasterState(np.zeros(collective.wire.size), SGD(1e-9))) as state:
        for update in work.plan.updates():
            began = time.perf_counter()
            exchange = collective.exchange(update)
            if apply:
                state.apply(exchange, collective.wire)
            series.append((time.perf_counter() - began) * 1e3)
            if update.index >= 10 and time.perf_counter() - began_all > seconds:
                return series[len(series) // 5 :]
    return series


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the medians of every variant and size, interleaved by round."""
    pace(options.rate)
    ways = variants(options.ranks)
    chosen = options.variants.split(";") if options.variants else list(ways)
    times: dict[tuple[str, str], list[float]] = {}
    for _ in range(options.rounds):
        for size in options.sizes.split(","):
            for name in chosen:
                with connected(SIZES[size], options.ranks, options.rate, **ways[name]) as collective:
                    series = one_round(collective, options.seconds, options.ranks, apply=options.apply)
                times.setdefault((name, size), []).extend(series)
    return [
        {
            "channel": name,
            "parameters": size,
            "ranks": options.ranks,
            "rate_mb_s": options.rate,
            "updates": len(series),
            "median_ms": statistics.median(series),
            "min_ms": min(series),
            "p90_ms": sorted(series)[len(series) * 9 // 10],
            "limit_ms": LIMITS_MS.get((name, size)) if options.ranks == 2 and not options.rate else None,
        }
        for (name, size), series in times.items()
    ]


def own_address() -> str:
    """Return an address of this host that is not loopback; empty without one."""
    for addresses in psutil.net_if_addrs().values():
        for address in addresses:
            if address.family.name == "AF_INET" and not address.address.startswith("127."):
                return address.address
    return ""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each variant and size in each round")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", default="800 B,1.6 MB")
    parser.add_argument("--variants", default="", help="separated by ';'; all without it")
    parser.add_argument("--rate", type=float, default=0.0, help="MB/s of a simulated link")
    parser.add_argument(
        "--apply", action="store_true", help="with the coordinator's pass over the parameters"
    )
    options = parser.parse_args()
    rows = measure(options)
    print(f"{'channel':<16} {'parameters':>10} {'median ms':>10} {'min ms':>8} {'p90 ms':>8} {'limit ms':>9}")
    for row in rows:
        limit = f"{row['limit_ms']:>9.2f}" if row["limit_ms"] else f"{'-':>9}"
        print(
            f"{row['channel']:<16} {row['parameters']:>10} {row['median_ms']:>10.3f} {row['min_ms']:>8.3f} "
            f"{row['p90_ms']:>8.3f} {limit}"
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
