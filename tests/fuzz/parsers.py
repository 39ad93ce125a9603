"""The parsers of what others may have written, each as: make an input, feed it, say whether it was accepted."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aner_nb.channels.frames import HEADER_BYTES, FrameError, Header, Kind, decode_header
from aner_nb.channels.stream import FrameStream, StreamChannel, StreamRankEnd
from aner_nb.host import bytes_of
from aner_nb.receipts import decode_receipt
from aner_nb.suites import parse_suite
from aner_nb.verification import content_findings
from tests.fuzz.mutations import json_mutator, mutated_bytes, yaml_mutator

CORPUS = Path(__file__).parent / "corpus"
RUN_ID = 0x1122334455667788
PARAMETERS = 5


@dataclass(frozen=True, slots=True)
class Parser:
    """One parser under test."""

    name: str
    make: Callable[[random.Random], Any]
    feed: Callable[[Any], bool]
    """Returns whether the input was accepted; only an `AnerError` may come instead."""


def corpus(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((CORPUS / folder).iterdir())}


def _suite(text: str) -> bool:
    parse_suite(text, "fuzz.yaml", "fuzz").to_record()
    return True


def _receipt(data: bytes) -> bool:
    decode_receipt(data)
    return True


def _bundle_mutator() -> Callable[[random.Random], Mapping[str, bytes]]:
    files = corpus("bundle")
    makers = {
        name: json_mutator(data.splitlines() if name.endswith("l") else [data])
        for name, data in files.items()
        if name != "report.html"
    }

    def make(chance: random.Random) -> Mapping[str, bytes]:
        name = chance.choice(list(files))
        if name in makers:
            lines = files[name].splitlines() if name.endswith("l") else []
            return {**files, name: b"\n".join([*lines[1:], makers[name](chance)])}
        return {**files, name: mutated_bytes(files[name], list(files.values()), chance)}

    return make


def _bundle(files: Mapping[str, bytes]) -> bool:
    """Accept a bundle that has no finding; every finding must be one printable line."""
    found = content_findings(files)
    assert all(str(finding).isprintable() for finding in found)
    return not found


def _frames_mutator() -> Callable[[random.Random], tuple[int, bytes]]:
    """Return what makes the bytes that a peer sends, and which end reads them."""
    kept = list(corpus("frames").values())

    def make(chance: random.Random) -> tuple[int, bytes]:
        reader = chance.randrange(4)
        if chance.random() < 0.4:
            return reader, mutated_bytes(chance.choice(kept), kept, chance)
        # A sound header with fields of any size, and a payload that need not fit.
        text = chance.choice(
            (b"{}", b"[1]", b'{"kind": 3}', b'{"kind": "rank_failed", "what": []}', b"{" * 3000, b"\xff")
        )
        payload = chance.choice(
            (b"", text, bytes(PARAMETERS * 8), bytes(PARAMETERS * 4), chance.randbytes(30))
        )
        header = Header(
            chance.choice(list(Kind)),
            RUN_ID if chance.random() < 0.9 else chance.randrange(2**64),
            update=chance.choice((0, 0, 1, 2**64 - 1)),
            start=chance.choice((0, 2**63)),
            rows=chance.choice((0, 3, 2**64 - 1)),
            loss_sum=struct.unpack("<d", chance.randbytes(8))[0],
            payload_bytes=chance.choice(
                (len(payload), len(payload), 0, 2**40, 2**64 - 1, chance.randrange(100))
            ),
        )
        return reader, header.encode() + payload

    return make


def _frames(sent: tuple[int, bytes]) -> bool:
    """Let one end read what the other sent before it went away."""
    reader, data = sent
    if reader == 0:
        decode_header(data[:HEADER_BYTES])
        return True
    near, far = socket.socketpair()
    far.sendall(data)
    if reader != 3:
        far.shutdown(socket.SHUT_WR)
    else:
        far.close()
    stream = FrameStream(near, RUN_ID)
    wire, slot = np.zeros(PARAMETERS, np.float32), np.zeros(PARAMETERS)
    try:
        if reader == 2:
            end = StreamRankEnd(
                stream, RUN_ID, wire, slot, wire_payload=bytes_of(wire), slot_payload=bytes_of(slot)
            )
            end.take()
            return True
        channel = StreamChannel(
            0,
            stream,
            RUN_ID,
            slot,
            wire_payload=bytes_of(wire),
            slot_payload=bytes_of(slot),
            kind="fuzz",
            encryption="",
        )
        if reader == 3:
            channel.close()
            return True
        channel.post(0, (0, 3))
        # All bytes are here: a message that is not whole ends with the end of the stream.
        while channel.poll() is None:
            raise FrameError("poll waits for bytes that will not come")
        return True
    finally:
        near.close()
        far.close()


def parsers() -> dict[str, Parser]:
    """Return the parsers by name."""
    return {
        "suite": Parser("suite and case YAML", yaml_mutator(list(corpus("suite").values())), _suite),
        "receipt": Parser("receipt JSON", json_mutator(list(corpus("receipt").values())), _receipt),
        "frames": Parser("channel frames", _frames_mutator(), _frames),
        "bundle": Parser("public bundle", _bundle_mutator(), _bundle),
    }
