"""The command line: thin over the same functions as the notebooks."""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Annotated, Any, Final, Self

import rich
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from aner_nb import __version__, machine
from aner_nb.errors import AnerError, Cancelled
from aner_nb.events import (
    EpochValidated,
    Event,
    StageEntered,
    SuiteStarted,
    TrialEnded,
    TrialStarted,
    UpdateDone,
)

INTERRUPTED: Final = 130

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Which of my machines, alone or together, trains this Dense model fastest?",
)
_console: Final = Console()
_errors: Final = Console(stderr=True)

Scheduler = Annotated[
    str, typer.Option("--scheduler", help="Address of a Dask scheduler; without it, a local cluster.")
]


@app.command()
def run(
    what: Annotated[str, typer.Argument(metavar="SUITE|CASE.yaml", help="Suite's name, or a YAML file.")],
    out: Annotated[Path, typer.Option("--out", help="Results folder; an earlier run there goes on.")],
    scheduler: Scheduler = "",
    encryption: Annotated[
        str, typer.Option(help="Between hosts 'tls', or 'network' where the network itself encrypts.")
    ] = "tls",
    deadline: Annotated[float, typer.Option(help="Seconds without any reply before a trial fails.")] = 60.0,
    only: Annotated[
        list[str] | None, typer.Option(help="Cases by name, such as 'iris*'; repeatable.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="Cases of this dtype: float32 or float64.")] = "",
    backend: Annotated[
        str, typer.Option(help="Cases all of whose ranks are on cpu, cuda, metal or numpy.")
    ] = "",
    kind: Annotated[str, typer.Option(help="Cases that are 'standalone', or a 'group'.")] = "",
    *,
    here: Annotated[
        bool, typer.Option("--here", help="Run all ranks on this machine, whichever machine a case names.")
    ] = False,
) -> None:
    """Run a suite, or a case of your own, into a results folder."""
    from aner_nb.study import run_suite
    from aner_nb.suites import suite
    from aner_nb.tables import rich_table

    chosen = suite(what).select(names=only or (), dtype=dtype, backend=backend, kind=kind)
    if here:
        facts = machine.capacity()
        chosen = chosen.on_one_host(machine.devices(facts), facts["usable_cores"])
    with _cluster(scheduler, encryption) as cluster, _Watching() as watching:
        study = run_suite(chosen, cluster, out=out, subscribers=[watching.see], deadline_seconds=deadline)
    study.publish()
    _console.print(rich_table(study.suite.name, study.rows(), _console.width))
    _console.print(f"public bundle: {out / 'public' / 'report.html'}")
    failed = [receipt for receipt in study.receipts if receipt.status == "failed"]
    if not study.complete:
        _errors.print(
            f"[bold]not complete[/]: {len(failed)} trial(s) failed; run the same command to try them again."
        )
        raise typer.Exit(1)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Results folder.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Where the bundle goes; DIR/public otherwise.")
    ] = None,
) -> None:
    """Write the public bundle of a results folder anew."""
    from aner_nb.study import open_study

    _console.print(str(open_study(folder).publish(out)))


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Results folder.")],
    out: Annotated[
        Path,
        typer.Option("--out", help="A table (.csv, .md, .tex), a trace (.json), or results (.aner.json)."),
    ],
    case: Annotated[str, typer.Option(help="For a trace: the case.")] = "",
    repetition: Annotated[int, typer.Option(help="For a trace: which measured trial.")] = 1,
) -> None:
    """Write the table of a study, a trace that Perfetto opens, or results that JupyterLab opens."""
    from aner_nb.study import RESULTS_SUFFIX, open_study

    study = open_study(folder)
    if out.name.endswith(RESULTS_SUFFIX):
        _console.print(str(study.save_results(out)))
    elif out.suffix == ".json":
        _console.print(str(study.save_trace(out, case, repetition)))
    else:
        _console.print(str(study.save_table(out)))


@app.command()
def verify(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Public bundle, or the results folder.")],
) -> None:
    """Check a public bundle; recomputes everything and trusts nothing."""
    from aner_nb.verification import describe_findings
    from aner_nb.verification import verify as verify_bundle

    findings = verify_bundle(folder)
    typer.echo(describe_findings(findings))
    if findings:
        raise typer.Exit(1)


@app.command()
def hardware(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Results folder of a published study.")],
) -> None:
    """Write a short text for an issue: which backends computed where, agreement, what was not run."""
    from aner_nb.hardware_report import hardware_report

    path = folder / "hardware.md"
    path.write_text(hardware_report(folder / "public"), encoding="utf-8")
    _console.print(str(path))


@app.command()
def cluster(scheduler: Scheduler = "") -> None:
    """Show the platforms and placements of a cluster."""
    from aner_nb.launch import connect, local_cluster

    with connect(scheduler) if scheduler else local_cluster() as found:
        table = Table("platform", "processor", "cores", "memory", "placements", "TensorFlow", "configuration")
        for platform in found.platforms:
            own = [offer for offer in found.offers if offer.placement.platform == platform.name]
            facts = platform.capacity
            table.add_row(
                platform.name,
                str(facts["processor"]),
                str(facts["usable_cores"]),
                f"{facts['memory_gib']} GiB",
                ", ".join(str(offer.placement).split("/")[1] for offer in own),
                own[0].tensorflow or "none",
                platform.configuration_id[:12],
            )
        _console.print(table)


@app.command()
def doctor() -> None:
    """Say what is installed, which backends work, and how to mend what does not."""
    from aner_nb.doctor import diagnose

    table = Table("", "subject", "finding", "what to do")
    lines = diagnose()
    for line in lines:
        mark = "[green]ok[/]" if line.good else "[red]missing[/]" if line.required else "[yellow]no[/]"
        texts = (line.subject, line.finding, "" if line.good else line.remedy)
        table.add_row(mark, *map(escape, texts))
    _console.print(table)
    if not all(line.good for line in lines if line.required):
        raise typer.Exit(1)


@app.command()
def lab() -> None:
    """Open JupyterLab."""
    if importlib.util.find_spec("jupyterlab") is None:
        raise AnerError("JupyterLab is not installed.", remedy="pip install 'aner-nb[lab]'")
    raise typer.Exit(subprocess.run([sys.executable, "-m", "jupyterlab"], check=False).returncode)


@app.callback(invoke_without_command=True)
def _version(
    *,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    if version:
        rich.print(f"aner-nb {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; an `AnerError` is one sentence on stderr and exit code 1."""
    try:
        # Outside of its standalone mode, the framework returns the code of a `typer.Exit` and does not raise it.
        code = app(standalone_mode=False)
    except Cancelled:
        _errors.print("interrupted; what was measured is kept: run the same command to go on.")
        sys.exit(INTERRUPTED)
    except AnerError as error:
        _errors.print(f"[bold red]error[/] {escape(str(error))}", highlight=False)
        sys.exit(1)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(INTERRUPTED)
    except Exception as error:
        show = getattr(error, "show", None)  # a usage error of the command line
        if show is None:
            raise
        show()
        sys.exit(2)
    sys.exit(code if isinstance(code, int) else 0)


@contextlib.contextmanager
def _cluster(scheduler: str, encryption: Any) -> Generator[Any]:
    if not scheduler:
        yield None
        return
    from aner_nb.launch import connect

    with connect(scheduler, encryption=encryption) as found:
        yield found


class _Watching:
    """Live progress in the terminal: one bar for the suite, one for the trial that runs."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=_console,
        )
        self._suite: TaskID | None = None
        self._trial: TaskID | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def see(self, event: Event) -> None:
        """Show an event."""
        progress = self._progress
        match event:
            case SuiteStarted():
                done = event.trial_count - event.missing_count
                self._suite = progress.add_task(
                    escape(f"suite {event.suite}"), total=event.trial_count, completed=done, note=""
                )
            case TrialStarted():
                name = f"  {event.case}, {event.role.replace('_', '-')} {event.repetition}"
                self._trial = progress.add_task(escape(name), total=event.update_count, note="")
            case StageEntered() if self._trial is not None:
                progress.update(self._trial, note=event.stage)
            case UpdateDone() if self._trial is not None:
                progress.update(self._trial, completed=event.index + 1, note=f"loss {event.loss:.4f}")
            case EpochValidated() if self._trial is not None:
                accuracy = event.evaluation.accuracy
                shown = f"loss {event.evaluation.loss:.4f}" if accuracy is None else f"{accuracy:.2%}"
                progress.update(self._trial, note=f"epoch {event.epoch + 1}: validation {shown}")
            case TrialEnded():
                self._end(event)
            case _:
                pass

    def _end(self, event: TrialEnded) -> None:
        if self._trial is not None:
            self._progress.remove_task(self._trial)
            self._trial = None
        if self._suite is not None:
            self._progress.advance(self._suite)
        name = escape(f"{event.case}, {event.role.replace('_', '-')} {event.repetition}")
        fit = f"native fit {event.native_fit_ns / 1e9:.3f} s" if event.native_fit_ns else ""
        accuracy = f", test {event.test_accuracy:.2%}" if event.test_accuracy is not None else ""
        reason = f": {event.reason}" if event.reason else ""
        colour = {"passed": "green", "not_run": "yellow"}.get(event.status, "red")
        status = event.status.replace("_", " ")
        if event.stopped_after is not None:
            status += f", stopped early after {event.stopped_after} epochs"
        self._progress.console.print(
            f"[{colour}]{status}[/] {name}  {fit}{accuracy}{escape(reason)}", highlight=False
        )


if __name__ == "__main__":
    main()
