"""What watching a run costs: native fit with the monitor on and off, interleaved, in a real Jupyter kernel.

The kernel is started here and its messages are read, as a browser would; two ranks compute Iris or digits in NumPy, so
that updates are short and many: the hardest case for whoever watches. Every round runs each case with the
monitor off and on, in alternating order. Two ratios are given: of the medians, and of the means of the fastest
quarter, which other programs on the machine disturb least. Beside them stands the processor time that watching
took, measured directly: handing over and taking in each update, and building and sending each message.

    python benchmarks/monitor_cost.py [--rounds N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import queue
import statistics
import time
from pathlib import Path
from typing import Any

from jupyter_client.manager import start_new_kernel

LIMIT = 0.01
MESSAGES_LIMIT = 10.0
CASES = {
    "iris, 0.3 ms updates": "data=aner.iris(), layers=[16, 3], batch=30, epochs=1200",
    "digits, 1 ms updates": "data=aner.digits(), layers=[128, 64, 10], batch=256, epochs=150",
}
SETUP = """
import tempfile, threading, time
import aner_nb as aner
from aner_nb.background import BackgroundRun
from aner_nb.progress import Progress
from aner_nb.suites import Suite
from aner_nb.widgets import RunMonitor

cluster = aner.local_cluster(["numpy:1", "numpy:1"])
CASES = {cases}
spent = [0.0]

def timed(function):
    def wrapper(*values):
        began = time.thread_time()
        try:
            return function(*values)
        finally:
            spent[0] += time.thread_time() - began
    return wrapper

def fit(name, watched):
    suite = Suite("cost", (CASES[name],), warm_ups=0, repetitions=1)
    out = tempfile.mkdtemp(prefix="monitor-cost-")
    spent[0] = 0.0
    if watched:
        run = BackgroundRun(suite, cluster, out=out)
        monitor = RunMonitor()
        monitor._publish = timed(monitor._publish)
        run.start()
        monitor.watch(run)
        run.wait()
        time.sleep(0.6)
        study, _ = run.study, monitor.close()
    else:
        done = []
        thread = threading.Thread(target=lambda: done.append(aner.run_suite(suite, cluster, out=out)))
        thread.start()
        thread.join()
        study = done[0]
    receipt = study.receipts[0]
    return (receipt.status, receipt.clocks.native_fit_ns, receipt.counts.updates,
            receipt.noise.events_dropped, spent[0])

def see_seconds():
    "Processor time for one update, from the loop's record of it to the monitor's, in seconds."
    from aner_nb.events import Emitter, TrialStarted, UpdateDone
    progress = Progress([], [], {{}})
    emitter = Emitter([progress.see])
    emitter.emit(TrialStarted("x", "measured", 1, ("numpy",), 4000, 1))
    spent = 0.0
    for _ in range(25):
        began = time.process_time()
        for index in range(4000):
            emitter.emit(UpdateDone(index, 1.0, index))
        emitter._drain()
        spent += time.process_time() - began
    return spent / 100_000
"""


class Kernel:
    """A kernel, and a count of the widget messages that it sends."""

    def __init__(self) -> None:
        self._manager, self._client = start_new_kernel(kernel_name="python3")
        self.messages = 0

    def run(self, code: str) -> Any:
        """Run code; return the value of its last expression, which must be a literal."""
        request = self._client.execute(code, user_expressions={})
        result = None
        while True:
            try:
                message = self._client.get_iopub_msg(timeout=300)
            except queue.Empty:
                raise SystemExit("the kernel is silent") from None
            kind, content = message["msg_type"], message["content"]
            self.messages += kind == "comm_msg"
            if message["parent_header"].get("msg_id") != request:
                continue
            if kind == "error":
                raise SystemExit("\n".join(content["traceback"]))
            if kind == "execute_result":
                result = eval(content["data"]["text/plain"], {"__builtins__": {}})  # our own literals
            if kind == "status" and content["execution_state"] == "idle":
                return result

    def close(self) -> None:
        """End the kernel."""
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)


def measure(rounds: int) -> dict[str, Any]:
    """Return for each case what `rounds` rounds gave."""
    kernel = Kernel()
    cases = ", ".join(
        f"{name!r}: aner.Case('case-{index}', ranks=['numpy:1', 'numpy:1'], {fields})"
        for index, (name, fields) in enumerate(CASES.items())
    )
    try:
        kernel.run(SETUP.format(cases=f"{{{cases}}}"))
        see = float(kernel.run("see_seconds()"))
        found: dict[str, Any] = {name: {"off": [], "on": [], "code": [], "messages": []} for name in CASES}
        for name in CASES:
            kernel.run(f"fit({name!r}, False)")  # not counted
        for number in range(rounds):
            for name in CASES:
                for watched in (False, True) if number % 2 else (True, False):
                    _one(kernel, name, watched, see, found[name])
    finally:
        kernel.close()
    return {"see_us": see * 1e6, "cases": {name: _summary(values) for name, values in found.items()}}


def _one(kernel: Kernel, name: str, watched: bool, see: float, values: dict[str, list[float]]) -> None:
    before, began = kernel.messages, time.monotonic()
    status, fit_ns, updates, dropped, publishing = kernel.run(f"fit({name!r}, {watched})")
    if status != "passed" or dropped:
        raise SystemExit(f"{name}: {status}, {dropped} events dropped")
    values["on" if watched else "off"].append(fit_ns / 1e9)
    if watched:
        values["code"].append((publishing + updates * see) / (fit_ns / 1e9))
        values["messages"].append((kernel.messages - before) / (time.monotonic() - began))


def _summary(values: dict[str, list[float]]) -> dict[str, float]:
    off, on = statistics.median(values["off"]), statistics.median(values["on"])
    return {
        "fit_off_s": off,
        "fit_on_s": on,
        "ratio_of_medians": on / off,
        "ratio_of_fastest_quarter": _fastest(values["on"]) / _fastest(values["off"]),
        "code_share": statistics.median(values["code"]),
        "messages_per_second": max(values["messages"]),
    }


def _fastest(values: list[float]) -> float:
    return statistics.fmean(sorted(values)[: max(1, len(values) // 4)])


def main() -> None:
    """Measure, print the table, and fail if the monitor's own code costs more than the limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result = measure(options.rounds)
    print(f"one update handed over and taken in: {result['see_us']:.2f} µs")
    columns = ("off, s", "on, s", "medians", "fastest", "own code", "messages/s")
    print(f"{'case':24} " + " ".join(f"{column:>10}" for column in columns))
    for name, row in result["cases"].items():
        print(
            f"{name:24} {row['fit_off_s']:10.3f} {row['fit_on_s']:10.3f} {row['ratio_of_medians']:10.4f} "
            f"{row['ratio_of_fastest_quarter']:10.4f} {row['code_share']:10.2%} {row['messages_per_second']:10.1f}"
        )
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    worst = max(row["code_share"] for row in result["cases"].values())
    loudest = max(row["messages_per_second"] for row in result["cases"].values())
    if worst > LIMIT or loudest > MESSAGES_LIMIT:
        raise SystemExit(f"over the limit: {worst:.2%} of native fit, {loudest:.1f} messages/s")


if __name__ == "__main__":
    main()
