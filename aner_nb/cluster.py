"""The only module that knows Dask: which machines there are, and one pinned long-running task a rank.

Dask places the ranks, tells when a worker is lost, restarts workers and carries the invitations. No update
passes through its scheduler.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import ipaddress
import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, cast
from urllib.parse import urlsplit

import distributed
from distributed.scheduler import KilledWorker
from distributed.utils import get_ip

from aner_nb import __version__
from aner_nb.backends.base import Partition
from aner_nb.case import Placement
from aner_nb.channels.socket import Encryption, Invitation
from aner_nb.dask_frames import workers_of
from aner_nb.errors import AnerError, ClusterError, RankFailed, RankLost
from aner_nb.host import RankSetup, describe_worker, host_rank
from aner_nb.inventory import configuration_id, platform_names
from aner_nb.matching import hostable, lasting_name, match_offers
from aner_nb.placing import place_rows
from aner_nb.ranks import Offer, Ranks
from aner_nb.session import Session

_CONNECT_SECONDS: Final = 10
_RESTART_SECONDS: Final = 20
"""A restart takes one or two seconds; one that a crash of the same worker crosses was seen not to end in a minute."""
_FINISH_SECONDS: Final = 3.0
_LOCK_SECONDS: Final = 5
_ANSWER_SECONDS: Final = 10.0
_RETURN_SECONDS: Final = 8.0
_PLACING_CHECK_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Platform:
    """A machine of the cluster."""

    name: str
    configuration_id: str
    capacity: dict[str, Any]


class Cluster:
    """A Dask cluster, seen as platforms and placements.

    Use `local_cluster` or `connect` to get one. It is a context manager; closing it closes what it started. `client` is
    Dask's own, for other work on the same workers.
    """

    def __init__(self, client: distributed.Client, owned: Any = None, encryption: Encryption = "tls") -> None:
        self._client = self.client = client
        self._encryption: Encryption = encryption
        self._owned = owned
        self._busy = threading.Lock()
        self._used: set[str] = set()
        self.platforms: tuple[Platform, ...] = ()
        self.offers: tuple[Offer, ...] = ()
        self.refresh()

    def refresh(self) -> None:
        """Ask every worker anew what it offers.

        Raises
        ------
        ClusterError
            If no worker answers, or workers have no aner-nb of this version.
        """
        workers = self._workers()
        answers: dict[str, Any] = cast("Any", self._client.sync(_ask, self._client, list(workers)))
        if not answers:
            raise ClusterError(
                "the cluster has no workers.", remedy="Start workers, then call refresh() or connect again."
            )
        for address, answer in answers.items():
            if isinstance(answer, BaseException):
                raise ClusterError(
                    f"a worker could not say what it offers ({type(answer).__name__}: {answer}).",
                    where=str(workers[address]["name"]),
                    remedy=f"Install aner-nb {__version__} in the worker's environment.",
                )
        names = platform_names([answer["machine_key"] for answer in answers.values()])
        platforms: dict[str, Platform] = {}
        offers: list[Offer] = []
        for address, answer in answers.items():
            worker = workers[address]
            platform = _platform(names[answer["machine_key"]], answer)
            platforms.setdefault(platform.name, platform)
            name = lasting_name(address, worker)
            for text in answer["offers"]:
                offers.append(_offer(platform, Placement.parse(text), name, int(worker["nthreads"])))
        self.platforms = tuple(sorted(platforms.values(), key=lambda platform: platform.name))
        self.offers = tuple(sorted(offers, key=lambda offer: (str(offer.placement), offer.worker)))

    @property
    def placements(self) -> tuple[Placement, ...]:
        """Every placement on offer, in a fixed order; CPU placements may repeat."""
        return tuple(offer.placement for offer in self.offers)

    def available(self, placements: Sequence[Placement]) -> tuple[int, ...]:
        """Return which of the ranks could be hosted now: all, if lost workers come back within seconds."""
        deadline = time.monotonic() + _RETURN_SECONDS
        while True:
            with contextlib.suppress(ClusterError):
                self.refresh()
                found = hostable(placements, self.offers)
                if len(found) == len(placements) or time.monotonic() > deadline:
                    return found
            if time.monotonic() > deadline:
                return ()
            time.sleep(0.25)

    def match(self, placements: Sequence[Placement]) -> tuple[Offer, ...]:
        """Return a worker for each rank; no worker is used twice.

        Raises
        ------
        BackendUnavailable
            If the cluster has no such placement, or too few of it, or TensorFlow does not fit.
        """
        return match_offers(placements, self.offers)

    @contextlib.contextmanager
    def open_ranks(
        self,
        setups: Sequence[RankSetup],
        partitions: Sequence[Partition],
        *,
        channel: str,
        stop: Callable[[], None] = lambda: None,
        fresh: bool = True,
    ) -> Generator[Ranks]:
        """Start one rank for each set-up, ready for the first update; end them all at the end of the block.

        Parameters
        ----------
        channel : {"auto", "shared_memory", "socket"}
        stop
            Called while waiting; raises to give up.
        fresh
            Start the ranks in new worker processes where the cluster can.

        Raises
        ------
        BackendUnavailable, ClusterError, RankLost, RankFailed, DeadlineExceeded
        """
        if not self._busy.acquire(timeout=_LOCK_SECONDS):
            raise ClusterError("this cluster is running another trial.", remedy="Wait for it, or cancel it.")
        try:
            offers = self.match([setup.placement for setup in setups])
            with self._locked(offers):
                if fresh:
                    self._freshen(offers)
                addresses = self._addresses(offers)
                place_rows(self._client, setups, addresses)
                self._used.update(addresses)
                tasks = _Tasks(self._client, stop)
                own = _own_address(addresses)
                session = Session(channel=channel, host=own, check=tasks.check, encryption=self._encryption)
                try:
                    for rank, address in enumerate(addresses):
                        tasks.start(session.invitation(rank), address)
                    settled = [
                        dataclasses.replace(setup, placement=offer.placement)
                        for setup, offer in zip(setups, offers, strict=True)
                    ]
                    ranks = session.gather(settled, partitions, offers)
                    tasks.placed = True
                    yield ranks
                    session.close()
                    tasks.finish()
                except BaseException:
                    session.close()
                    tasks.cancel()
                    raise
        finally:
            self._busy.release()

    @contextlib.contextmanager
    def _locked(self, offers: Sequence[Offer]) -> Generator[None]:
        """Hold the workers, so that runs of two clients don't wait for each other's ranks for ever."""
        lock = distributed.MultiLock([f"aner-worker-{offer.worker}" for offer in offers], client=self._client)
        if not lock.acquire(timeout=_LOCK_SECONDS):
            raise ClusterError(
                "another client runs a trial on these workers.", remedy="Wait for it, or use other workers."
            )
        try:
            yield
        finally:
            if _connected(self._client):  # else the lock goes with the scheduler
                with contextlib.suppress(Exception):
                    lock.release()

    def _workers(self) -> dict[str, Any]:
        """Return what the scheduler knows of its workers, by address."""
        return workers_of(self._client)

    def _addresses(self, offers: Sequence[Offer]) -> list[str]:
        by_name = {lasting_name(address, worker): address for address, worker in self._workers().items()}
        missing = [offer for offer in offers if offer.worker not in by_name]
        if missing:
            raise RankLost(
                "its worker left the cluster before the trial began.",
                where=str(missing[0].placement),
                remedy="Start the worker again, then refresh().",
            )
        return [by_name[offer.worker] for offer in offers]

    def _freshen(self, offers: Sequence[Offer]) -> None:
        """Restart the workers that hosted a rank of ours before, where they are under a nanny."""
        self._wait_for_workers({offer.worker for offer in offers}, _RETURN_SECONDS)
        addresses = self._addresses(offers)
        stale = [address for address in addresses if address in self._used]
        if not stale:
            return
        try:
            self._client.restart_workers(stale, timeout=_RESTART_SECONDS)
        except ValueError:  # not under a nanny: nothing was restarted, and the receipt says so
            return
        except TimeoutError as error:
            raise ClusterError(
                f"workers did not come back within {_RESTART_SECONDS} s of their restart.",
                remedy="Look at the workers' logs.",
            ) from error
        self._wait_for_workers({offer.worker for offer in offers}, _RESTART_SECONDS)

    def _wait_for_workers(self, names: set[str], seconds: float) -> None:
        """Wait until all of them are there, as after a loss while their nannies start them anew."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if names <= {lasting_name(address, worker) for address, worker in self._workers().items()}:
                return
            time.sleep(0.02)

    def close(self) -> None:
        """Disconnect; stop what `local_cluster` started."""
        self._client.close()
        if self._owned is not None:
            self._owned.close(timeout=10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _repr_html_(self) -> str:
        from aner_nb.views import cluster_html

        return cluster_html(self)

    def __repr__(self) -> str:
        lines = [f"Cluster of {len(self.platforms)} platform(s)"]
        for platform in self.platforms:
            own = [str(offer.placement) for offer in self.offers if _on(offer, platform)]
            facts = platform.capacity
            lines.append(
                f"  {platform.name}: {facts['processor']}, {facts['usable_cores']} cores, "
                f"{facts['memory_gib']} GiB; offers {', '.join(own)}"
            )
        return "\n".join(lines)


class _Tasks:
    """The Dask tasks that host the ranks of one run."""

    def __init__(self, client: distributed.Client, stop: Callable[[], None]) -> None:
        self._client = client
        self._stop = stop
        self._futures: list[distributed.Future[Any]] = []
        self._lost: AnerError | None = None
        self._addresses: list[str] = []
        self._asked = time.monotonic()
        self.placed = False
        """Whether all ranks are connected: from then on a closed connection tells of a loss, and nobody is asked."""

    def start(self, invitation: Invitation, address: str) -> None:
        """Start the task of a rank on the worker at `address` and nowhere else."""
        future = self._client.submit(
            host_rank,
            dataclasses.asdict(invitation),
            key=f"aner-rank-{invitation.run_id:016x}-{invitation.rank}",
            pure=False,
            workers=[address],
            allow_other_workers=False,
            retries=0,
        )
        future.add_done_callback(lambda done: self._ended(invitation.rank, done))
        self._futures.append(future)
        self._addresses.append(address)

    def _ended(self, rank: int, future: distributed.Future[Any]) -> None:
        """Note that a task ended badly; called by Dask on a thread of its own."""
        if future.status not in ("error", "lost"):
            return
        error = future.exception()
        if isinstance(error, AnerError):
            self._lost = error
        elif isinstance(error, KilledWorker):
            self._lost = RankLost("Dask lost its worker.", where=f"rank {rank}")
        else:
            self._lost = RankFailed(f"{type(error).__name__}: {error}.", where=f"rank {rank}")

    def check(self) -> None:
        """Raise what Dask said about a rank, or what `stop` says."""
        if self._lost is not None:
            raise self._lost
        if not _connected(self._client):
            raise ClusterError("the scheduler is gone.", remedy="Start it again and connect anew.")
        if not self.placed and time.monotonic() - self._asked > _PLACING_CHECK_SECONDS:
            self._check_workers()
            self._asked = time.monotonic()
        self._stop()

    def _check_workers(self) -> None:
        """Raise if a rank's worker is gone: Dask keeps a task for an address that has left, and says nothing."""
        try:
            workers = workers_of(self._client)
        except Exception as error:
            raise ClusterError(
                f"the scheduler was lost while ranks were placed ({type(error).__name__}).",
                remedy="Start it again and connect anew.",
            ) from error
        for rank, address in enumerate(self._addresses):
            if address not in workers:
                raise RankLost(
                    "its worker left the cluster while ranks were placed.",
                    where=f"rank {rank}",
                    remedy="The trial can be run again when the worker is back.",
                )

    def finish(self) -> None:
        """Wait until the tasks are over, so that their workers are free, and forget them."""
        deadline = time.monotonic() + _FINISH_SECONDS
        while not all(future.done() for future in self._futures) and time.monotonic() < deadline:
            time.sleep(0.005)
        for future in self._futures:
            future.release()

    def cancel(self) -> None:
        """Forget the tasks at once; those that run end with their connection, the others never start."""
        if _connected(self._client):  # a client that tries to connect again would keep us waiting
            with contextlib.suppress(Exception):
                self._client.cancel(self._futures, force=True)


def _connected(client: distributed.Client) -> bool:
    return client.status == "running"


def _own_address(workers: Sequence[str]) -> str:
    """Return the address of ours that every one of the workers can reach."""
    hosts = {urlsplit(address).hostname or "" for address in workers} - {""}
    far = [host for host in hosts if not ipaddress.ip_address(host).is_loopback]
    return str(get_ip(far[0], 80)) if far else "127.0.0.1"


async def _ask(client: distributed.Client, addresses: Sequence[str]) -> dict[str, Any]:
    """Return each worker's description, or its error; a worker that hangs keeps nobody waiting for long."""

    async def ask_one(address: str) -> Any:
        ask: Any = client._run  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        answer = ask(describe_worker, workers=[address], on_error="return")
        return (await asyncio.wait_for(answer, _ANSWER_SECONDS))[address]

    answers = await asyncio.gather(*map(ask_one, addresses), return_exceptions=True)
    return dict(zip(addresses, answers, strict=True))


def _platform(name: str, answer: dict[str, Any]) -> Platform:
    return Platform(name, configuration_id(answer["capacity"]), answer["capacity"])


def _offer(platform: Platform, placement: Placement, worker: str, worker_threads: int) -> Offer:
    threads = placement.threads
    if placement.backend in ("cpu", "numpy") and not threads:
        threads = worker_threads
    named = dataclasses.replace(placement, platform=platform.name, threads=threads)
    return Offer(
        named,
        worker,
        platform.configuration_id,
        platform.capacity["packages"].get("tensorflow", ""),
    )


def _on(offer: Offer, platform: Platform) -> bool:
    return offer.placement.platform == platform.name
