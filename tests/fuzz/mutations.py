"""Seeded mutations of kept inputs: bytes that move, and values of the wrong kind in every place of a document."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import yaml

TOKENS = [
    *(b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\\ud800", b"NaN", b"-Infinity", b"1e999", b"9" * 40, b"0x" + b"f" * 30),
    *(b"[" * 80, b'{"a":' * 80, b"&a ", b"*a", b"<<: *a", b"!!python/name:os.system ", b"!!binary aGk=", b"!!set {a}"),
    *(b"null", b"true", b"~", b"- ", b": ", b"? ", b"{}", b"[]", b'""', b"2020-02-30", b"1:30:00", b"\n", b"\t", b"%YAML 9.9"),
    *(b"name", b"ranks", b"layers", b"batch", b"data", b"cases", b"../../x", b"ANER", b"-1", b"0", b"1.5"),
]  # fmt: skip
LEAVES: list[Any] = [
    *(None, True, False, -1, 0, 1, 2, 7, 1000, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, 10**30, -(2**63)),
    *(0.5, -0.0, 1e-320, 1e308, float("nan"), float("inf"), "", "x", "1", "NaN", "cpu:1", "../x", "\x1b[2J", "\u202e"),
    *([], [1], ["a"], [[]], [None, None], {}, {"a": 1}, {"source": "arrays"}, {"units": 0}, "a" * 5000),
]  # fmt: skip


def mutated_bytes(data: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    """Return the input with one to four changes of its bytes."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        start = chance.randrange(len(changed) + 1)
        stop = min(len(changed), start + chance.choice((1, 1, 2, 8, 40)))
        match chance.randrange(7):
            case 0:
                changed[start:stop] = chance.randbytes(stop - start)
            case 1:
                del changed[start:stop]
            case 2:
                changed[start:start] = changed[start:stop] * chance.choice((1, 3))
            case 3:
                changed[start:start] = chance.choice(TOKENS)
            case 4:
                changed[start:stop] = chance.choice(TOKENS)
            case 5:
                del changed[start:]
            case _:
                other = chance.choice(others)
                at = chance.randrange(len(other) + 1)
                changed[start:stop] = other[at : at + chance.choice((4, 30, 300))]
    return bytes(changed)


def mutated_value(value: Any, chance: random.Random) -> Any:
    """Return a document with one to three of its values replaced, removed, doubled or moved."""
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        value = _changed(value, chance)
    return value


def _changed(value: Any, chance: random.Random) -> Any:
    if not isinstance(value, dict | list) or not value or chance.random() < 0.02:
        return chance.choice(LEAVES)
    copied = value.copy()
    key = chance.choice(list(copied)) if isinstance(copied, dict) else chance.randrange(len(copied))
    inner = copied[key]
    if isinstance(inner, dict | list) and inner and chance.random() < 0.85:
        copied[key] = _changed(inner, chance)
        return copied
    match chance.randrange(8):
        case 0:
            del copied[key]
        case 1 if isinstance(copied, dict):
            copied[chance.choice(("extra", "name", "", "a" * 300))] = inner
        case 1:
            copied.append(inner)
        case 2:
            copied[key] = [inner] * chance.choice((1, 3))
        case 3:
            copied[key] = {"a": inner}
        case 4 if isinstance(inner, int) and not isinstance(inner, bool):
            copied[key] = inner + chance.choice((-1, 1, 2**40))
        case _:
            copied[key] = chance.choice(LEAVES)
    return copied


def json_mutator(documents: Sequence[bytes]) -> Callable[[random.Random], bytes]:
    """Return what makes inputs from JSON documents: half of them by value, half by byte."""
    values = [json.loads(document) for document in documents]

    def make(chance: random.Random) -> bytes:
        index = chance.randrange(len(values))
        if chance.random() < 0.6:
            return json.dumps(mutated_value(values[index], chance)).encode()
        return mutated_bytes(documents[index], documents, chance)

    return make


def yaml_mutator(documents: Sequence[bytes]) -> Callable[[random.Random], str]:
    """Return what makes inputs from YAML documents."""
    values = [yaml.safe_load(document) for document in documents]

    def make(chance: random.Random) -> str:
        index = chance.randrange(len(values))
        if chance.random() < 0.5:
            # JSON is YAML, and is written faster than block style.
            return json.dumps(mutated_value(values[index], chance))
        return mutated_bytes(documents[index], documents, chance).decode(errors="replace")

    return make
