"""``%aner doctor``, ``%aner cluster`` and ``%%aner``, which runs a case or suite written in YAML."""

from __future__ import annotations

import argparse
import contextlib
import shlex
from collections.abc import Generator
from typing import Any, Final, NoReturn

from IPython.core.error import UsageError
from IPython.display import display

from aner_nb.doctor import diagnose
from aner_nb.errors import AnerError
from aner_nb.suites import Suite, parse_suite
from aner_nb.views import table

_HELP: Final = (
    "Write %aner doctor, %aner cluster [ADDRESS], or %%aner [--scheduler ADDRESS] [--out FOLDER] above YAML."
)


def register(shell: Any) -> None:
    """Bring the magics to a shell; what ``%load_ext aner_nb`` does."""
    shell.register_magic_function(_line, "line", "aner")
    shell.register_magic_function(_cell, "cell", "aner")


def _line(line: str) -> Any:
    """Show what is installed (``%aner doctor``), or a cluster (``%aner cluster [ADDRESS]``)."""
    words = shlex.split(line)
    with _plain_errors():
        match words:
            case ["doctor"]:
                return _doctor()
            case ["cluster", *address] if len(address) <= 1:
                return _cluster(*address)
            case _:
                raise UsageError(_HELP)


def _cell(line: str, cell: str) -> Any:
    """Run the case or suite that the cell describes in YAML, and show the result.

    ``%%aner [--scheduler ADDRESS] [--out FOLDER]``: a single case returns its `Trial`; a suite, or anything with
    ``--out``, runs into the folder and returns its `Study`. Without ``--scheduler``, a local cluster is started.
    """
    options = _options(line)
    with _plain_errors():
        chosen = parse_suite(cell, "cell", default_name="cell")
        if options.out or len(chosen.cases) > 1:
            return _suite(chosen, options)
        return _case(chosen, options)


def _case(chosen: Suite, options: argparse.Namespace) -> Any:
    from aner_nb.execution import run

    case = chosen.cases[0]
    if case.channel == "inline":
        return run(case).raise_unless_passed()
    with _hosting(options.scheduler, [str(placement) for placement in case.placements]) as cluster:
        return run(case, cluster).raise_unless_passed()


def _suite(chosen: Suite, options: argparse.Namespace) -> Any:
    from aner_nb.study import run_suite

    out = options.out or f"results/{chosen.name}"
    with _hosting(options.scheduler, chosen.placements) as cluster:
        return run_suite(chosen, cluster, out=out)


@contextlib.contextmanager
def _hosting(scheduler: str, placements: Any) -> Generator[Any]:
    from aner_nb.launch import connect, local_cluster

    with connect(scheduler) if scheduler else local_cluster(placements) as cluster:
        yield cluster


def _doctor() -> None:
    rows = [
        (
            "ok" if line.good else "missing" if line.required else "no",
            line.subject,
            line.finding,
            "" if line.good else line.remedy,
        )
        for line in diagnose()
    ]
    head = ("", "subject", "finding", "what to do")
    plain = "\n".join("  ".join(part for part in row if part) for row in rows)
    display({"text/html": table(head, rows), "text/plain": plain}, raw=True)


def _cluster(address: str = "") -> None:
    with _hosting(address, ("cpu:1", "cpu:1")) as cluster:
        display(cluster)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}. {_HELP}")


def _options(line: str) -> argparse.Namespace:
    parser = _Parser(prog="%%aner", add_help=False)
    parser.add_argument("--scheduler", default="")
    parser.add_argument("--out", default="")
    return parser.parse_args(shlex.split(line))


@contextlib.contextmanager
def _plain_errors() -> Generator[None]:
    """Turn our errors into one line without a traceback."""
    try:
        yield
    except AnerError as error:
        raise UsageError(str(error)) from None
