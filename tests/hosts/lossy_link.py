"""A cable that delays and loses: forwards Ethernet frames between two interfaces, in user space.

``python lossy_link.py INTERFACE INTERFACE --delay 0.01 --jitter 0.002 --loss 0.01``; ends with SIGTERM, and then says how
many frames it lost. It does what the kernel's netem would, and needs no module of the kernel.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import heapq
import itertools
import random
import select
import signal
import socket
import struct
import time

_ETH_P_ALL = 3
_SIOCETHTOOL = 0x8946
_OFFLOADS = (0x17, 0x1F, 0x24)
"""Transmit checksums, TCP segmentation, generic segmentation: left to a card that veth only pretends to have."""


def without_offloads(interface: str) -> None:
    """Let the kernel finish each frame itself: what is forwarded here must be whole and have its checksum."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for command in _OFFLOADS:
            value = ctypes.create_string_buffer(struct.pack("II", command, 0))
            request = struct.pack("16sP", interface.encode(), ctypes.addressof(value))
            fcntl.ioctl(any_socket, _SIOCETHTOOL, request)


def opened(interface: str) -> socket.socket:
    found = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
    found.bind((interface, 0))
    return found


ended: list[int] = []
"""Signals that asked this process to end."""


def forward(first: str, second: str, *, delay: float, jitter: float, loss: float, seed: int) -> int:
    """Forward until the process is asked to end; a frame never overtakes an earlier one. Return how many were lost."""
    chance = random.Random(seed)
    ends = {opened(first): opened(second)}
    ends |= {after: before for before, after in ends.items()}
    number = itertools.count()
    waiting: list[tuple[float, int, socket.socket, bytes]] = []
    latest = dict.fromkeys(ends, 0.0)
    lost = 0
    while not ended:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, out, frame = heapq.heappop(waiting)
            out.send(frame)
        timeout = max(0.0, waiting[0][0] - now) if waiting else 0.1
        for source in select.select(list(ends), [], [], timeout)[0]:
            frame, address = source.recvfrom(65_536)
            if address[2] == socket.PACKET_OUTGOING:
                continue
            if chance.random() < loss:
                lost += 1
                continue
            out = ends[source]
            due = time.monotonic() + delay + chance.uniform(-jitter, jitter)
            latest[out] = max(due, latest[out])
            heapq.heappush(waiting, (latest[out], next(number), out, frame))
    return lost


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("interfaces", nargs="*")
    options.add_argument("--delay", type=float, default=0.0)
    options.add_argument("--jitter", type=float, default=0.0)
    options.add_argument("--loss", type=float, default=0.0)
    options.add_argument("--seed", type=int, default=7)
    options.add_argument("--prepare", default="", help="only turn an interface's offloads off")
    chosen = options.parse_args()
    if chosen.prepare:
        without_offloads(chosen.prepare)
        return
    first, second = chosen.interfaces
    signal.signal(signal.SIGTERM, lambda number, _frame: ended.append(number))
    print("forwarding", flush=True)
    print(
        forward(first, second, delay=chosen.delay, jitter=chosen.jitter, loss=chosen.loss, seed=chosen.seed)
    )


if __name__ == "__main__":
    main()
