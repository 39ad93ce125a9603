"""What every channel promises, over each way that two processes can be connected."""

from __future__ import annotations

import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from aner_nb.backends.base import GradientSum
from aner_nb.channels.frames import FrameError, Header, Kind
from aner_nb.channels.inline import InlineChannel
from aner_nb.channels.shared_memory import aligned_wire, make_arena, receive_arena, send_arena
from aner_nb.channels.socket import Listener, connect
from aner_nb.channels.stream import FrameStream, StreamChannel, StreamRankEnd
from aner_nb.errors import BackendUnavailable, CaseError, RankFailed, RankLost
from aner_nb.host import bytes_of
from aner_nb.launch import connect as connect_cluster

NOTHING = memoryview(b"")


def own_address() -> str:
    """Return an address of this host beyond loopback; empty without one."""
    for addresses in psutil.net_if_addrs().values():
        for address in addresses:
            if address.family == socket.AF_INET and not address.address.startswith("127."):
                return address.address
    return ""


class Pair:
    """A channel and its rank's end, in one process."""

    def __init__(self, kind: str, parameters: int) -> None:
        self.run_id = secrets.randbits(64)
        host = {"shared_memory": "", "loopback": "127.0.0.1", "tls": own_address()}[kind]
        listener = Listener(self.run_id, unix=kind == "shared_memory", host=host)
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(connect(listener.invitation(0))))
        thread.start()
        arrival = listener.accept(10)
        thread.join()
        listener.close()
        assert arrival is not None
        connection, shared = found[0]
        for each in (arrival.connection, connection):
            each.settimeout(None)
        self.encryption = arrival.encryption
        self.arena = make_arena(parameters, "float32", 1)
        if shared:
            send_arena(arrival.connection, self.arena)
            other = receive_arena(connection, parameters, "float32", 1)
            other.release()
            wire, slot = other.wire, other.slots[0]
        else:
            wire, slot = aligned_wire(parameters, "float32"), np.zeros(parameters)
        self.far = FrameStream(connection, self.run_id)
        self.end = StreamRankEnd(
            self.far,
            self.run_id,
            wire,
            slot,
            wire_payload=NOTHING if shared else bytes_of(wire),
            slot_payload=NOTHING if shared else bytes_of(slot),
        )
        near = FrameStream(arrival.connection, self.run_id)
        self.near = near
        self.channel = StreamChannel(
            0,
            near,
            self.run_id,
            self.arena.slots[0],
            wire_payload=NOTHING if shared else bytes_of(self.arena.wire),
            slot_payload=NOTHING if shared else bytes_of(self.arena.slots[0]),
            kind=kind,
            encryption=arrival.encryption,
        )

    def close(self) -> None:
        self.channel.abort()
        self.far.close()
        self.arena.release()


KINDS = ["shared_memory", "loopback", "tls"]


@pytest.fixture(params=KINDS)
def make_pair(request: pytest.FixtureRequest, no_leaks: None) -> Iterator[Callable[..., Pair]]:
    if request.param == "tls" and not own_address():
        pytest.skip("this host has no address beyond loopback")
    pairs: list[Pair] = []

    def make(parameters: int = 100) -> Pair:
        pairs.append(Pair(request.param, parameters))
        return pairs[-1]

    yield make
    for pair in pairs:
        pair.close()


def wait_for(channel: StreamChannel) -> GradientSum:
    deadline = time.monotonic() + 20
    while (part := channel.poll()) is None:
        assert time.monotonic() < deadline
    return part


def answer(pair: Pair, count: int) -> threading.Thread:
    """Answer `count` requests with the parameters times two, on a thread."""

    def work() -> None:
        for _ in range(count):
            request = pair.end.take()
            assert request is not None
            update, block, parameters = request
            np.multiply(parameters, 2.0, out=pair.end.slot)
            pair.end.give(update, GradientSum(block[1] - block[0], 0.5, pair.end.slot, (1, 2, 3, 4)))

    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.mark.parametrize("parameters", [1, 100, 300_000])
def test_requests_and_sums_arrive_whole_and_in_order(make_pair: Callable[..., Pair], parameters: int) -> None:
    pair = make_pair(parameters)
    thread = answer(pair, 3)
    for update in range(3):
        pair.arena.wire[:] = np.arange(parameters) + update
        pair.channel.post(update, (4, 4 + update))
        part = wait_for(pair.channel)
        assert (part.rows, part.loss_sum, part.phases_ns) == (update, 0.5, (1, 2, 3, 4))
        np.testing.assert_array_equal(part.gradient, pair.arena.wire.astype(np.float64) * 2)
    thread.join()


def test_poll_does_not_wait(make_pair: Callable[..., Pair]) -> None:
    pair = make_pair()
    pair.channel.post(0, (0, 1))
    began = time.perf_counter()
    assert pair.channel.poll() is None
    assert time.perf_counter() - began < 0.1


def test_a_lost_rank_is_noticed_at_once(make_pair: Callable[..., Pair]) -> None:
    pair = make_pair()
    pair.channel.post(0, (0, 1))
    pair.far.close()
    began = time.perf_counter()
    with pytest.raises(RankLost, match="rank 0: the connection ended in update 0"):
        wait_for(pair.channel)
    assert time.perf_counter() - began < 1


def test_a_lost_coordinator_ends_the_rank(make_pair: Callable[..., Pair]) -> None:
    pair = make_pair()
    pair.channel.abort()
    with pytest.raises(RankLost, match="the coordinator is gone"):
        pair.end.take()


@pytest.mark.parametrize(
    ("kind", "expected"), [("backend_unavailable", BackendUnavailable), ("strange", RankFailed)]
)
def test_a_failure_arrives_as_its_kind(make_pair: Callable[..., Pair], kind: str, expected: type) -> None:
    pair = make_pair()
    pair.channel.post(0, (0, 1))
    pair.far.send_document(
        Kind.FAILURE, {"kind": kind, "what": "no device.", "where": "rank 0", "remedy": "x"}
    )
    with pytest.raises(expected, match="rank 0: no device"):
        wait_for(pair.channel)


def test_a_message_of_another_run_is_refused(make_pair: Callable[..., Pair]) -> None:
    pair = make_pair()
    pair.channel.post(0, (0, 1))
    pair.far.send(Header(Kind.SUM, pair.run_id ^ 1), NOTHING)
    with pytest.raises(RankLost, match="a message of another run arrived"):
        wait_for(pair.channel)


def test_an_answer_to_another_update_is_refused(make_pair: Callable[..., Pair]) -> None:
    pair = make_pair()
    pair.channel.post(3, (0, 1))
    pair.end.give(2, GradientSum(1, 0.0, pair.end.slot, (0, 0, 0, 0)))
    with pytest.raises(RankLost, match="SUM of update 2 is out of order"):
        wait_for(pair.channel)


def test_a_payload_of_another_size_is_refused_before_it_is_read(make_pair: Callable[..., Pair]) -> None:
    pair = make_pair()
    pair.channel.post(0, (0, 1))
    pair.far.send(Header(Kind.SUM, pair.run_id, payload_bytes=2**60), NOTHING)
    with pytest.raises(RankLost, match="a payload of 1152921504606846976 bytes came where"):
        wait_for(pair.channel)


def test_a_document_that_is_too_large_is_refused(make_pair: Callable[..., Pair]) -> None:
    pair = make_pair()
    pair.far.send(Header(Kind.DOCUMENT, pair.run_id, payload_bytes=2**40), NOTHING)
    with pytest.raises(FrameError, match="is over"):
        pair.near.receive_document(5)


def test_the_end_brings_the_closing_report(make_pair: Callable[..., Pair]) -> None:
    pair = make_pair()

    def finish() -> None:
        assert pair.end.take() is None
        pair.far.send_document(Kind.DOCUMENT, {"served": 7})

    thread = threading.Thread(target=finish)
    thread.start()
    assert pair.channel.close() == {"served": 7}
    thread.join()


def test_abort_never_raises_nor_waits(make_pair: Callable[..., Pair]) -> None:
    pair = make_pair()
    began = time.perf_counter()
    pair.channel.abort()
    pair.channel.abort()
    assert time.perf_counter() - began < 0.5


def test_only_what_leaves_the_host_is_encrypted(make_pair: Callable[..., Pair]) -> None:
    pair = make_pair()
    expected = "TLSv1.3" if pair.channel.kind == "tls" else "none: stays on one host"
    assert pair.encryption.startswith(expected)


def test_strangers_are_refused_and_the_rank_still_gets_in(no_leaks: None) -> None:
    listener = Listener(1, unix=True, host="127.0.0.1")
    invitation = listener.invitation(0)
    silent = socket.create_connection(invitation.address)
    silent.close()
    assert listener.accept(5) is None
    talker = socket.create_connection(invitation.address)
    talker.sendall(b"GET / HTTP/1.1\r\n" * 20)
    assert listener.accept(5) is None
    talker.close()
    forged = listener.invitation(0)
    forged = type(forged)(**{**{f: getattr(forged, f) for f in forged.__slots__}, "key": "00" * 32})
    thread = threading.Thread(target=lambda: pytest.raises(RankLost, connect, forged))
    thread.start()
    assert listener.accept(5) is None
    assert listener.accept(5) is None
    thread.join()
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(connect(invitation)))
    thread.start()
    arrival = listener.accept(5)
    thread.join()
    assert arrival is not None
    assert arrival.same_host
    arrival.connection.close()
    found[0][0].close()
    listener.close()
    assert not Path(invitation.unix_path).exists()


def test_a_rank_without_a_way_says_what_to_do() -> None:
    listener = Listener(1, unix=True, host="127.0.0.1")
    invitation = listener.invitation(2)
    listener.close()
    with pytest.raises(RankLost, match="rank 2: no way to the coordinator .* open its firewall"):
        connect(invitation)


def test_the_private_folder_is_private() -> None:
    listener = Listener(1, unix=True, host="")
    folder = Path(listener.invitation(0).unix_path).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    assert folder.parent == Path(tempfile.gettempdir())
    listener.close()


def test_inline_ranks_compute_when_polled() -> None:
    wire = np.arange(3.0)

    def compute(update: int, block: tuple[int, int], parameters: Any, out: Any) -> GradientSum:
        out[:] = parameters + update
        return GradientSum(block[1], 1.0, out, (0, 0, 0, 0))

    channel = InlineChannel(0, wire, compute, lambda: {"served": 1})
    channel.post(5, (0, 2))
    part = channel.poll()
    assert part is not None
    assert (part.rows, part.gradient.tolist()) == (2, [5.0, 6.0, 7.0])
    assert channel.close() == {"served": 1}


def test_a_failure_that_is_never_finished_does_not_hold_the_coordinator(
    make_pair: Callable[..., Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aner_nb.channels.stream._CLOSING_SECONDS", 0.3)
    pair = make_pair()
    pair.channel.post(0, (0, 1))
    pair.far.send(Header(Kind.FAILURE, pair.run_id, payload_bytes=100), NOTHING)
    with pytest.raises(RankLost, match="timed out"):
        wait_for(pair.channel)


def test_a_failure_that_nests_without_end_is_refused(make_pair: Callable[..., Pair]) -> None:
    pair = make_pair()
    pair.channel.post(0, (0, 1))
    text = b"[" * 100_000
    pair.far.send(Header(Kind.FAILURE, pair.run_id, payload_bytes=len(text)), memoryview(text))
    with pytest.raises(RankLost, match="a document is not JSON"):
        wait_for(pair.channel)


def test_encryption_is_left_to_the_network_by_that_very_word_only() -> None:
    for word in ("none", "", "off", "Network"):
        with pytest.raises(CaseError, match="connect: encryption is .* Write 'tls', or 'network'"):
            connect_cluster("tcp://127.0.0.1:1", encryption=word)  # type: ignore[arg-type]
