"""Everything in one cell: cluster, cases, run, results."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import ipywidgets

from aner_nb.background import BackgroundRun, run_into
from aner_nb.case import Case, Placement
from aner_nb.errors import AnerError, BackendUnavailable, CaseError
from aner_nb.hardware import TENSORFLOW_VERSIONS
from aner_nb.matching import match_offers
from aner_nb.ranks import Offer
from aner_nb.study import Study, open_study
from aner_nb.suites import Suite
from aner_nb.views import counted
from aner_nb.widgets.case_picker import CasePicker
from aner_nb.widgets.cluster_panel import ClusterPanel
from aner_nb.widgets.run_monitor import RunMonitor
from aner_nb.widgets.study_view import StudyView

if TYPE_CHECKING:
    from aner_nb.cluster import Cluster


class App(ipywidgets.VBox):
    """The four widgets, joined: what is picked is run on the cluster, watched, and shown.

    Use `app` to get one. The kernel stays free while a run goes on; what was measured is in the results folder,
    and the same call with the same folder goes on there, also after the kernel was restarted.
    """

    def __init__(
        self,
        which: str | Path | Suite | Iterable[Case],
        cluster: Cluster | None,
        out: str | Path | None,
        more: Sequence[str | Path | Suite],
    ) -> None:
        self.picker = CasePicker(which, more=more, offers=None if cluster is None else cluster.offers)
        self.cluster_panel = ClusterPanel(cluster)
        self.cluster_panel.expanded = False
        self.monitor = RunMonitor(on_start=self.start)
        self.results = StudyView()
        self.results.expanded = False
        self._follows = out is None
        self.monitor.out = str(out) if out is not None else self._default_out()
        super().__init__([self.cluster_panel, self.picker, self.monitor, self.results])
        self.picker.observe(self._picked, ["selected", "rows"])
        self.cluster_panel.observe(self._on_cluster, "cluster")
        self.monitor.observe(self._on_out, "out")
        self.monitor.on_end(self._ended)
        self._picked()
        self._join(run_into(self.monitor.out))
        threading.Thread(target=self._show_earlier, name="aner-earlier", daemon=True).start()

    @property
    def study(self) -> Study | None:
        """The study that is shown."""
        return self.results.study

    @property
    def run(self) -> BackgroundRun | None:
        """The run that goes on, or the last one."""
        return self.monitor.run

    def start(self) -> None:
        """Run the picked cases, as the button does.

        Raises
        ------
        CaseError
            If no case is picked.
        """
        suite = self.picker.suite
        placements = placements_for(suite)
        run = BackgroundRun(suite, lambda: self.cluster_panel.cluster_for(placements), out=self.monitor.out)
        run.start()
        self._join(run)

    def _join(self, run: BackgroundRun | None) -> None:
        """Watch a run that has begun, here or in an app that was shown before."""
        if run is None:
            return
        self.monitor.watch(run)
        if run.cluster is not None and self.cluster_panel.cluster is None:
            self.cluster_panel.show(cast("Cluster", run.cluster))
        self.cluster_panel.running(active=True)
        self.monitor.expanded = True
        self.picker.expanded = False
        self.results.expanded = False

    def close(self) -> None:
        """Cancel the run, stop the cluster that was started here, and take the widgets away."""
        if self.run is not None:
            self.run.cancel()
            self.run.wait(30)
        self.cluster_panel.disconnect()
        for child in self.children:
            child.close()
        super().close()

    def _default_out(self) -> str:
        return f"results/{self.picker.preset}"

    def _picked(self, _change: object = None) -> None:
        if self._follows and self.monitor.out != self._default_out():
            with self._quietly():
                self.monitor.out = self._default_out()
        active = self.run is not None and self.run.active
        count = len(self.picker.cases)
        trials = 0
        with contextlib.suppress(CaseError):
            trials = len(self.picker.suite.schedule())
        with self.monitor.hold_sync():
            self.monitor.can_start = bool(count) and not active
            self.monitor.start_label = f"Run {counted(count, 'case')}, {counted(trials, 'trial')}"

    @contextlib.contextmanager
    def _quietly(self) -> Any:
        self.monitor.unobserve(self._on_out, "out")
        try:
            yield
        finally:
            self.monitor.observe(self._on_out, "out")

    def _on_out(self, _change: object) -> None:
        self._follows = False

    def _on_cluster(self, change: Mapping[str, Any]) -> None:
        cluster = change["new"]
        self.picker.offered(None if cluster is None else cluster.offers)
        self.cluster_panel.running(self.run is not None and self.run.active)

    def _show_earlier(self) -> None:
        """Show what the results folder holds already."""
        with contextlib.suppress(AnerError, OSError):
            study = open_study(self.monitor.out)
            if self.results.study is None and study.receipts:
                self.results.show(study)

    def _ended(self, run: BackgroundRun) -> None:
        self.cluster_panel.running(active=False)
        self._picked()
        if run.study is not None and run.study.receipts:
            self.results.show(run.study)
            self.results.expanded = True
            if run.state == "finished" and not run.progress.counts()["failed"]:
                self.monitor.expanded = False  # the charts come to where the person is looking

    def _ipython_display_(self) -> None:
        """Show the widgets, and below them a still copy of the results that needs no kernel."""
        from IPython.display import display

        bundle = self._repr_mimebundle_()
        assert bundle is not None
        display(bundle, raw=True)
        self.results.display_still()


def placements_for(suite: Suite) -> tuple[str, ...]:
    """Return what a local cluster must offer so that every case can run that could run on this machine."""
    needed = list(suite.placements)
    for case in suite.cases:
        here = case.placements
        local = all(one.backend in ("cpu", "numpy") and not one.platform for one in here)
        if not local or case.channel == "inline":
            continue
        try:
            match_offers(here, _offers(needed))
        except BackendUnavailable:
            for text in dict.fromkeys(map(str, here)):
                lacking = sum(str(one) == text for one in here) - needed.count(text)
                needed += [text] * max(0, lacking)
    return tuple(needed)


def _offers(placements: Sequence[str]) -> list[Offer]:
    version = ".".join(map(str, TENSORFLOW_VERSIONS[1]))
    parsed = [Placement.parse(text) for text in placements]
    return [
        Offer(dataclasses.replace(one, threads=one.threads or 1), str(number), "", version)
        for number, one in enumerate(parsed)
    ]


def app(
    which: str | Path | Suite | Iterable[Case] = "quick",
    cluster: Cluster | None = None,
    *,
    out: str | Path | None = None,
    more: Sequence[str | Path | Suite] = (),
) -> App:
    """Show cluster, cases, run and results in one cell.

    Parameters
    ----------
    which
        A suite (name, path of a YAML file, or `Suite`), or cases.
    cluster
        None: the app starts a local one when something is run, or connects to one.
    out
        The results folder; None: ``results/`` and the suite's name.
    more
        Further suites to offer.

    Examples
    --------
    >>> app()  # doctest: +SKIP
    """
    return App(which, cluster, out, more)
