"""How the cost of an update grows with parameters, batch and ranks; a model of it; a simulation of up to 64 hosts.

    python benchmarks/growth.py [--seconds 400] [--json FILE] [--chart FILE.png]

Each point is a real training of a few updates on this machine's ranks of one thread. The fitted model is

    T = o + w * rows * parameters + a * parameters + x * (ranks - 1) * parameters + s * (ranks - 1)

with the rows of the largest shard. Points with more ranks than cores are labelled oversubscribed and are not fitted.
The simulation puts each rank on a host of its own and adds what must move over the slowest link: a star's vectors all
pass the coordinator's, a chain (which the package takes from five ranks on) has one each way on every link, and its
first piece passes through all ranks. It is arithmetic with the fitted numbers, not a measurement.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import altair as alt
import numpy as np

import aner_nb as aner
from aner_nb.channels.chain import PIECE
from aner_nb.charts import chart_svg, svg_png

EPOCHS = 3
UPDATES_PER_EPOCH = 6
LINKS = (1, 10, 100)
REDUCTIONS = ("chain", "star")
HOSTS = (1, 2, 4, 8, 16, 32, 64)
SIMULATED = ((407_050, 8192), (10_000_000, 8192))
"""Parameters and global batch of the simulated works."""


@dataclass(frozen=True, slots=True)
class Point:
    """One measured training."""

    sweep: str
    parameters: int
    batch: int
    ranks: int
    update_s: float
    oversubscribed: bool

    @property
    def shard(self) -> int:
        """Rows of the largest shard."""
        return -(-self.batch // self.ranks)


def points() -> Iterator[tuple[str, int, int, int]]:
    """Yield (sweep, hidden units, batch, ranks): one quantity varies in each sweep."""
    for hidden in (14, 136, 1360, 13_600, 136_000):  # about 1e3, 1e4, ... 1e7 parameters
        for ranks in (1, 2):
            yield "parameters", hidden, 256, ranks
    for batch in (32, 128, 512, 2048, 8192):
        for ranks in (1, 2):
            yield "batch", 1360, batch, ranks
    for ranks in (1, 2, 3, 4, 6, 8):
        yield "ranks", 1360, 2048, ranks


def measure(sweep: str, hidden: int, batch: int, ranks: int) -> Point:
    """Train for a few updates; the first epoch is not counted."""
    case = aner.Case(
        f"{sweep}-{hidden}-{batch}-{ranks}",
        data=aner.teacher(batch * UPDATES_PER_EPOCH * 5 // 4, 64, 10, seed=7),
        layers=[hidden, 10],
        batch=batch,
        epochs=EPOCHS,
        split=(0.8, 0.1, 0.1),
        ranks=["cpu:1"] * ranks,
    )
    with aner.local_cluster(["cpu:1"] * ranks) as cluster:
        trial = aner.run(case, cluster).raise_unless_passed()
    assert trial.steps is not None and trial.receipt.counts is not None
    totals = trial.steps.coordinator_ns[UPDATES_PER_EPOCH:, -1]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Point(
        sweep,
        trial.receipt.counts.parameters,
        batch,
        ranks,
        float(np.median(totals)) / 1e9,
        ranks > cores,
    )


def terms(parameters: int, shard: int, ranks: int) -> list[float]:
    """Return the model's columns for one update."""
    return [1.0, shard * parameters, parameters, (ranks - 1) * parameters, ranks - 1]


def fit(found: list[Point]) -> tuple[np.ndarray, float]:
    """Fit the model by least squares on relative errors with no negative cost; return it and the median error."""
    usable = [point for point in found if not point.oversubscribed]
    seconds = np.array([point.update_s for point in usable])
    table = np.array([terms(point.parameters, point.shard, point.ranks) for point in usable])
    columns = table / seconds[:, None]
    kept = list(range(columns.shape[1]))
    while True:  # drop the most negative cost until there is none
        solution, *_ = np.linalg.lstsq(columns[:, kept], np.ones(len(usable)), rcond=None)
        if solution.min() >= 0 or len(kept) == 1:
            break
        kept.pop(int(solution.argmin()))
    costs = np.zeros(columns.shape[1])
    costs[kept] = solution
    errors = np.abs(table @ costs / seconds - 1)
    return costs, float(np.median(errors))


def simulate(costs: np.ndarray) -> list[dict[str, float | str]]:
    """Return the speed over one host alone, for works, ways to add, links and hosts."""
    rows: list[dict[str, float | str]] = []
    for (parameters, batch), reduction, gigabits in itertools.product(SIMULATED, REDUCTIONS, LINKS):
        alone = float(np.dot(terms(parameters, batch, 1), costs))
        # Down go the float32 parameters, up the float64 sums.
        vector_s = parameters * (4 + 8) * 8 / (gigabits * 1e9)
        piece_s = min(PIECE, parameters) * (4 + 8) * 8 / (gigabits * 1e9)
        for hosts in HOSTS:
            columns = terms(parameters, -(-batch // hosts), hosts)
            if hosts == 1:
                moved = 0.0
            elif reduction == "star":
                moved = (hosts - 1) * vector_s
            else:
                # Each rank adds one vector, all at once; the first piece waits for every rank.
                columns[3] = parameters
                moved = vector_s + (hosts - 1) * piece_s
            seconds = float(np.dot(columns, costs)) + moved
            rows.append(
                {
                    "parameters": parameters,
                    "batch": batch,
                    "reduction": reduction,
                    "gigabits": gigabits,
                    "hosts": hosts,
                    "speed": alone / seconds,
                }
            )
    return rows


def chart(rows: list[dict[str, float | str]]) -> alt.FacetChart:
    """Draw the simulated speed, one panel a work, one line a link and way to add."""
    labelled = [{**row, "link": f"{row['gigabits']:g} Gb/s"} for row in rows]
    for row in labelled:
        row["work"] = f"{row['parameters']:,} parameters, batch {row['batch']:,}"
    hosts = alt.X("hosts:Q", scale=alt.Scale(type="log", base=2), title="hosts, one rank each")
    speed = alt.Y("speed:Q", scale=alt.Scale(type="log", base=2), title="speed over one host (simulated)")
    link = alt.Color(
        "link:N",
        title="slowest link",
        sort=[f"{gigabits} Gb/s" for gigabits in LINKS],
        scale=alt.Scale(range=["#D55E00", "#0072B2", "#009E73"]),
    )
    reduction = alt.StrokeDash("reduction:N", title="sums add up in a")
    drawn = alt.Chart(alt.Data(values=labelled)).encode(x=hosts, y=speed, color=link)
    return (
        (drawn.mark_line().encode(strokeDash=reduction) + drawn.mark_circle(opacity=1))
        .properties(width=240, height=200)
        .facet(column=alt.Column("work:N", title=None))
        .properties(title="Simulation, not a measurement: how far a group of hosts would pay")
    )


def main() -> None:
    """Measure, fit, simulate, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no new point after that time")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--chart", type=Path, help="a PNG file for the simulation")
    arguments = parser.parse_args()
    began = time.monotonic()
    found: list[Point] = []
    print(f"{'sweep':<12} {'parameters':>12} {'batch':>7} {'ranks':>6} {'ms an update':>13}")
    for sweep, hidden, batch, ranks in points():
        if time.monotonic() - began > arguments.seconds:
            print(f"stopped after {arguments.seconds:g} s")
            break
        point = measure(sweep, hidden, batch, ranks)
        found.append(point)
        label = "  oversubscribed" if point.oversubscribed else ""
        print(
            f"{sweep:<12} {point.parameters:>12,} {batch:>7} {ranks:>6} {point.update_s * 1e3:>13.3f}{label}",
            flush=True,
        )
    costs, error = fit(found)
    overhead, row, apply, exchange, rank = costs
    print(
        f"\nfitted: {overhead * 1e3:.3f} ms + {row * 1e12:.2f} ps a row and parameter"
        f" + {apply * 1e9:.2f} ns a parameter + {exchange * 1e9:.2f} ns a parameter and further rank"
        f" + {rank * 1e3:.3f} ms a further rank; median error {error:.1%}"
    )
    rows = simulate(costs)
    print("\nsimulated speed over one host (arithmetic with the fitted costs); hosts in the columns")
    print(
        f"{'parameters':>12} {'batch':>7} {'adding':>7} {'Gb/s':>5}  "
        + " ".join(f"{hosts:>6}" for hosts in HOSTS)
    )
    for start in range(0, len(rows), len(HOSTS)):
        line = rows[start : start + len(HOSTS)]
        print(
            f"{line[0]['parameters']:>12,} {line[0]['batch']:>7} {line[0]['reduction']:>7} {line[0]['gigabits']:>5}  "
            + " ".join(f"{row['speed']:>6.2f}" for row in line)
        )
    if arguments.json:
        record = {"points": [asdict(p) for p in found], "costs": costs.tolist(), "simulated": rows}
        arguments.json.write_text(json.dumps(record, indent=1))
    if arguments.chart:
        arguments.chart.write_bytes(svg_png(chart_svg(chart(rows))))


if __name__ == "__main__":
    main()
