"""The chain: the star's sum to the bit over real sockets, and a loss in the middle that is laid at the right door."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import aner_nb as aner
from aner_nb import host, session
from aner_nb.backends.base import AbstractGradientFunction, DeviceProof, GradientSum
from aner_nb.channels import chain
from aner_nb.channels.frames import HEADER_BYTES
from aner_nb.channels.socket import LEFT_TO_NETWORK, Invitation, connect, connect_to_rank
from aner_nb.collectives import chain as collective_module
from aner_nb.collectives.base import AbstractCollective, Exchange
from aner_nb.errors import AnerError, ContractBroken, DeadlineExceeded, RankFailed, RankLost
from aner_nb.plan import Update
from aner_nb.ranks import Ranks
from aner_nb.session import Session
from aner_nb.work import Work, make_setups, make_work
from tests.contract.test_channels import own_address


def vector(rank: int, update: int, size: int) -> np.ndarray:
    """Return numbers whose sum depends on the order of addition."""
    random = np.random.default_rng((rank, update))
    return random.standard_normal(size) * 10.0 ** random.integers(-12, 12, size)


Act = Callable[[int, int], None]


class Told(AbstractGradientFunction):
    """Answers with `vector` plus the parameters that came, after it has acted."""

    proof = DeviceProof("none", ("none",), {}, "none")
    compile_ns = 0
    trace_count = 1

    def __init__(self, rank: int, act: Act, lie: int) -> None:
        self._rank, self._act, self._lie = rank, act, lie

    def __call__(self, parameters: Any, block: tuple[int, int], out: Any, update: int = 0) -> GradientSum:
        self._act(self._rank, update)
        np.add(vector(self._rank, update, out.size), parameters, out=out)
        return GradientSum(block[1] - block[0] + self._lie, 0.5 + self._rank, out, (1, 2, 3, 4))

    def device_bytes(self) -> dict[str, int | None]:
        return {"current": None, "peak": None}

    def close(self) -> None:
        pass


class Running:
    """Ranks on threads of this process, joined by real sockets."""

    def __init__(self, ranks: Ranks, work: Work, collective: AbstractCollective) -> None:
        self.ranks, self.work, self.collective = ranks, work, collective
        self.lost = False

    def exchange(self, index: int = 0) -> Exchange:
        self.lost = True
        exchange = self.collective.exchange(self.update(index))
        self.lost = False
        return exchange

    def update(self, index: int = 0) -> Update:
        return next(self.work.plan.updates(index))

    def check_total(self, exchange: Exchange, index: int) -> None:
        size, wire = self.ranks.wire.size, self.ranks.wire.astype(np.float64)
        parts = tuple(
            GradientSum(0, 0.0, vector(rank, index, size) + wire, ())
            for rank in range(self.collective.rank_count)
        )
        star, total = np.empty(size), np.empty(size)
        Exchange(0, 0.0, parts, (), ()).sum_into(slice(None), star)
        exchange.sum_into(slice(None), total)
        assert total.tobytes() == star.tobytes()


def case(ranks: int, units: int = 3, dtype: Any = "float32") -> aner.Case:
    return aner.Case("chain", data=aner.iris(), layers=[units, 3], batch=40, epochs=20, dtype=dtype,
                     ranks=["numpy"] * ranks)  # fmt: skip


@contextmanager
def running(
    chosen: aner.Case,
    monkeypatch: pytest.MonkeyPatch,
    *,
    act: Act = lambda _rank, _update: None,
    lie: dict[int, int] | None = None,
    address: str = "127.0.0.1",
    encryption: Any = "tls",
    deadline: float = 20,
) -> Iterator[Running]:
    monkeypatch.setattr(session, "LARGEST_STAR", 1)
    monkeypatch.setattr(session, "SMALLEST_CHAINED", 1)
    lies = lie or {}
    monkeypatch.setattr(
        host, "open_gradient", lambda setup, _rows: Told(setup.rank, act, lies.get(setup.rank, 0))
    )
    monkeypatch.setattr(host.machine, "run_as_batch", lambda: None)
    work, _ = make_work(chosen)
    opened = Session(channel="socket", host=address, check=lambda: None, encryption=encryption)
    threads = [
        threading.Thread(target=host.host_rank, args=(dataclasses.asdict(opened.invitation(rank)),))
        for rank in range(len(chosen.placements))
    ]
    for thread in threads:
        thread.start()
    try:
        ranks = opened.gather(make_setups(work), work.partitions, [None] * len(threads))  # type: ignore[list-item]
        ranks.wire[:] = np.linspace(-1, 1, ranks.wire.size)
        run = Running(ranks, work, ranks.collective(deadline, lambda: None))
        yield run
        if not run.lost:
            ranks.close()
    finally:
        opened.close()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    ranks=st.integers(2, 8),
    units=st.integers(1, 60),
    dtype=st.sampled_from(["float32", "float64"]),
    piece=st.integers(1, 200),
)
def test_the_sum_is_that_of_the_star_to_the_bit(
    ranks: int, units: int, dtype: str, piece: int, no_leaks: None
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chain, "PIECE", piece)
        with running(case(ranks, units, dtype), patch) as run:
            assert run.collective.reduction == "chain, rank order"
            for index in range(2):
                exchange = run.exchange(index)
                run.check_total(exchange, index)
                update = run.update(index)
                assert [part.rows for part in exchange.parts] == [
                    stop - start for start, stop in update.shards
                ]
                assert exchange.rows == update.rows
                assert exchange.loss_sum == sum(0.5 + rank for rank in range(ranks))
                assert all(part.phases_ns == (1, 2, 3, 4) for part in exchange.parts)


@pytest.mark.parametrize("encryption", ["tls", "network"])
def test_between_hosts_links_are_as_safe_as_the_coordinators_connections(
    encryption: str, monkeypatch: pytest.MonkeyPatch, no_leaks: None
) -> None:
    if not own_address():
        pytest.skip("this host has no address beyond loopback")
    kinds: list[str] = []
    plain = chain.Link.__init__

    def seen(self: Any, connection: Any, *arguments: Any) -> None:
        kinds.append(type(connection).__name__)
        plain(self, connection, *arguments)

    monkeypatch.setattr(chain.Link, "__init__", seen)
    with running(case(3, 900), monkeypatch, address=own_address(), encryption=encryption) as run:
        told = {channel.encryption for channel in run.ranks.channels}
        for index in range(3):
            run.check_total(run.exchange(index), index)
    assert len(kinds) == 4
    assert set(kinds) == ({"SSLSocket"} if encryption == "tls" else {"socket"})
    assert told == ({"TLSv1.3 TLS_AES_256_GCM_SHA384"} if encryption == "tls" else {LEFT_TO_NETWORK})


def test_large_vectors_do_not_block_the_chain(monkeypatch: pytest.MonkeyPatch, no_leaks: None) -> None:
    # Far more than sockets buffer: it goes through only if every rank takes in what it passes on.
    with running(case(3, 150_000), monkeypatch) as run:
        run.check_total(run.exchange(), 0)


def test_what_is_counted_as_payload(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(case(3, 900, "float64"), monkeypatch) as run:
        size = run.ranks.wire.size * 8
        bytes_each = [channel.payload_bytes for channel in run.ranks.channels]
    assert [count // size for count in bytes_each] == [3, 4, 3]
    assert [count % size // HEADER_BYTES for count in bytes_each] == [4, 6, 5]


def test_ranks_of_a_chain_still_answer_single_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(case(3), monkeypatch) as run:
        for channel in run.ranks.channels:
            channel.post(5, (0, 4))
            while (part := channel.poll()) is None:
                pass
            own = vector(channel.rank, 5, run.ranks.wire.size) + run.ranks.wire
            np.testing.assert_array_equal(part.gradient, own)
        run.check_total(run.exchange(), 0)


def test_a_wrong_count_of_rows_breaks_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(case(4), monkeypatch, lie={2: 1}) as run:
        with pytest.raises(ContractBroken, match="rank 2: the rank answered for 11 rows in update 0"):
            run.exchange()


def test_a_failure_in_the_middle_is_that_ranks(monkeypatch: pytest.MonkeyPatch, no_leaks: None) -> None:
    def fail(rank: int, update: int) -> None:
        if (rank, update) == (2, 1):
            raise ValueError("it is too dark")

    with running(case(5), monkeypatch, act=fail) as run:
        run.exchange(0)
        with pytest.raises(RankFailed, match="rank 2: ValueError: it is too dark"):
            run.exchange(1)


def test_a_stuck_rank_is_named_after_the_deadline(monkeypatch: pytest.MonkeyPatch, no_leaks: None) -> None:
    held = threading.Event()

    def hold(rank: int, _update: int) -> None:
        if rank == 1:
            held.wait(10)

    with running(case(3), monkeypatch, act=hold, deadline=0.3) as run:
        with pytest.raises(DeadlineExceeded, match="rank 1: no reply in update 0 for 0.3 s"):
            run.exchange()
        held.set()


@pytest.mark.parametrize("units", [3, 100_000])
def test_a_link_that_breaks_alone_is_told_apart_from_a_loss(
    units: int, monkeypatch: pytest.MonkeyPatch, no_leaks: None
) -> None:
    links: dict[tuple[str, int], chain.Link] = {}
    form = host._form_chain

    def noting(stream: Any, guest: Invitation, own: str) -> chain.Links:
        found = form(stream, guest, own)
        if found.after is not None:
            links["after", guest.rank] = found.after
        return found

    monkeypatch.setattr(host, "_form_chain", noting)

    def cut(rank: int, update: int) -> None:
        if (rank, update) == (2, 1):
            links["after", 2].close()

    with running(case(5, units), monkeypatch, act=cut) as run:
        run.exchange(0)
        began = time.monotonic()
        with pytest.raises(RankLost, match="rank [23]: its link to rank [32] in the chain is gone"):
            run.exchange(1)
        assert time.monotonic() - began < 5


def test_a_place_in_the_chain_is_for_those_with_the_key(
    monkeypatch: pytest.MonkeyPatch, no_leaks: None
) -> None:
    listener = session.Listener(7, unix=False, host="127.0.0.1")
    invitation = listener.invitation(1)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(connect(invitation)[0]))
    thread.start()
    arrival = listener.accept(5)
    thread.join()
    assert arrival is not None
    coordinator = chain.FrameStream(found[0], 7)
    doorstep = chain.Doorstep(invitation, "127.0.0.1")
    offered = doorstep.record
    place = dataclasses.replace(invitation, rank=0, address=tuple(offered["address"]), certificate="")
    refused: list[Exception] = []

    def strangers() -> None:
        for stranger in (
            lambda: connect_to_rank(dataclasses.replace(place, key="00" * 32)),
            lambda: connect(place),  # holds the key, and proves what a rank proves to its coordinator
        ):
            try:
                stranger()
            except (OSError, EOFError, ValueError, RankLost) as error:
                refused.append(error)
        found.append(connect_to_rank(place))

    thread = threading.Thread(target=strangers)
    thread.start()
    links = doorstep.link(None, coordinator)
    thread.join()
    assert len(refused) == 2
    assert links.before is not None
    links.close()
    for connection in (arrival.connection, *found):
        connection.close()
    listener.close()


def test_a_rank_that_cannot_reach_the_next_says_so(monkeypatch: pytest.MonkeyPatch, no_leaks: None) -> None:
    monkeypatch.setattr(chain, "_ACCEPT_SECONDS", 1.0)

    def unreachable(invitation: Invitation) -> Any:
        if invitation.rank == 1:
            raise OSError("no route to host")
        return connect_to_rank(invitation)

    monkeypatch.setattr(chain, "connect_to_rank", unreachable)
    with pytest.raises(
        RankLost, match="rank 1: it and rank 2 did not get connected: .*no route to host.*firewalls"
    ):
        with running(case(3), monkeypatch):
            pass


class Scripted:
    """A channel that tells what a script says, once each."""

    def __init__(self, rank: int, *told: AnerError | None) -> None:
        self.rank, self._told = rank, list(told)

    def poll(self) -> None:
        said = self._told.pop(0) if self._told else None
        if said is not None:
            raise said

    def fileno(self) -> int:
        return -1


def blames(rank: int) -> aner.errors.LinkLost:
    return aner.errors.LinkLost("gone.", where=f"rank {rank}")


@pytest.mark.parametrize("first", [1, 3, 4])
def test_the_rank_that_is_gone_is_found_whoever_tells_first(first: int) -> None:
    gone = RankLost("the connection ended.", where="rank 2")
    told: dict[int, AnerError] = {0: blames(1), 1: blames(2), 2: gone, 3: blames(2), 4: blames(3)}
    channels: list[Any] = [Scripted(rank, None, error) for rank, error in told.items()]
    collective = collective_module.ChainCollective(np.zeros(1), channels, deadline_seconds=9)
    error = collective._culprit(first, told[first])  # type: ignore[arg-type]
    assert error is gone


def test_a_blame_of_nobody_is_still_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collective_module, "_BLAME_SECONDS", 0.1)
    channels: list[Any] = [Scripted(rank) for rank in range(3)]
    collective = collective_module.ChainCollective(np.zeros(1), channels, deadline_seconds=9)
    for strange in ("rank 99", "rank -1", "rank ²", "the moon", "rank 1"):
        error = collective._culprit(0, aner.errors.LinkLost("gone.", where=strange))
        assert isinstance(error, RankLost)
        assert error.where == "rank 0"
