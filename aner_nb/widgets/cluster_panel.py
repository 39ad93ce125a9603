"""The cluster: its platforms, what each offers, whether it answers; starting a local one, connecting to another."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import traitlets

from aner_nb.errors import CaseError
from aner_nb.front_ends import front_end
from aner_nb.ranks import Offer
from aner_nb.widgets.panel import Command, Panel, sentence

if TYPE_CHECKING:
    from aner_nb.cluster import Cluster, Platform

_DEFAULT: Final = ("cpu:1", "cpu:1")
_STARTING: Final = "Starting worker processes on this machine…"


class ClusterPanel(Panel):
    """Platforms, placements, capacity and health of a cluster.

    Parameters
    ----------
    cluster
        None: the panel offers to start a local one or to connect.
    wanted
        Placements of the local cluster that it offers to start.
    address
        Scheduler that it offers to connect to.
    """

    _esm, _css = front_end("cluster_panel")

    state = traitlets.Unicode("none", help="none, starting, ready, checking or running.").tag(sync=True)
    message = traitlets.Unicode(help="The state, in a sentence.").tag(sync=True)
    platforms = traitlets.List(traitlets.Dict(), help="Machines and what each offers.").tag(sync=True)
    wanted = traitlets.Unicode(help="Placements of a local cluster, as text.").tag(sync=True)
    address = traitlets.Unicode(help="A scheduler's address.").tag(sync=True)
    cluster = traitlets.Any(None, allow_none=True, help="The `Cluster`, once there is one.")

    def __init__(
        self, cluster: Cluster | None = None, *, wanted: Sequence[str] = _DEFAULT, address: str = ""
    ) -> None:
        self._owned = False
        self._automatic: tuple[str, ...] = ()
        self._working: threading.Thread | None = None
        super().__init__(wanted=", ".join(wanted), address=address)
        if cluster is None:
            self.message = "No cluster yet: a run starts one on this machine, or choose here."
        else:
            self.show(cluster)

    def show(self, cluster: Cluster) -> None:
        """Show a cluster that others own: it is not stopped here."""
        self._take(cluster, owned=False)

    def commands(self) -> Mapping[str, Command]:
        return {
            "start": lambda content: self.start(_split(content["placements"])),
            "connect": lambda content: self.connect(content["address"].strip()),
            "check": lambda _content: self.check(),
            "close": lambda _content: self.disconnect(),
        }

    def start(self, placements: Sequence[str]) -> None:
        """Start a local cluster, on a thread."""
        self.wanted = ", ".join(placements)

        def work() -> None:
            from aner_nb.launch import local_cluster

            self._take(local_cluster(placements), owned=True)

        self._begin("starting", _STARTING, work)

    def cluster_for(self, placements: Sequence[str]) -> Cluster:
        """Return the panel's cluster; where a person has chosen none, a local one with these placements.

        A local cluster that an earlier call started is replaced where it offers other placements.
        """
        from aner_nb.launch import local_cluster

        with self.lock:
            if self._automatic and self._automatic != tuple(placements):
                self.disconnect()
            if self.cluster is None:
                self.state, self.message = "starting", _STARTING
                try:
                    self._take(local_cluster(placements), owned=True)
                except BaseException:
                    self.state, self.message = "none", "The local cluster did not start."
                    raise
                self._automatic = tuple(placements)
            started: Any = self.cluster
            return started

    def connect(self, address: str) -> None:
        """Connect to a scheduler, on a thread."""
        if not address:
            raise CaseError(
                "no address was given.", remedy="Write a scheduler's, such as tls://scheduler:8786."
            )
        self.address = address

        def work() -> None:
            from aner_nb.launch import connect

            self._take(connect(address), owned=True)

        self._begin("starting", f"Connecting to {address}…", work)

    def check(self) -> None:
        """Ask every worker anew, on a thread; not while a trial runs, which it would disturb."""
        self._begin("checking", "Asking every worker…", self._check)

    def disconnect(self) -> None:
        """Let go of the cluster; what the panel started is stopped."""
        with self.lock:
            cluster, self.cluster = self.cluster, None
            self._automatic = ()
            with self.hold_sync():
                self.state, self.platforms = "none", []
                self.message = "No cluster."
        if cluster is not None and self._owned:
            threading.Thread(target=cluster.close, name="aner-close", daemon=True).start()

    def running(self, active: bool) -> None:  # noqa: FBT001
        """Say whether a trial may be running on the cluster; it is not checked or let go meanwhile."""
        if self.cluster is not None and self.state in ("ready", "running"):
            self.state = "running" if active else "ready"

    def _begin(self, state: str, message: str, work: Callable[[], object]) -> None:
        if self._working is not None and self._working.is_alive():
            raise CaseError("the panel is at work already.", remedy="Wait a moment.")
        before = self.state
        with self.hold_sync():
            self.error, self.state, self.message = "", state, message

        def run() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 -- shown
                with self.hold_sync():
                    self.error = sentence(error)
                    self.state = "ready" if self.cluster is not None else "none"
                    self.message = "" if before == "none" else "Not every worker answers."

        self._working = threading.Thread(target=run, name="aner-cluster", daemon=True)
        self._working.start()

    def _take(self, cluster: Cluster, *, owned: bool) -> None:
        with self.lock:
            self._owned = owned
            with self.hold_sync():
                self.state, self.message = "ready", ""
                self.platforms = describe(cluster.platforms, cluster.offers, ())
            self.cluster = cluster

    def _check(self) -> None:
        cluster: Any = self.cluster
        platforms, offers = cluster.platforms, cluster.offers
        began = time.monotonic()
        try:
            cluster.refresh()
        except Exception:
            self.platforms = describe(platforms, (), offers)
            raise
        taken = time.monotonic() - began
        here = {offer.worker for offer in cluster.offers}
        lost = [offer for offer in offers if offer.worker not in here]
        known = {platform.name: platform for platform in (*platforms, *cluster.platforms)}
        words = f"{len(here)} workers answered within {taken:.1f} s"
        with self.hold_sync():
            self.state = "ready"
            self.message = f"{words}; placements lost: {len(lost)}." if lost else f"{words}."
            self.platforms = describe(tuple(known.values()), cluster.offers, lost)
        self.notify_change(
            {"name": "cluster", "old": cluster, "new": cluster, "owner": self, "type": "change"}
        )


def describe(
    platforms: Sequence[Platform], offers: Sequence[Offer], lost: Sequence[Offer]
) -> list[dict[str, Any]]:
    """Return platforms as plain values for the browser."""
    return [
        {
            "name": platform.name,
            "facts": [[label, text] for label, text in _facts(platform)],
            "placements": [
                {
                    "text": str(offer.placement).split("/")[-1],
                    "tensorflow": _tensorflow(offer),
                    "health": health,
                }
                for health, some in (("answers", offers), ("lost", lost))
                for offer in some
                if offer.placement.platform == platform.name
            ],
        }
        for platform in platforms
    ]


def _facts(platform: Platform) -> list[tuple[str, str]]:
    capacity = platform.capacity
    rows = [
        ("processor", str(capacity.get("processor", "unknown"))),
        ("cores", f"{capacity.get('usable_cores', '?')} usable of {capacity.get('cores', '?')}"),
        ("memory", f"{capacity.get('memory_gib', '?')} GiB"),
    ]
    rows += [("GPU", f"{gpu['model']}, {gpu['memory_gib']} GiB") for gpu in capacity.get("gpus", ())]
    return [
        *rows,
        ("system", str(capacity.get("system", ""))),
        ("configuration", platform.configuration_id[:12]),
    ]


def _tensorflow(offer: Offer) -> str:
    return f"TensorFlow {offer.tensorflow}" if offer.tensorflow else "no TensorFlow"


def _split(text: str) -> list[str]:
    return [part for part in re.split(r"[,\s]+", text) if part]
