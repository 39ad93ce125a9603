"""A run's curves in TensorBoard or MLflow, through their own packages where they are installed.

Each is a subscriber: it gets the events that a progress bar gets, on the same thread beside the loop.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any, Final

from aner_nb.errors import CaseError
from aner_nb.events import EpochValidated, Event, Subscriber, TrialEnded, TrialStarted, UpdateDone

_MLFLOW_BATCH: Final = 500
"""Figures that are handed over at a time: half of what MLflow takes."""


def log_to_tensorboard(folder: str | Path) -> Subscriber:
    """Return a subscriber that writes event files which TensorBoard reads: ``tensorboard --logdir FOLDER``.

    Each trial has a folder of its own, ``FOLDER/CASE/ROLE-REPETITION``: the training loss of each update, and loss and
    accuracy of each validation, by the number of updates.

    Raises
    ------
    CaseError
        If the package ``tensorboard`` is not installed.

    Examples
    --------
    >>> trial = aner.run(case, cluster, subscribers=[log_to_tensorboard("logs")])  # doctest: +SKIP
    """
    try:
        from tensorboard.compat.proto import (  # pyright: ignore[reportMissingImports] -- an extra
            event_pb2,
            summary_pb2,
        )
        from tensorboard.summary.writer import (  # pyright: ignore[reportMissingImports] -- an extra
            record_writer,
        )
    except ImportError as error:
        raise _missing("tensorboard", "tensorboard") from error
    events: Any = event_pb2
    summaries: Any = summary_pb2
    return _TensorBoard(Path(folder), events.Event, summaries.Summary, record_writer.RecordWriter)


def log_to_mlflow(experiment: str = "aner_nb", *, tracking_uri: str | None = None) -> Subscriber:
    """Return a subscriber that makes each trial a run of an MLflow experiment.

    Parameters
    ----------
    experiment
        Made if there is none of that name.
    tracking_uri
        Where MLflow keeps it, such as ``sqlite:///mlflow.db`` or a server; None: what MLflow's settings say.

    Raises
    ------
    CaseError
        If neither ``mlflow`` nor ``mlflow-skinny`` is installed.
    """
    try:
        from mlflow import MlflowClient, entities  # pyright: ignore[reportMissingImports] -- an extra
    except ImportError as error:
        raise _missing("mlflow-skinny", "mlflow") from error
    client = MlflowClient(tracking_uri=tracking_uri)
    found = client.get_experiment_by_name(experiment)
    number = found.experiment_id if found is not None else client.create_experiment(experiment)
    return _Mlflow(client, number, entities.Metric)


def _missing(package: str, extra: str) -> CaseError:
    return CaseError(
        f"the package {package} is not installed.",
        where=f"log_to_{extra}",
        remedy=f"Install it with: pip install 'aner-nb[{extra}]'",
    )


def _scalars(event: Event) -> tuple[int, dict[str, float]]:
    """Return the updates applied so far, and the figures that an event brings."""
    if isinstance(event, UpdateDone):
        return event.index + 1, {"train/loss": event.loss}
    if isinstance(event, EpochValidated):
        figures = {"validation/loss": event.evaluation.loss}
        if event.evaluation.accuracy is not None:
            figures["validation/accuracy"] = event.evaluation.accuracy
        return event.update, figures
    return 0, {}


class _TensorBoard:
    """Writes one file of events a trial, with the package's own records and not through TensorFlow's files."""

    def __init__(self, folder: Path, event: Any, summary: Any, writer: Any) -> None:
        self._folder = folder
        self._event, self._summary, self._writer = event, summary, writer
        self._file: Any = None
        self._records: Any = None

    def __call__(self, event: Event) -> None:
        """Take an event."""
        if isinstance(event, TrialStarted):
            self._open(self._folder / event.case / f"{event.role}-{event.repetition}")
        if self._file is None:
            return
        step, figures = _scalars(event)
        if figures:
            values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in figures.items()]
            self._write(step=step, summary=self._summary(value=values))
        if isinstance(event, EpochValidated):
            self._file.flush()
        if isinstance(event, TrialEnded):
            self._file.close()
            self._file = None

    def _open(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        self._file = (folder / name).open("wb")
        self._records = self._writer(self._file)
        self._write(file_version="brain.Event:2")

    def _write(self, **fields: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **fields).SerializeToString())


class _Mlflow:
    """One run of an experiment a trial; figures are handed over some hundreds at a time."""

    def __init__(self, client: Any, experiment: str, metric: Any) -> None:
        self._client = client
        self._experiment = experiment
        self._metric = metric
        self._run = ""
        self._waiting: list[Any] = []

    def __call__(self, event: Event) -> None:
        """Take an event."""
        if isinstance(event, TrialStarted):
            self._begin(event)
        if not self._run:
            return
        step, figures = _scalars(event)
        now = int(time.time() * 1000)
        self._waiting += [self._metric(name, value, now, step) for name, value in figures.items()]
        if len(self._waiting) >= _MLFLOW_BATCH or isinstance(event, EpochValidated | TrialEnded):
            self._client.log_batch(self._run, metrics=self._waiting)
            self._waiting = []
        if isinstance(event, TrialEnded):
            self._end(event)

    def _begin(self, event: TrialStarted) -> None:
        name = f"{event.case} {event.role} {event.repetition}"
        run = self._client.create_run(self._experiment, run_name=name)
        self._run = str(run.info.run_id)
        for key, value in (
            ("case", event.case),
            ("role", event.role),
            ("repetition", event.repetition),
            ("ranks", ", ".join(event.ranks)),
            ("updates", event.update_count),
            ("epochs", event.epoch_count),
        ):
            self._client.log_param(self._run, key, value)

    def _end(self, event: TrialEnded) -> None:
        for name, value in (
            ("native_fit_s", None if event.native_fit_ns is None else event.native_fit_ns / 1e9),
            ("test/accuracy", event.test_accuracy),
        ):
            if value is not None:
                self._client.log_metric(self._run, name, value)
        self._client.set_tag(self._run, "status", event.status)
        ended = {"passed": "FINISHED", "cancelled": "KILLED"}.get(event.status, "FAILED")
        self._client.set_terminated(self._run, ended)
        self._run = ""
