"""Running a suite into a results folder, and what came of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from aner_nb.analysis import StudySummary, summarise
from aner_nb.case import Case
from aner_nb.errors import AnerError, CaseError
from aner_nb.events import Subscriber, SuiteStarted
from aner_nb.execution import DEADLINE_SECONDS, run
from aner_nb.published import PublicBundle, is_public_bundle
from aner_nb.ranks import RankHost
from aner_nb.receipts import TrialReceipt
from aner_nb.recording import steps_table
from aner_nb.store import ResultsFolder, StoreError
from aner_nb.suites import Slot, Suite, suite, suite_from_record
from aner_nb.tables import Row, frame_of, rows_of, table_text
from aner_nb.timeline import trace_json
from aner_nb.trial import Trial

if TYPE_CHECKING:
    import pandas

RESULTS_SUFFIX: Final = ".aner.json"
"""Ends the name of a file that JupyterLab opens as a report."""


class PlatformHost(RankHost, Protocol):
    """A cluster that also knows its platforms' facts."""

    @property
    def platforms(self) -> Sequence[Any]:
        """See `aner_nb.cluster.Cluster.platforms`."""
        ...


@dataclass(frozen=True, slots=True)
class Study:
    """The results in a folder."""

    folder: ResultsFolder | PublicBundle
    suite: Suite
    receipts: tuple[TrialReceipt, ...]
    complete: bool
    """Whether every trial of the suite has passed or could not be run."""

    def __repr__(self) -> str:
        trials = sum(receipt.role == "measured" and receipt.status == "passed" for receipt in self.receipts)
        state = "" if self.complete else ", not complete"
        return f"<Study {self.suite.name}: {trials} measured trials of {len(self.suite.cases)} cases{state}>"

    def _repr_html_(self) -> str:
        from aner_nb.views import study_html

        return study_html(self)

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:  # noqa: FBT001 -- IPython's protocol
        from aner_nb.views import study_text

        printer.text(study_text(self))

    def summary(self) -> StudySummary:
        """Return medians, baselines, ratios, agreement and warnings of all cases."""
        if isinstance(self.folder, PublicBundle):
            return self.folder.summary()
        vectors: dict[tuple[str, int], NDArray[np.float64]] = {}
        for receipt in self.receipts:
            if receipt.role == "measured" and receipt.status == "passed":
                vector = self.folder.vector(receipt)
                if vector is not None:
                    vectors[receipt.case_name, receipt.repetition] = vector
        return summarise(self.receipts, [case.name for case in self.suite.cases], vectors)

    def rows(self) -> list[Row]:
        """Return the table of the study: one row of figures a case, in the suite's order."""
        return rows_of(self.summary(), self.suite.cases)

    def table(self) -> pandas.DataFrame:
        """Return the table of the study as a DataFrame: one row a case, units in the columns' names."""
        return frame_of(self.rows())

    def save_table(self, path: str | Path) -> Path:
        """Write the table of the study to a file: CSV, Markdown or LaTeX, by its suffix ``.csv``, ``.md``, ``.tex``.

        Raises
        ------
        CaseError
            If the suffix is another.
        """
        target = Path(path)
        target.write_text(table_text(self.rows(), target.suffix), encoding="utf-8")
        return target

    def save_trace(self, path: str | Path, case: str, repetition: int = 1) -> Path:
        """Write every phase of every update of a measured trial as a trace for Perfetto or Chrome's viewer.

        Raises
        ------
        StoreError
            If there are no step columns of such a trial.
        """
        target = Path(path)
        title = f"{case}, repetition {repetition}"
        target.write_bytes(trace_json(self._columns(case, repetition), title))
        return target

    def publish(self, target: str | Path | None = None) -> Path:
        """Write the public bundle and return its folder; None: ``public`` in the results folder.

        Raises
        ------
        BundleError
            If a trial ran on an emulated device.
        StoreError
            If the study was read from a public bundle.
        """
        if isinstance(self.folder, PublicBundle):
            raise StoreError(
                "this is a public bundle already.", where=str(self.folder.path), remedy="Copy it."
            )
        from aner_nb.bundle import write_bundle

        return write_bundle(
            Path(target) if target is not None else self.folder.path / "public",
            summary=self.summary(),
            receipts=self.receipts,
            configurations=self.folder.document("configurations") or {},
            suite=self.suite.to_record(),
        )

    def save_results(self, path: str | Path) -> Path:
        """Write what is published of the study, without its trials, to one file for JupyterLab to open as a report.

        Raises
        ------
        CaseError
            If the name does not end with ``.aner.json``.
        BundleError
            If a trial ran on an emulated device.
        """
        from aner_nb.bundle import results_document

        target = Path(path)
        if not target.name.endswith(RESULTS_SUFFIX):
            raise CaseError(
                f"{target.name!r} is no name for results.", remedy=f"End it with {RESULTS_SUFFIX}."
            )
        document = results_document(
            summary=self.summary(),
            receipts=self.receipts,
            configurations=self.folder.document("configurations") or {},
            suite=self.suite.to_record(),
        )
        target.write_bytes(document)
        return target

    def duration_chart(self, *, dark: bool = False) -> Any:
        """Return the chart of both clocks (Altair)."""
        from aner_nb.charts import duration_chart

        return duration_chart(self.summary(), dark=dark)

    def validation_chart(self, *, dark: bool = False) -> Any:
        """Return the chart of the validation losses (Altair)."""
        from aner_nb.charts import validation_chart

        return validation_chart(self.receipts, dark=dark)

    def memory_chart(self, *, dark: bool = False) -> Any:
        """Return the chart of memory by scope (Altair)."""
        from aner_nb.charts import memory_chart

        return memory_chart(self.summary(), dark=dark)

    def scaling_chart(self, *, dark: bool = False) -> Any:
        """Return the chart of the groups' speed beside the ideal (Altair)."""
        from aner_nb.charts import scaling_chart

        return scaling_chart(self.summary(), dark=dark)

    def timeline_chart(self, case: str, repetition: int = 1, *, dark: bool = False) -> Any:
        """Return the chart of where a typical update of a case goes (Altair)."""
        from aner_nb.charts import timeline_chart

        return timeline_chart(self._columns(case, repetition), case, dark=dark)

    def steps(self, case: str, repetition: int = 1) -> Any:
        """Return one row an update of a measured trial, with all phases, as a DataFrame."""
        return steps_table(self._columns(case, repetition))

    def _columns(self, case: str, repetition: int) -> dict[str, NDArray[Any]]:
        for receipt in self.receipts:
            if (receipt.case_name, receipt.role, receipt.repetition) == (case, "measured", repetition):
                columns = self.folder.steps(receipt)
                if columns is not None:
                    return columns
        raise StoreError(
            f"there are no step columns of {case!r}, repetition {repetition}.",
            where=str(self.folder.path),
            remedy=f"Cases: {', '.join(item.name for item in self.suite.cases)}.",
        )

    def measured(self, case: Case) -> tuple[TrialReceipt, ...]:
        """Return the passed measured trials of a case, by repetition."""
        own = [
            receipt
            for receipt in self.receipts
            if receipt.case_name == case.name and receipt.role == "measured" and receipt.status == "passed"
        ]
        return tuple(sorted(own, key=lambda receipt: receipt.repetition))


def run_suite(
    which: str | Path | Suite,
    cluster: PlatformHost | None = None,
    *,
    out: str | Path,
    subscribers: Sequence[Subscriber] = (),
    stop: Callable[[], bool] = lambda: False,
    between: Callable[[Trial], None] = lambda _trial: None,
    deadline_seconds: float = DEADLINE_SECONDS,
) -> Study:
    """Run the trials of a suite that are missing from a results folder.

    Warm-ups and repetitions run in seeded rounds, one trial a case. Killed at any moment, the same call runs
    what is still missing, and nothing twice. A folder that holds other cases keeps them: the study has both.

    Parameters
    ----------
    which
        Name of a suite of the package, path of a YAML file, or a `Suite`.
    cluster
        None: a local cluster with the suite's placements is started, and stopped at the end.
    out
        The results folder; made if missing.
    between
        Called after each trial is saved, when no rank runs; may wait, or raise to end the run.

    Raises
    ------
    CaseError
        If the suite is wrong.
    StoreError
        If the folder cannot be used, holds other cases under the same names, or another run writes to it.
    """
    chosen = which if isinstance(which, Suite) else suite(which)
    folder = ResultsFolder(Path(out))
    with folder.writing():
        missing = _missing(chosen, folder)
        for subscriber in subscribers:
            subscriber(SuiteStarted(chosen.name, len(chosen.schedule()), len(missing)))
        held = folder.document("suite")
        if missing or held is None:
            whole = chosen.merged(_kept_suite(folder.path, held)) if held is not None else chosen
            folder.save_document("suite", whole.to_record())
        if missing:
            with hosting(chosen, cluster) as host:
                _save_platforms(folder, host)
                _run_slots(missing, host, folder, subscribers, stop, between, deadline_seconds)
    return open_study(out)


def open_study(path: str | Path) -> Study:
    """Return the study of a results folder, or of a public bundle that somebody gave you.

    A bundle is shown as its files state it; `aner-nb verify` recomputes it.

    Raises
    ------
    StoreError
        If the folder holds no study.
    """
    folder = PublicBundle(Path(path)) if is_public_bundle(Path(path)) else ResultsFolder(Path(path))
    record = folder.document("suite")
    if record is None:
        raise StoreError("the folder holds no results.", where=str(path), remedy="Run a suite into it first.")
    chosen = _kept_suite(folder.path, record)
    receipts = tuple(folder.receipts())
    passed = {receipt.case_name for receipt in receipts if receipt.status == "passed"}
    # One receipt says that a case cannot run here; its other trials are not tried.
    could_not = {receipt.case_name for receipt in receipts if receipt.status == "not_run"} - passed
    left = [slot for slot in _unanswered(chosen, receipts) if slot.case.name not in could_not]
    return Study(folder, chosen, receipts, complete=not left)


def _kept_suite(folder: Path, record: Mapping[str, Any]) -> Suite:
    try:
        return suite_from_record(record)
    except CaseError as error:
        raise StoreError(
            f"the suite of these results cannot be read ({error.what.rstrip('.')}).",
            where=str(folder / "suite.json"),
            remedy="Run the suite into this folder again after moving the file away: receipts are kept.",
        ) from error


def _missing(chosen: Suite, folder: ResultsFolder) -> list[Slot]:
    receipts = folder.receipts()
    contracts = {case.name: case.contract_id for case in chosen.cases}
    for receipt in receipts:
        if contracts.get(receipt.case_name, receipt.contract_id) != receipt.contract_id:
            raise StoreError(
                f"the folder holds another case under the name {receipt.case_name!r}.",
                where=str(folder.path),
                remedy="Give another folder, or another name to the changed case.",
            )
    return _unanswered(chosen, receipts)


def _unanswered(chosen: Suite, receipts: Sequence[TrialReceipt]) -> list[Slot]:
    """Return the trials of a suite that no receipt has passed; linear in their number."""
    passed = {
        (receipt.contract_id, receipt.role, receipt.repetition)
        for receipt in receipts
        if receipt.status == "passed"
    }
    contracts = {case.name: case.contract_id for case in chosen.cases}
    return [
        slot
        for slot in chosen.schedule()
        if (contracts[slot.case.name], slot.role, slot.repetition) not in passed
    ]


@contextlib.contextmanager
def hosting(chosen: Suite, cluster: PlatformHost | None) -> Generator[PlatformHost]:
    """Lend the cluster that was given, or one of this machine with the suite's placements until the block ends."""
    if cluster is not None:
        yield cluster
        return
    from aner_nb.launch import local_cluster

    with local_cluster(chosen.placements) as own:
        yield own


def _save_platforms(folder: ResultsFolder, host: PlatformHost) -> None:
    known = dict(folder.document("configurations") or {})
    for platform in host.platforms:
        known[platform.configuration_id] = {"platform": platform.name, "capacity": platform.capacity}
    folder.save_document("configurations", known)


def _run_slots(
    slots: Sequence[Slot],
    host: RankHost,
    folder: ResultsFolder,
    subscribers: Sequence[Subscriber],
    stop: Callable[[], bool],
    between: Callable[[Trial], None],
    deadline_seconds: float,
) -> None:
    not_run: dict[str, Trial] = {}
    for slot in slots:
        if slot.case.name in not_run:
            continue
        trial = run(
            slot.case,
            host,
            role=slot.role,
            repetition=slot.repetition,
            round_number=slot.round,
            position=slot.position,
            subscribers=subscribers,
            stop=stop,
            deadline_seconds=deadline_seconds,
        )
        if trial.receipt.status == "not_run":
            not_run[slot.case.name] = trial
        folder.save(trial)
        if trial.receipt.status == "cancelled":
            raise _cancelled(trial)
        between(trial)


def _cancelled(trial: Trial) -> AnerError:
    assert trial.error is not None
    return trial.error
