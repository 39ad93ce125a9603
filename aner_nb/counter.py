"""Random numbers that are the same on every platform and with every NumPy version.

A counter-based generator: word *i* of a stream is SplitMix64 applied to ``key + i * gamma`` where the key
is taken from SHA-256 of the seed and the stream's name. Only integer operations and exact
(correctly rounded) float operations are used, so the results are equal to the bit everywhere.

Source of the mixing function: Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
OOPSLA 2014 (SplitMix64).
"""

from __future__ import annotations

import hashlib
import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

_AT_A_TIME: Final = 2**20
"""Words of a long stream: what is drawn in between would take four times the memory."""
_GAMMA: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2: Final = np.uint64(0x94D049BB133111EB)
_CACHED_WORDS: Final = 8192
"""Words mixed together: few enough for a processor's nearest cache."""


def words(seed: int, stream: str, count: int, start: int = 0) -> NDArray[np.uint64]:
    """Return words ``start`` … ``start + count - 1`` of a stream, shape (count,), uint64.

    Words are independent of how many are asked for at a time: a part of a stream can be drawn alone.
    """
    position = np.arange(start + 1, start + count + 1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        state = _key(seed, stream) + position * _GAMMA
        _mix(state, np.empty_like(state))
    return state


def words_at(seed: int, stream: str, rows: NDArray[np.int64], width: int) -> NDArray[np.uint64]:
    """Return for each row words ``row * width`` … ``row * width + width - 1`` of a stream, shape (rows, width)."""
    result = np.empty((len(rows), width), np.uint64)
    together = max(1, _CACHED_WORDS // max(1, width))
    scratch = np.empty((min(together, len(rows)), width), np.uint64)
    with np.errstate(over="ignore"):
        first = _key(seed, stream) + rows.astype(np.uint64) * (np.uint64(width) * _GAMMA)
        within = np.arange(1, width + 1, dtype=np.uint64) * _GAMMA
        for start in range(0, len(rows), together):
            part = result[start : start + together]
            np.add(first[start : start + together, np.newaxis], within, out=part)
            _mix(part, scratch[: len(part)])
    return result


def _key(seed: int, stream: str) -> np.uint64:
    return np.uint64(int.from_bytes(hashlib.sha256(f"{seed}/{stream}".encode()).digest()[:8], "little"))


def _mix(state: NDArray[np.uint64], scratch: NDArray[np.uint64]) -> None:
    """Apply SplitMix64's mixing function in place."""
    state ^= np.right_shift(state, np.uint64(30), out=scratch)
    state *= _MIX_1
    state ^= np.right_shift(state, np.uint64(27), out=scratch)
    state *= _MIX_2
    state ^= np.right_shift(state, np.uint64(31), out=scratch)


def uniform(seed: int, stream: str, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return multiples of 2**-53 in [0, 1), float64, of the given shape."""
    drawn = words(seed, stream, math.prod(shape)) >> np.uint64(11)
    return (drawn.astype(np.float64) * 2.0**-53).reshape(shape)


def normal(seed: int, stream: str, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return approximately standard normal numbers, float64, of the given shape, in [-6, 6].

    The sum of twelve uniform numbers minus six (Irwin-Hall), added in a fixed order: unlike Box-Muller
    it needs no logarithm or cosine, whose last bit differs between C libraries.
    """
    total = np.zeros(math.prod(shape))
    drawn = uniform(seed, stream, (math.prod(shape), 12))
    for column in range(12):
        total += drawn[:, column]
    return (total - 6.0).reshape(shape)


def permutation(seed: int, stream: str, count: int) -> NDArray[np.int64]:
    """Return a permutation of ``0 … count - 1``, int64: the stable order of the stream's words."""
    drawn = np.empty(count, np.uint64)
    for start in range(0, count, _AT_A_TIME):
        drawn[start : start + _AT_A_TIME] = words(seed, stream, min(_AT_A_TIME, count - start), start)
    return np.argsort(drawn, kind="stable").astype(np.int64, copy=False)
