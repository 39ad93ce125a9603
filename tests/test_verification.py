"""A clean bundle verifies; every corruption of it is found and named; nothing private is in it."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aner_nb.bundle import BundleError, write_bundle
from aner_nb.receipts import FailureRecord
from aner_nb.verification import CHECKSUMS, DATA_FILES, content_findings, verify
from tests.study_fixtures import CONFIGURATION, make_study, placed, suite


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_study(tmp_path_factory.mktemp("study")).publish()


@pytest.fixture
def bundle(published: Path, tmp_path: Path) -> Path:
    shutil.copytree(published, tmp_path / "public")
    return tmp_path / "public"


def sign(bundle: Path) -> None:
    """Make the checksums fit again, as a careful forger would."""
    names = sorted(
        path.relative_to(bundle).as_posix()
        for path in bundle.rglob("*")
        if path.is_file() and path.name != CHECKSUMS
    )
    lines = [f"{hashlib.sha256((bundle / name).read_bytes()).hexdigest()}  {name}" for name in names]
    (bundle / CHECKSUMS).write_text("\n".join(lines) + "\n")


def in_trial(
    change: Callable[[dict[str, Any]], None], file: str = "trials.jsonl", case: str = "pair-f64"
) -> Any:
    def corrupt(bundle: Path) -> None:
        records = [json.loads(line) for line in (bundle / file).read_text().splitlines()]
        change(next(record for record in records if record["case_name"] == case))
        (bundle / file).write_text("".join(json.dumps(record) + "\n" for record in records))
        sign(bundle)

    return corrupt


def in_document(file: str, change: Callable[[Any], None]) -> Any:
    def corrupt(bundle: Path) -> None:
        value = json.loads((bundle / file).read_text())
        change(value)
        (bundle / file).write_text(json.dumps(value))
        sign(bundle)

    return corrupt


def in_summary(change: Callable[[dict[str, Any]], None]) -> Any:
    return in_document(
        "summaries.json", lambda value: change(next(c for c in value["cases"] if c["case"] == "pair-f64"))
    )


def append(file: str, text: str, *, signed: bool = True) -> Any:
    def corrupt(bundle: Path) -> None:
        with (bundle / file).open("a") as opened:
            opened.write(text)
        if signed:
            sign(bundle)

    return corrupt


def change_text(file: str, old: str, new: str) -> Any:
    def corrupt(bundle: Path) -> None:
        text = (bundle / file).read_text()
        assert old in text
        (bundle / file).write_text(text.replace(old, new, 1))
        sign(bundle)

    return corrupt


def remove(file: str) -> Any:
    return lambda bundle: (bundle / file).unlink()


def drop_last_trial(bundle: Path) -> None:
    lines = (bundle / "trials.jsonl").read_text().splitlines()
    (bundle / "trials.jsonl").write_text("\n".join(lines[:-1]) + "\n")
    sign(bundle)


def link(bundle: Path) -> None:
    (bundle / "more").symlink_to("/etc/hostname")


def cut_png(bundle: Path) -> None:
    path = bundle / "charts" / "memory.png"
    path.write_bytes(path.read_bytes()[:-30])
    sign(bundle)


def png_with_text(bundle: Path) -> None:
    import struct
    import zlib

    path = bundle / "charts" / "memory.png"
    data = path.read_bytes()
    body = b"Source\x00/home/ada/run"
    chunk = struct.pack(">I", len(body)) + b"tEXt" + body + struct.pack(">I", zlib.crc32(b"tEXt" + body))
    path.write_bytes(data[:33] + chunk + data[33:])
    sign(bundle)


CORRUPTIONS: dict[str, tuple[Any, str]] = {
    "a file changed": (append("trials.jsonl", "\n", signed=False), r"trials\.jsonl: has another SHA-256"),
    "a file missing": (
        remove("configurations.json"),
        r"configurations\.json: is listed in SHA256SUMS but missing",
    ),
    "checksums missing": (remove(CHECKSUMS), "SHA256SUMS: is missing"),
    "an extra file": (
        lambda bundle: (bundle / "notes.txt").write_text("x"),
        r"notes\.txt: is not listed",
    ),
    "a link": (link, "more: is a link"),
    "a path that leads out": (append(CHECKSUMS, "0" * 64 + "  ../x\n", signed=False), r"\.\./x: leads out"),
    "no JSON in a trial": (
        append("trials.jsonl", "{\n"),
        r"trials\.jsonl:13 : does not fit the schema|trials\.jsonl:13: does not fit",
    ),
    "an unknown field": (in_trial(lambda t: t.update(extra=1)), "does not fit the schema.*extra"),
    "a missing field": (in_trial(lambda t: t.pop("status")), "does not fit the schema.*status"),
    "a missing default": (in_trial(lambda t: t.pop("tail_rule")), "tail_rule: is missing"),
    "a wrong type": (in_trial(lambda t: t["counts"].update(updates="9")), r"counts\.updates: does not fit"),
    "another schema version": (in_trial(lambda t: t.update(schema_version=2)), "schema_version: is 2"),
    "a changed case": (
        in_trial(lambda t: t["case"].update(batch=31)),
        "contract_id: is not the id of the case",
    ),
    "a changed contract id": (in_trial(lambda t: t.update(contract_id="0" * 64)), "contract_id"),
    "a changed work id": (
        in_trial(lambda t: t.update(work_id="0" * 64)),
        "work_id: is not the id of the work",
    ),
    "a renamed case": (
        in_trial(lambda t: t.update(case_name="other")),
        "case_name: is not the name in the case",
    ),
    "counts of updates": (
        in_trial(lambda t: t["counts"].update(updates=8)),
        r"counts\.updates: is 8; the plan has 9",
    ),
    "counts of batches": (in_trial(lambda t: t["counts"].update(batches=4)), r"counts\.batches: is 4"),
    "counts of rows": (
        in_trial(lambda t: t["counts"].update(rows=1)),
        r"counts\.rows: is 1; the plan has 270",
    ),
    "rows of a rank": (in_trial(lambda t: t["ranks"][0].update(rows=134)), r"ranks\[0\]\.rows: is not 135"),
    "weight of a rank": (in_trial(lambda t: t["ranks"][0].update(weight=2)), r"ranks\.weight: are not"),
    "device": (
        in_trial(lambda t: t["ranks"][0]["proof"].update(produced_on=["CPU:1"])),
        "shows gradients from another device",
    ),
    "emulated": (in_trial(lambda t: t["ranks"][0]["proof"].update(emulated=True)), "is not for publication"),
    "retraced": (in_trial(lambda t: t["ranks"][1].update(trace_count=2)), r"ranks\[1\]\.trace_count: is 2"),
    "largest rank": (
        in_trial(lambda t: t["ranks"][0]["memory"].update(worker_rss_high_water_bytes=1)),
        "largest_rank: is not the rank|memory",
    ),
    "no reason for N/A": (
        in_trial(lambda t: t["ranks"][0]["memory"].update(process_vram_reason="")),
        "has neither a figure nor a reason",
    ),
    "native fit": (
        in_trial(lambda t: t["clocks"].update(native_fit_ns=1)),
        r"coordinator_phases\.total: is missing or more than native fit",
    ),
    "complete command": (
        in_trial(lambda t: t["clocks"].update(complete_command_ns=5)),
        r"complete_command_ns: is less than the sum",
    ),
    "a negative duration": (
        in_trial(lambda t: t["clocks"].update(source_ns=-1)),
        "has a duration that cannot be",
    ),
    "a failed check": (in_trial(lambda t: t["checks"][0].update(passed=False)), "checks: did not all pass"),
    "an epoch dropped": (in_trial(lambda t: t["validation"].pop()), "one record for each of 3 epochs"),
    "an epoch moved": (in_trial(lambda t: t["validation"][0].update(update=4)), r"validation\.update"),
    "a malformed digest": (
        in_trial(lambda t: t["fingerprints"].update(final_parameters="xyz")),
        "final_parameters: is not a SHA-256 digest",
    ),
    "another source": (
        in_trial(lambda t: t["fingerprints"].update(source="0" * 64)),
        r"fingerprints\.source: differs from other trials|source",
    ),
    "another plan": (
        in_trial(lambda t: t["fingerprints"].update(plan="0" * 64)),
        r"fingerprints\.plan: is not",
    ),
    "another tail rule": (in_trial(lambda t: t.update(tail_rule="first come")), "tail_rule: is not"),
    "a failure that passed": (in_trial(lambda t: t.update(status="failed")), "failure: is missing"),
    "a warm-up among the trials": (
        in_trial(lambda t: t.update(role="warm_up")),
        "role: is warm_up in a file",
    ),
    "another round": (in_trial(lambda t: t.update(round=3)), "round: and position are not those"),
    "another position": (in_trial(lambda t: t.update(position=9)), "seeded schedule"),
    "a warm-up's contract": (
        in_trial(lambda t: t.update(contract_id="1" * 64), file="warmups.jsonl"),
        r"warmups\.jsonl:\d contract_id",
    ),
    "a trial dropped": (drop_last_trial, "has no passed measured trial"),
    "a rank on an unknown machine": (
        in_trial(lambda t: t["ranks"][0].update(configuration_id="0" * 64)),
        r"configuration_id: is not in configurations\.json",
    ),
    "a rank on another platform": (
        in_trial(lambda t: t["ranks"][0].update(placement="Atlas-02/numpy")),
        "is on another platform",
    ),
    "changed capacity": (
        in_document("configurations.json", lambda v: v[CONFIGURATION]["capacity"].update(cores=999)),
        "is not the id of its capacity facts",
    ),
    "a machine's real name": (
        in_document("configurations.json", lambda v: v[CONFIGURATION].update(platform="ada-laptop")),
        "is not an opaque platform",
    ),
    "a median": (
        in_summary(lambda c: c["native_fit"].update(median_ns=c["native_fit"]["median_ns"] + 1)),
        r"pair-f64\.native_fit\.median_ns: is",
    ),
    "a minimum": (
        in_summary(lambda c: c["complete_command"].update(minimum_ns=1)),
        r"complete_command\.minimum_ns",
    ),
    "a ratio": (
        in_summary(lambda c: c["fit_comparison"].update(ratio=2.5)),
        r"fit_comparison\.ratio: is 2\.5",
    ),
    "a baseline": (
        in_summary(lambda c: c["fit_comparison"].update(baseline="solo-f32")),
        r"baseline: is 'solo-f32'",
    ),
    "an ideal": (in_summary(lambda c: c["fit_comparison"].update(ideal_ratio=9.0)), "ideal_ratio: is 9"),
    "a count of trials": (in_summary(lambda c: c.update(measured=5)), r"measured: is 5; the trials give 3"),
    "an agreement flag": (
        in_summary(lambda c: c["agreement"].update(agrees=False)),
        r"agreement\.agrees: does not",
    ),
    "a tolerance": (
        in_summary(lambda c: c["agreement"].update(tolerance=0.1)),
        r"agreement\.tolerance: is not the declared 1e-09",
    ),
    "impossible errors": (
        in_summary(lambda c: c["agreement"].update(root_mean_square=9.0)),
        "has errors that cannot be",
    ),
    "a summary dropped": (
        in_document("summaries.json", lambda v: v["cases"].pop()),
        "has trials but no summary",
    ),
    "a warning dropped": (
        in_document("summaries.json", lambda v: v.update(warnings=["all is well"])),
        "warnings: are not those",
    ),
    "no JSON in the summaries": (append("summaries.json", "]"), r"summaries\.json: is not JSON"),
    "another seed of the suite": (in_document("suite.json", lambda v: v.update(seed=3)), "seeded schedule"),
    "a case added to the suite": (
        in_document("suite.json", lambda v: v["cases"].append({**v["cases"][0], "name": "ghost"})),
        "ghost: has no passed",
    ),
    "another report": (
        change_text("report.html", '"measured": 3', '"measured": 4'),
        r"report\.html: shows other",
    ),
    "a report that loads": (
        change_text("report.html", "<main>", "<main><img src='https://example.org/x.png'>"),
        r"report\.html: loads something from elsewhere",
    ),
    "a report without figures": (
        change_text("report.html", "application/json", "text/plain"),
        r"report\.html: has no readable figures",
    ),
    "a broken chart": (change_text("charts/duration.svg", "</svg>", ""), r"duration\.svg: is not an SVG"),
    "a scripted chart": (
        change_text("charts/duration.svg", "</svg>", "<script>1</script></svg>"),
        r"duration\.svg: is not an SVG",
    ),
    "a cut chart": (cut_png, r"memory\.png: is not a complete PNG"),
    "an address": (append("report.html", "<!-- 192.168.1.20 -->"), "contains an IPv4 address"),
    "a home folder": (append("suite.json", " /home/ada"), "contains a path of a person"),
    "metadata in a picture": (png_with_text, r"memory\.png: contains a path of a person"),
}


HOSTILE: list[Any] = [
    None, True, -1, 0, 2**63, 2**80, 10**400, 1.5, -0.0, 1e308, float("nan"), float("inf"), "", "x" * 3, "1", "\ud800",
    "\x1b[2J", [], [1], [[]], ["a", "b"], {}, {"a": 1}, [None] * 3, json.loads("[" * 500 + "]" * 500),
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value inside, leaves and branches."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, inner in items for place in places(inner, (*path, key)))]


def planted(value: Any, path: tuple[Any, ...], leaf: Any) -> Any:
    """Return a copy with the leaf in that place."""
    if not path:
        return leaf
    copied = value.copy()
    copied[path[0]] = planted(value[path[0]], path[1:], leaf)
    return copied


def test_hostile_values_in_any_place_are_findings_and_never_errors(published: Path) -> None:
    files = {
        path.relative_to(published).as_posix(): path.read_bytes()
        for path in published.rglob("*")
        if path.is_file()
    }
    assert content_findings(files) == []
    chance = random.Random(5)
    tried = 0
    for name in DATA_FILES:
        lines = files[name].splitlines() if name.endswith("l") else [files[name]]
        record = json.loads(lines[-1])
        for path in chance.sample(every := places(record), min(len(every), 70)):
            leaf = chance.choice(HOSTILE)
            text = json.dumps(planted(record, path, leaf)).encode()
            found = content_findings({**files, name: b"\n".join([*lines[:-1], text])})
            tried += 1
            assert all(str(finding).isprintable() for finding in found)
            if isinstance(leaf, float) and not abs(leaf) < float("inf"):
                assert found, (name, path, leaf)
    assert tried > 200


def test_a_summary_that_is_not_a_number_does_not_pass(bundle: Path) -> None:
    in_summary(lambda c: c["fit_comparison"].update(ratio=float("nan")))(bundle)
    assert any("NaN is not a number" in str(finding) for finding in verify(bundle))


def test_a_case_summarised_twice_is_found(bundle: Path) -> None:
    def double(value: Any) -> None:
        value["cases"].insert(0, {**value["cases"][1], "measured": 99})

    in_document("summaries.json", double)(bundle)
    assert any("is summarised more than once" in str(finding) for finding in verify(bundle))


def test_more_files_than_a_bundle_has_are_found(bundle: Path) -> None:
    for number in range(120):
        (bundle / f"z{number}.txt").write_text("x")
    sign(bundle)
    assert any("holds more than 100 files" in str(finding) for finding in verify(bundle))


def test_files_that_are_none_are_findings(bundle: Path, tmp_path: Path) -> None:
    (bundle / "charts" / "sub.svg").mkdir()
    (bundle / "charts" / "zero.svg").symlink_to("/dev/zero")
    (bundle / "up").symlink_to("/proc")
    os.mkfifo(bundle / "suite.pipe")
    with (bundle / CHECKSUMS).open("a") as opened:
        opened.writelines(
            f"{'0' * 64}  {name}\n" for name in ("up/kmsg", "x" * 5000, "a\0b", "suite.pipe", "/etc/passwd")
        )
    found = "\n".join(map(str, verify(bundle)))
    for words in ("zero.svg: is a link", "up: is a link", "suite.pipe: is no plain file", "up/kmsg: is listed",
                  "/etc/passwd: leads out"):  # fmt: skip
        assert words in found


@pytest.mark.parametrize(
    "data",
    [
        b"<svg>" + b"<a>" * 200_000,
        "<!DOCTYPE x [<!ENTITY a 'b'>]><svg>&a;</svg>".encode("utf-16"),
        b"<!DOCTYPE svg><svg/>",
        b"<svg><a href='http://example.org'/></svg>",
        b"\xff\xfe<svg/>",
    ],
)
def test_a_chart_that_hides_something_is_found(bundle: Path, data: bytes) -> None:
    (bundle / "charts" / "memory.svg").write_bytes(data)
    sign(bundle)
    assert any("memory.svg: is not an SVG" in str(finding) for finding in verify(bundle))


def test_long_texts_take_no_long_time(bundle: Path) -> None:
    """Searches are linear: these texts, 8 MB each, took a quadratic search hours."""
    (bundle / "report.html").write_bytes(b'<script type="application/json" ' * 250_000)
    (bundle / "charts" / "memory.svg").write_bytes(b"a" * 8_000_000)
    sign(bundle)
    began = time.perf_counter()
    assert verify(bundle)
    assert time.perf_counter() - began < 10


@pytest.mark.parametrize(
    "changes",
    [
        {"warm_ups": -(10**12), "repetitions": 10**12 + 3},
        {"warm_ups": 0, "repetitions": 10**12},
        {"earlier": [{"seed": 0, "names": []}] * 100_000},
        {"earlier": [{"seed": seed, "names": ["a"]} for seed in range(100_000)]},
    ],
)
def test_a_schedule_without_end_is_a_finding_at_once(bundle: Path, changes: dict[str, Any]) -> None:
    path = bundle / "suite.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    sign(bundle)
    began = time.perf_counter()
    assert any("suite.json" in str(finding) for finding in verify(bundle))
    assert time.perf_counter() - began < 10


def test_what_is_no_bundle_is_never_replaced(tmp_path: Path) -> None:
    study = make_study(tmp_path / "study", repetitions=1)
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "thesis.txt").write_text("years of work")
    with pytest.raises(BundleError, match=r"documents: the folder holds 'thesis\.txt' and no bundle"):
        study.publish(tmp_path / "documents")
    with pytest.raises(BundleError, match=r"thesis\.txt: a file is there"):
        study.publish(tmp_path / "documents" / "thesis.txt")
    assert (tmp_path / "documents" / "thesis.txt").read_text() == "years of work"
    assert study.publish() == study.publish()


def test_a_clean_bundle_has_no_findings(published: Path) -> None:
    assert verify(published) == []
    assert verify(published.parent) == []


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_every_corruption_is_found_and_named(bundle: Path, name: str) -> None:
    corrupt, message = CORRUPTIONS[name]
    corrupt(bundle)
    found = [str(finding) for finding in verify(bundle)]
    assert any(re.search(message, line) for line in found), found


def test_nothing_private_is_published(tmp_path: Path) -> None:
    planted = [
        "secret-host",
        "ada.lovelace",
        "/home/ada/data",
        "10.1.2.3",
        "aa:bb:cc:dd:ee:ff",
        "ssh://gate",
        "424242",
    ]
    study = make_study(tmp_path / "study", repetitions=1)
    failed = msgspec.structs.replace(
        study.receipts[0],
        status="failed",
        repetition=1,
        failure=FailureRecord(
            kind="rank_lost", what=" ".join(planted), where=planted[0], remedy=planted[2], reason="rank lost"
        ),
        host={
            "name": planted[0],
            "user": planted[1],
            "address": planted[3],
            "route": planted[5],
            "pid": 424242,
        },
    )
    receipts = [msgspec.structs.replace(receipt, host=failed.host) for receipt in study.receipts]
    facts = dict(study.folder.document("configurations") or {})
    facts[CONFIGURATION] = {
        **facts[CONFIGURATION],
        "capacity": {**facts[CONFIGURATION]["capacity"], "hostname": planted[0], "mac": planted[4]},
    }
    target = write_bundle(
        tmp_path / "public",
        summary=study.summary(),
        receipts=[*receipts, failed],
        configurations=facts,
        suite=suite().to_record(),
    )
    content = b"".join(path.read_bytes() for path in sorted(target.rglob("*")) if path.is_file())
    assert [text for text in planted if text.encode() in content] == []


def test_emulated_devices_and_real_names_are_not_published(tmp_path: Path) -> None:
    study = make_study(tmp_path / "study", repetitions=1)
    receipt = study.receipts[0]
    rank = receipt.ranks[0]
    fake = msgspec.structs.replace(rank, proof=msgspec.structs.replace(rank.proof, emulated=True))
    fields = {"summary": study.summary(), "suite": suite().to_record()}
    facts = study.folder.document("configurations") or {}
    with pytest.raises(BundleError, match="a trial ran on an emulated device"):
        write_bundle(
            tmp_path / "a",
            receipts=[msgspec.structs.replace(receipt, ranks=(fake,))],
            configurations=facts,
            **fields,
        )
    named = {CONFIGURATION: {**facts[CONFIGURATION], "platform": "ada-laptop"}}
    with pytest.raises(BundleError, match="'ada-laptop' is not an opaque machine name"):
        write_bundle(tmp_path / "b", receipts=study.receipts, configurations=named, **fields)
    assert not (tmp_path / "a").exists()
    assert placed


def test_a_bundle_is_verified_without_tensorflow_or_dask(published: Path) -> None:
    code = f"""
import sys
for name in ("tensorflow", "dask", "distributed", "keras"):
    sys.modules[name] = None
from aner_nb.cli import main
sys.argv = ["aner-nb", "verify", {str(published)!r}]
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("verified:")


def test_a_study_that_grew_from_a_part_of_its_suite_verifies(tmp_path: Path) -> None:
    make_study(tmp_path, chosen=suite().select(names=["solo-f64", "unequal-f64"]))
    grown = make_study(tmp_path, chosen=suite())
    assert grown.complete
    assert len(grown.receipts) == 16
    assert grown.suite.earlier
    grown.publish()
    assert verify(tmp_path) == []


def test_hostile_names_never_become_markup(published: Path) -> None:
    text = (published / "report.html").read_text()
    assert text.count("<script") == 1
