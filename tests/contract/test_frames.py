"""Messages: every header reads back, and no other bytes do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aner_nb.channels.frames import HEADER_BYTES, FrameError, Header, Kind, decode_header

whole = st.integers(0, 2**64 - 1)
headers = st.builds(
    Header,
    kind=st.sampled_from(Kind),
    run_id=whole,
    update=whole,
    start=whole,
    rows=whole,
    loss_sum=st.floats(allow_nan=False),
    phases_ns=st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 4),
    payload_bytes=whole,
)


@given(headers)
def test_a_header_reads_back(header: Header) -> None:
    assert len(header.encode()) == HEADER_BYTES
    assert decode_header(header.encode()) == header


@given(st.binary(max_size=2 * HEADER_BYTES))
def test_other_bytes_are_refused_as_what_they_are(data: bytes) -> None:
    with pytest.raises(FrameError):
        decode_header(data)


@given(headers, st.integers(0, HEADER_BYTES - 1), st.integers(1, 255))
def test_a_changed_byte_never_raises_anything_else(header: Header, position: int, flip: int) -> None:
    data = bytearray(header.encode())
    data[position] ^= flip
    try:
        decode_header(data)
    except FrameError:
        pass


def test_another_version_is_named() -> None:
    data = bytearray(Header(Kind.END, 1).encode())
    data[4] = 9
    with pytest.raises(FrameError, match="speaks protocol 9, this one 2. Install the same version"):
        decode_header(data)
