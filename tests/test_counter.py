"""The counter-based random numbers: pinned to the bit, and equal to the published mixing function."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aner_nb.counter import normal, permutation, uniform, words

MASK = 2**64 - 1


def splitmix64(state: int) -> int:
    """Return the output of SplitMix64 for a state that was already advanced, in plain integers."""
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


def sha256(array: np.ndarray) -> str:
    return hashlib.sha256(array.astype(array.dtype.newbyteorder("<")).tobytes()).hexdigest()


def test_the_mixing_function_here_gives_the_published_first_values_for_seed_0() -> None:
    gamma = 0x9E3779B97F4A7C15
    outputs = [splitmix64(gamma * step & MASK) for step in (1, 2, 3)]
    assert outputs == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


@given(st.integers(0, 2**53 - 1), st.text(max_size=8), st.integers(0, 2**40), st.integers(0, 20))
def test_words_are_splitmix64_of_a_key_from_the_seed_and_the_streams_name(
    seed: int, stream: str, start: int, count: int
) -> None:
    key = int.from_bytes(hashlib.sha256(f"{seed}/{stream}".encode()).digest()[:8], "little")
    expected = [splitmix64((key + (start + i + 1) * 0x9E3779B97F4A7C15) & MASK) for i in range(count)]
    assert words(seed, stream, count, start).tolist() == expected


def test_a_part_of_a_stream_equals_the_same_part_of_the_whole() -> None:
    np.testing.assert_array_equal(words(3, "x", 10, start=7), words(3, "x", 17)[7:])


@pytest.mark.parametrize(
    ("values", "digest"),
    [
        (words(0, "a", 1000), "417b81a3188b3f3ece8748a91147555265d966e5c2f96b565eda95d606844efd"),
        (uniform(1, "b", (20, 30)), "fb9a337f7c1a0752541a4ea47fec84ad5b0f45eba32ecfd2b33cc5267609c5ac"),
        (normal(2, "c", (20, 30)), "2e5f8b1b5dee5580da9848fa870e7a0bdfb423dbc3398fe137ae4881503775e5"),
        (permutation(3, "d", 1000), "e41d1ded21ffc5a2d81b254ee78ac22d75bbb23a242d66000d70faa1108a1155"),
    ],
    ids=["words", "uniform", "normal", "permutation"],
)
def test_values_are_pinned_to_the_bit(values: np.ndarray, digest: str) -> None:
    assert sha256(values) == digest


def test_uniform_numbers_are_multiples_of_2_to_the_minus_53_in_the_unit_interval() -> None:
    drawn = uniform(5, "u", (10_000,))
    assert drawn.min() >= 0
    assert drawn.max() < 1
    scaled = drawn * 2.0**53
    np.testing.assert_array_equal(scaled, np.floor(scaled))
    assert abs(drawn.mean() - 0.5) < 0.01


def test_normal_numbers_have_mean_0_and_deviation_1_and_stay_within_6() -> None:
    drawn = normal(5, "n", (200, 100))
    assert drawn.shape == (200, 100)
    assert abs(drawn.mean()) < 0.02
    assert abs(drawn.std() - 1) < 0.02
    assert np.abs(drawn).max() <= 6


@given(st.integers(0, 1000), st.integers(0, 200))
def test_a_permutation_holds_each_number_once(seed: int, count: int) -> None:
    drawn = permutation(seed, "p", count)
    assert drawn.dtype == np.int64
    assert sorted(drawn.tolist()) == list(range(count))


def test_streams_and_seeds_differ() -> None:
    drawn = {words(seed, stream, 1).item() for seed in (0, 1) for stream in ("a", "b", "")}
    assert len(drawn) == 6
