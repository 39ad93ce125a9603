"""Write the kept inputs anew, from real runs: ``python -m tests.fuzz.make_corpus``. Those of found faults stay."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path

import msgspec

from aner_nb.channels.frames import Header, Kind
from aner_nb.receipts import FailureRecord, encode_receipt
from tests.fuzz.parsers import CORPUS, PARAMETERS, RUN_ID
from tests.study_fixtures import make_study, suite

SUITE = """\
name: small
placements: ["cpu:1", "numpy:1"]
repetitions: 2
seed: 3
defaults: {data: iris, layers: [8, 3], batch: 30, epochs: 2}
cases:
  - {name: alone, ranks: ["cpu:1"], optimizer: {kind: adam, learning_rate: 0.01}}
  - {name: pair, ranks: ["Atlas-01/cuda:0", ["cpu:2", 7]], split: [0.5, 0.25, 0.25]}
"""
CASE = """\
name: mine
data: &data {source: teacher, rows: 100, features: 4, classes: 3, seed: 7}
layers:
  - {units: 8, activation: tanh, initialiser: he_uniform}
  - 3
dtype: float64
batch: 16
epochs: 1
channel: socket
"""
TRAINING = """\
name: training
data: iris
layers: [{units: 8, l2: 0.001}, {kind: layer_norm}, {kind: dropout, rate: 0.2}, 3]
batch: 16
epochs: 9
optimizer:
  kind: adamw
  learning_rate: {kind: cosine_decay, initial_learning_rate: 0, decay_steps: 9, warmup_target: 0.1, warmup_steps: 2}
clip_norm: 1.0
class_weights: [1, 2, 0.5]
stop_early: {patience: 3, min_delta: 0.01, restore_best: true}
"""


def main() -> None:
    write("suite", "training.yaml", TRAINING.encode())
    write("suite", "suite.yaml", SUITE.encode())
    write("suite", "case.yaml", CASE.encode())
    chosen = suite()
    with tempfile.TemporaryDirectory() as name:
        study = make_study(
            Path(name), chosen=dataclasses.replace(chosen, cases=chosen.cases[:2]), repetitions=1
        )
        group = next(one for one in study.receipts if len(one.ranks) == 2 and one.role == "measured")
        group = msgspec.structs.replace(group, host={"name": "somewhere", "pid": 1})
        write("receipt", "group.json", encode_receipt(group))
        reason = FailureRecord(
            kind="rank_lost", what="gone.", where="rank 1", remedy="", reason="rank lost: rank 1"
        )
        failed = msgspec.structs.replace(
            group, status="failed", failure=reason, clocks=None, fingerprints=None, test=None
        )
        write("receipt", "failed.json", encode_receipt(failed))
        public = study.publish()
        for path in public.iterdir():
            if path.suffix in (".json", ".jsonl"):
                write("bundle", path.name, path.read_bytes())
        figures = json.loads((public / "summaries.json").read_text())
        page = f'<main></main><script type="application/json" id="figures">{json.dumps(figures)}</script>'
        write("bundle", "report.html", page.encode())
    failure = json.dumps(
        {"kind": "backend_unavailable", "what": "no device.", "where": "", "remedy": ""}
    ).encode()
    slot, wire = bytes(PARAMETERS * 8), bytes(PARAMETERS * 4)
    messages = {
        "request": Header(Kind.REQUEST, RUN_ID, 0, rows=3, payload_bytes=len(wire)).encode() + wire,
        "sum": Header(Kind.SUM, RUN_ID, 0, rows=3, loss_sum=1.5, payload_bytes=len(slot)).encode() + slot,
        "end": Header(Kind.END, RUN_ID).encode(),
        "failure": Header(Kind.FAILURE, RUN_ID, payload_bytes=len(failure)).encode() + failure,
        "report": Header(Kind.DOCUMENT, RUN_ID, payload_bytes=2).encode() + b"{}",
    }
    for kind, data in messages.items():
        write("frames", f"{kind}.bin", data)


def write(folder: str, name: str, data: bytes) -> None:
    path = CORPUS / folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


if __name__ == "__main__":
    main()
