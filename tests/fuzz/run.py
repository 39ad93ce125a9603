"""Feed mutated inputs to every parser and print a table: ``python -m tests.fuzz.run --inputs 100000``.

Exit code 1, and the input in full, if anything but an `AnerError` came out of one.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from aner_nb.errors import AnerError
from tests.fuzz.parsers import Parser, parsers


@dataclass(slots=True)
class Tally:
    """What came of the inputs of one parser."""

    parser: str
    inputs: int = 0
    refused: int = 0
    """With an `AnerError`; of a bundle: with findings."""
    accepted: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    """Seconds of the slowest input."""
    others: list[tuple[object, BaseException]] = field(default_factory=list)
    """Inputs with any other outcome, and those that took too long."""


LONGEST_SECONDS = 5.0
"""A single input that takes longer counts as one that hangs."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in what runs longer."""

    def ring(_number: int, _frame: object) -> None:
        raise TimeoutError(f"not done within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def fuzz(parser: Parser, inputs: int, seed: int) -> Tally:
    """Feed a number of inputs."""
    tally = Tally(parser.name)
    began = time.perf_counter()
    for number in range(inputs):
        made = parser.make(random.Random(f"{seed}/{parser.name}/{number}"))
        before = time.perf_counter()
        try:
            with time_limit(LONGEST_SECONDS):
                accepted = parser.feed(made)
        except AnerError:
            accepted = False
        except Exception as error:
            tally.others.append((made, error))
            continue
        tally.slowest = max(tally.slowest, time.perf_counter() - before)
        tally.inputs += 1
        tally.accepted += accepted
        tally.refused += not accepted
    tally.inputs += len(tally.others)
    tally.seconds = time.perf_counter() - began
    return tally


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--inputs", type=int, default=100_000, help="for each parser")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--only", choices=list(parsers()), action="append")
    chosen = options.parse_args()
    print(
        "| parser | inputs | refused as AnerError or findings | accepted | other errors | slowest | seconds |"
    )
    print("|---|---|---|---|---|---|---|")
    worst = 0
    for name, parser in parsers().items():
        if chosen.only and name not in chosen.only:
            continue
        tally = fuzz(parser, chosen.inputs, chosen.seed)
        worst += len(tally.others)
        print(
            f"| {tally.parser} | {tally.inputs:,} | {tally.refused:,} | {tally.accepted:,} | {len(tally.others)} "
            f"| {tally.slowest * 1000:.0f} ms | {tally.seconds:.0f} |",
            flush=True,
        )
        for made, error in tally.others[:5]:
            print(f"{type(error).__name__}: {error}\n  {str(made)[:3000]!r}", file=sys.stderr)
    sys.exit(worst > 0)


if __name__ == "__main__":
    main()
