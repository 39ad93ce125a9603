"""What the widgets take to open with a large study: 2,500 cases of four trials each, and 10,000 cases to pick from.

The study's trials are copies of real ones under other names. What is timed is a widget's making in the kernel, which
is all that a person waits for beside the transfer of its state; its size is given for that. The steps that a
person takes afterwards are timed too. How long the browser takes is in the browser tests.

    python benchmarks/widgets_scale.py [--cases N] [--json FILE]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

import aner_nb as aner
from aner_nb.background import BackgroundRun
from aner_nb.ranks import Offer
from aner_nb.study import Study
from aner_nb.suites import Suite

LIMIT_SECONDS = 2.0
TRIALS_PER_CASE = 4


def some_study(folder: Path) -> Study:
    """Return a real study of two small cases whose ranks are in this process."""
    cases = [
        aner.Case(
            f"case-{index}",
            data=aner.iris(),
            layers=[8, 3],
            batch=30,
            epochs=10,
            ranks=["numpy"],
            channel="inline",
        )
        for index in range(2)
    ]

    class NoCluster:
        platforms: tuple[Any, ...] = ()

        def open_ranks(self, *_: object, **__: object) -> Any:
            raise AssertionError("inline ranks need no cluster")

    run = BackgroundRun(Suite("scale", tuple(cases), repetitions=1), NoCluster(), out=folder)
    run.start()
    run.wait()
    if run.study is None:
        raise SystemExit(f"no study: {run.error}")
    return run.study


def enlarged(study: Study, cases: int) -> Study:
    """Return a study of so many cases, each with a warm-up and three measured trials."""
    model = next(one for one in study.receipts if one.role == "measured")
    roles = (("warm_up", 1), ("measured", 1), ("measured", 2), ("measured", 3))
    receipts = [
        msgspec.structs.replace(
            model,
            case_name=f"case-{case:05}",
            contract_id=str(case),
            role=role,
            repetition=number,
            round=number,
        )
        for case in range(cases)
        for role, number in roles
    ]
    first = study.suite.cases[0]
    named = tuple(dataclasses.replace(first, name=f"case-{case:05}") for case in range(cases))
    return dataclasses.replace(
        study, suite=dataclasses.replace(study.suite, cases=named), receipts=tuple(receipts)
    )


def state_bytes(widget: Any) -> int:
    """Return the size of what a browser is sent of a widget, without its module."""
    state = {name: value for name, value in widget.get_state().items() if name not in ("_esm", "_css")}
    return len(msgspec.json.encode(state, enc_hook=repr))


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds an action took, and its result."""
    began = time.perf_counter()
    result = action()
    return time.perf_counter() - began, result


def measure(cases: int) -> dict[str, float]:
    """Return seconds, or bytes, by what was measured."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        study = some_study(Path(name))
        offers = [Offer(aner.Placement.parse("Atlas-01/cpu:1"), "worker", "id", "2.20.0")]
        large = enlarged(study, cases // TRIALS_PER_CASE)
        many = enlarged(study, cases).suite.cases
        aner.StudyView(study)  # whatever is loaded at the first chart
        found["CasePicker, s"], picker = timed(lambda: aner.CasePicker(many, offers=offers))
        found["CasePicker: select all but ten, s"], _ = timed(
            lambda: picker.select(one.name for one in many[10:])
        )
        found["CasePicker: describe one, s"], _ = timed(
            lambda: picker._handle_custom_msg({"do": "describe", "row": cases // 2}, [])
        )
        found["CasePicker: other cluster, s"], _ = timed(lambda: picker.offered(None))
        found["CasePicker: state, bytes"] = state_bytes(picker)
        found["StudyView: table, s"], view = timed(lambda: aner.StudyView(large))
        found["StudyView: charts of 24 cases, s"], _ = timed(
            lambda: view.draw([f"case-{n:05}" for n in range(24)])
        )
        found["StudyView: CSV, s"], _ = timed(lambda: view.file("csv"))
        found["StudyView: state, bytes"] = state_bytes(view)
    return found


def main() -> None:
    """Print a table; fail if a widget opens too slowly."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000, help="cases to pick from; trials of the study")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = measure(options.cases)
    for what, value in found.items():
        print(f"{what:36} {value:12,.3f}" if what.endswith(", s") else f"{what:36} {value:12,.0f}")
    if options.json:
        options.json.write_text(json.dumps({"cases": options.cases, **found}, indent=2) + "\n")
    slow = {
        what: found[what] for what in ("CasePicker, s", "StudyView: table, s") if found[what] > LIMIT_SECONDS
    }
    if slow:
        raise SystemExit(f"over {LIMIT_SECONDS:.0f} s: {slow}")


if __name__ == "__main__":
    main()
