"""What one update's exchange with two ranks costs on one host, without any computing.

Two processes answer each request with a float64 slot that they fill from the parameters. The coordinator's side is the
product's own: `StarCollective` over `StreamChannel`. Variants and sizes are interleaved; medians over all rounds.

    python benchmarks/exchange.py [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import secrets
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from aner_nb.backends.base import AbstractGradientFunction, DeviceProof, GradientSum
from aner_nb.channels.shared_memory import aligned_wire, make_arena, receive_arena, send_arena
from aner_nb.channels.socket import Invitation, Listener, connect
from aner_nb.channels.stream import FrameStream, StreamChannel, StreamRankEnd
from aner_nb.collectives.star import StarCollective
from aner_nb.errors import RankLost
from aner_nb.host import bytes_of
from aner_nb.plan import Plan
from aner_nb.rank import serve

RANKS = 2
SIZES = {"800 B": 200, "1.6 MB": 400_000}
LIMITS_MS = {
    ("shared memory", "800 B"): 0.35,
    ("shared memory", "1.6 MB"): 3.0,
    ("socket", "800 B"): 0.5,
    ("socket", "1.6 MB"): 8.0,
}
NOTHING = memoryview(b"")


class Echo(AbstractGradientFunction):
    """Computes nothing; fills the slot from the parameters, as a rank must write its sum."""

    proof = DeviceProof("none", ("none",), {}, "none")
    compile_ns = 0
    trace_count = 1

    def __call__(self, parameters: Any, block: tuple[int, int], out: Any) -> GradientSum:
        np.copyto(out, parameters)
        return GradientSum(block[1] - block[0], 0.0, out, (0, 0, 0, 0))

    def device_bytes(self) -> dict[str, int | None]:
        return {"current": None, "peak": None}

    def close(self) -> None:
        pass


def plan() -> Plan:
    """Return a plan that is longer than any measurement."""
    return Plan(train_rows=2 * RANKS, batch=2 * RANKS, epochs=1_000_000, seed=0, weights=(1,) * RANKS)


def rank_process(invitation: Invitation, parameters: int) -> None:
    """Serve until the coordinator ends the run."""
    connection, same_host = connect(invitation)
    connection.settimeout(None)
    if same_host:
        arena = receive_arena(connection, parameters, "float32", RANKS)
        wire, slot = arena.wire, arena.slots[invitation.rank]
        payloads = (NOTHING, NOTHING)
    else:
        wire, slot = aligned_wire(parameters, "float32"), np.zeros(parameters)
        payloads = (bytes_of(wire), bytes_of(slot))
    stream = FrameStream(connection, invitation.run_id)
    end = StreamRankEnd(
        stream, invitation.run_id, wire, slot, wire_payload=payloads[0], slot_payload=payloads[1]
    )
    with suppress(RankLost):
        serve(end, Echo(), 2**40, replied=lambda _update: None)


@contextmanager
def star(parameters: int, *, unix: bool, host: str) -> Iterator[StarCollective]:
    """Start two rank processes and connect them."""
    run_id = secrets.randbits(64)
    listener = Listener(run_id, unix=unix, host=host)
    arena = make_arena(parameters, "float32", RANKS)
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=rank_process, args=(listener.invitation(rank), parameters))
        for rank in range(RANKS)
    ]
    for process in processes:
        process.start()
    channels: dict[int, StreamChannel] = {}
    while len(channels) < RANKS:
        arrival = listener.accept(30)
        assert arrival is not None
        arrival.connection.settimeout(None)
        slot = arena.slots[arrival.rank]
        if arrival.same_host:
            send_arena(arrival.connection, arena)
        channels[arrival.rank] = StreamChannel(
            arrival.rank,
            FrameStream(arrival.connection, run_id),
            run_id,
            slot,
            wire_payload=NOTHING if arrival.same_host else bytes_of(arena.wire),
            slot_payload=NOTHING if arrival.same_host else bytes_of(slot),
            kind="",
            encryption=arrival.encryption,
        )
    listener.close()
    try:
        yield StarCollective(arena.wire, [channels[rank] for rank in range(RANKS)], deadline_seconds=30)
    finally:
        for channel in channels.values():
            channel.abort()
        for process in processes:
            process.join(5)


def measure(rounds: int, updates: int) -> list[dict[str, Any]]:
    """Return the medians of every variant and size, interleaved by round."""
    variants = {"shared memory": {"unix": True, "host": ""}, "socket": {"unix": False, "host": "127.0.0.1"}}
    own = own_address()
    if own:
        variants["socket, TLS"] = {"unix": False, "host": own}
    times: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for size, parameters in SIZES.items():
            for name, ways in variants.items():
                with star(parameters, **ways) as collective:  # type: ignore[arg-type]
                    series = []
                    for update in plan().updates():
                        began = time.perf_counter()
                        collective.exchange(update)
                        series.append((time.perf_counter() - began) * 1e3)
                        if update.index == updates:
                            break
                times.setdefault((name, size), []).extend(series[updates // 5 :])
    return [
        {
            "channel": name,
            "parameters": size,
            "median_ms": statistics.median(series),
            "min_ms": min(series),
            "p90_ms": sorted(series)[len(series) * 9 // 10],
            "limit_ms": LIMITS_MS.get((name, size)),
        }
        for (name, size), series in times.items()
    ]


def own_address() -> str:
    """Return an address of this host that is not loopback; empty without one."""
    import psutil

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
    parser.add_argument("--updates", type=int, default=300)
    options = parser.parse_args()
    rows = measure(options.rounds, options.updates)
    print(f"{'channel':<15} {'parameters':>10} {'median ms':>10} {'min ms':>8} {'p90 ms':>8} {'limit ms':>9}")
    for row in rows:
        limit = f"{row['limit_ms']:>9.2f}" if row["limit_ms"] else f"{'-':>9}"
        print(
            f"{row['channel']:<15} {row['parameters']:>10} {row['median_ms']:>10.3f} {row['min_ms']:>8.3f} "
            f"{row['p90_ms']:>8.3f} {limit}"
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
