"""Checking a public bundle without trusting it: everything that can be recomputed is, and what differs is named.

Needs neither TensorFlow nor Dask.
"""

from __future__ import annotations

import hashlib
import html
import itertools
import json
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast
from xml.etree import ElementTree

import msgspec

from aner_nb.agreement import TOLERANCE
from aner_nb.analysis import StudySummary, summarise
from aner_nb.errors import AnerError
from aner_nb.facts import public_view
from aner_nb.inventory import configuration_id, is_opaque
from aner_nb.machine import EMULATED
from aner_nb.plain import read_json
from aner_nb.receipts import ADDED_FIELDS, ReceiptError, TrialReceipt, public_receipt_of
from aner_nb.suites import case_of_record
from aner_nb.trial_verification import Finding, receipt_findings, suite_findings

CHECKSUMS: Final = "SHA256SUMS"
REPORT: Final = "report.html"
DATA_FILES: Final = ("trials.jsonl", "warmups.jsonl", "summaries.json", "configurations.json", "suite.json")
_MAX_BYTES: Final = 64 * 2**20
_MAX_FILES: Final = 100
_MAX_SHOWN: Final = 1000
_CANNOT: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    RecursionError,
    MemoryError,
)
"""What hostile values may make a recomputation raise; each is a finding and never an error of the verifier."""

LEAKS: Final[Mapping[str, re.Pattern[bytes]]] = {
    "an IPv4 address": re.compile(rb"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])"),
    "an IPv6 address": re.compile(rb"(?i)(?<![0-9a-f:])(?:[0-9a-f]{1,4}:){4,7}[0-9a-f]{1,4}(?![0-9a-f:])"),
    "a MAC address": re.compile(rb"(?i)(?<![0-9a-f:])(?:[0-9a-f]{2}:){5}[0-9a-f]{2}(?![0-9a-f:])"),
    "a path of a person or machine": re.compile(rb"(?:/home/|/Users/|/root/|/tmp/|[A-Z]:\\\\Users)"),
    "a route to a host": re.compile(
        rb"(?i)(?:ssh|tcp|tls|ucx)://|(?<![a-z0-9_.-])[a-z0-9_.-]+@[a-z0-9-]+\.[a-z]"
    ),
    "a process number": re.compile(rb'(?i)"pid"\s*:'),
}


@dataclass(frozen=True, slots=True)
class _Bundle:
    """The files that could be read, as plain values."""

    trials: list[tuple[str, TrialReceipt]]
    """(where, receipt): measured and warm-up trials."""
    summary: Mapping[str, Any] | None
    configurations: Mapping[str, Any]
    suite: Mapping[str, Any] | None


def verify(folder: str | Path) -> list[Finding]:
    """Return everything that is wrong with a public bundle; an empty list if nothing is.

    Raises
    ------
    AnerError
        If there is no bundle in the folder.
    """
    root = Path(folder)
    if not (root / CHECKSUMS).is_file() and (root / "public" / CHECKSUMS).is_file():
        root = root / "public"
    if not root.is_dir():
        raise AnerError("there is no such folder.", where=str(folder), remedy="Name a results folder.")
    findings: list[Finding] = []
    files = _read_files(root, findings)
    findings += _checksum_findings(files)
    findings += content_findings(files)
    findings += _leak_findings(files)
    findings += _chart_findings(files)
    return findings


def _read_files(root: Path, findings: list[Finding]) -> dict[str, bytes]:
    """Return the plain files of a bundle by name; what is none, is too large or too many is a finding."""
    entries = sorted(itertools.islice(root.rglob("*"), 100 * _MAX_FILES))
    present = [path for path in entries if path.is_symlink() or not path.is_dir()]
    if len(present) > _MAX_FILES:
        findings.append(Finding("", "", f"holds more than {_MAX_FILES} files; the others are not looked at"))
    contents: dict[str, bytes] = {}
    for path in present[:_MAX_FILES]:
        name = path.relative_to(root).as_posix()
        try:
            if path.is_symlink() or not path.is_file():
                what = "is a link; a bundle has plain files only" if path.is_symlink() else "is no plain file"
                findings.append(Finding(name, "", what))
            elif path.stat().st_size > _MAX_BYTES:
                findings.append(Finding(name, "", f"is larger than {_MAX_BYTES} bytes"))
            else:
                contents[name] = path.read_bytes()
        except OSError as error:
            findings.append(Finding(name, "", f"cannot be read ({error.strerror or error})"))
    return contents


def _checksum_findings(files: Mapping[str, bytes]) -> Iterator[Finding]:
    """Compare the files with their list of checksums."""
    listed = dict(_checksums(files.get(CHECKSUMS, b"")))
    if not listed:
        yield Finding(CHECKSUMS, "", "is missing or lists no file")
    for name in sorted(set(files) - set(listed) - {CHECKSUMS}):
        yield Finding(name, "", f"is not listed in {CHECKSUMS}")
    for name, digest in itertools.islice(listed.items(), 10 * _MAX_FILES):
        if ".." in Path(name).parts or Path(name).is_absolute():
            yield Finding(CHECKSUMS, name, "leads out of the bundle")
        elif name not in files:
            yield Finding(name, "", f"is listed in {CHECKSUMS} but missing")
        elif hashlib.sha256(files[name]).hexdigest() != digest:
            yield Finding(name, "", "has another SHA-256 than listed")


def _checksums(data: bytes) -> Iterator[tuple[str, str]]:
    for line in data.decode(errors="replace").splitlines():
        match = re.fullmatch(r"([0-9a-f]{64})  (.+)", line)
        if match:
            yield match[2], match[1]


def content_findings(files: Mapping[str, bytes]) -> list[Finding]:
    """Return what is wrong with the data files and the report of a bundle, given by name."""
    findings: list[Finding] = []
    contents: dict[str, bytes] = {}
    for name in (*DATA_FILES, REPORT):
        if name not in files:
            findings.append(Finding(name, "", "cannot be read"))
        contents[name] = files.get(name, b"")
    bundle = _parse(contents, findings)
    findings += _guarded("configurations.json", _configuration_findings(bundle))
    for where, receipt in bundle.trials:
        findings += _guarded(where, receipt_findings(where, receipt))
    if bundle.suite is not None:
        findings += _guarded("suite.json", suite_findings(bundle.suite, bundle.trials))
        if bundle.summary is not None:
            findings += _guarded("summaries.json", _summary_findings(bundle, bundle.summary, bundle.suite))
    findings += _report_findings(contents[REPORT], bundle.summary)
    return findings


def _guarded(name: str, found: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the findings; values that nothing can be computed from are one more."""
    try:
        yield from found
    except _CANNOT as error:
        yield Finding(name, "", f"cannot be recomputed ({type(error).__name__}: {error})")


def _parse(contents: Mapping[str, bytes], findings: list[Finding]) -> _Bundle:
    trials: list[tuple[str, TrialReceipt]] = []
    for name, role in (("trials.jsonl", "measured"), ("warmups.jsonl", "warm_up")):
        for number, line in enumerate(contents[name].splitlines(), 1):
            where = f"{name}:{number}"
            receipt = _parse_trial(line, where, findings)
            if receipt is None:
                continue
            trials.append((where, receipt))
            if receipt.role != role:
                findings.append(Finding(where, "role", f"is {receipt.role} in a file of {role} trials"))
    summary, configurations, suite = (_object(contents, name, findings) for name in DATA_FILES[2:])
    return _Bundle(trials, summary, configurations or {}, suite)


def _parse_trial(line: bytes, where: str, findings: list[Finding]) -> TrialReceipt | None:
    """Read a published trial: exactly the public fields, with the declared types, of a case that can be."""
    try:
        record = read_json(line)
        receipt = public_receipt_of(record, where)
        case = case_of_record(receipt.case, where).to_record()
    except ReceiptError as error:
        findings.append(Finding(where, _path_of(error), error.what))
        return None
    except AnerError as error:
        findings.append(Finding(where, "case", f"is not a case: {error.what}"))
        return None
    except ValueError as error:
        findings.append(Finding(where, "", f"does not fit the schema: {error}"))
        return None
    if case != receipt.case:
        findings.append(Finding(where, "case", "is not written out in full"))
        return None
    view = json.loads(json.dumps(public_view(receipt)))
    record = _with_added(record, view)
    for field in sorted(set(view) ^ set(record)):
        findings.append(Finding(where, field, "is missing" if field in view else "is not a public field"))
    different = [field for field in view if field in record and view[field] != record[field]]
    findings += [Finding(where, field, "has missing, private or changed parts") for field in different]
    return receipt


def _with_added(record: Any, view: Any) -> Any:
    """Return what was published, with the fields that only later versions have, as the view has them."""
    if isinstance(record, dict) and isinstance(view, dict):
        own, whole = cast("dict[str, Any]", record), cast("dict[str, Any]", view)
        later = {name: whole[name] for name in ADDED_FIELDS & (whole.keys() - own.keys())}
        return later | {name: _with_added(value, whole.get(name)) for name, value in own.items()}
    if isinstance(record, list) and isinstance(view, list):
        return [
            _with_added(*pair)
            for pair in itertools.zip_longest(cast("list[Any]", record), cast("list[Any]", view))
        ]
    return record


def _path_of(error: Exception) -> str:
    match = re.search(r"`\$\.?([^`]*)`", str(error))
    return match[1] if match else ""


def _object(contents: Mapping[str, bytes], name: str, findings: list[Finding]) -> Mapping[str, Any] | None:
    try:
        value: object = read_json(contents[name])
    except ValueError as error:
        findings.append(Finding(name, "", f"is not JSON: {error}"))
        return None
    if not isinstance(value, dict):
        findings.append(Finding(name, "", "is not a JSON object"))
        return None
    return cast("Mapping[str, Any]", value)


def _configuration_findings(bundle: _Bundle) -> Iterator[Finding]:
    name = "configurations.json"
    for identity, facts in bundle.configurations.items():
        try:
            known = configuration_id(facts["capacity"])
            opaque = is_opaque(str(facts["platform"]))
            emulated = EMULATED in facts["capacity"]["packages"]
        except (LookupError, TypeError, ValueError) as error:
            yield Finding(name, identity[:12], f"lacks {error}")
            continue
        if emulated:
            yield Finding(name, identity[:12], f"has an {EMULATED}, which is not for publication")
        if known != identity:
            yield Finding(name, identity[:12], "is not the id of its capacity facts")
        if not opaque or set(facts) != {"platform", "capacity"}:
            yield Finding(name, identity[:12], "is not an opaque platform with its capacity, and no more")
    for where, receipt in bundle.trials:
        for index, rank in enumerate(receipt.ranks):
            facts = bundle.configurations.get(rank.configuration_id)
            platform = rank.placement.split("/")[0] if "/" in rank.placement else ""
            if rank.configuration_id and facts is None:
                yield Finding(where, f"ranks[{index}].configuration_id", f"is not in {name}")
            elif isinstance(facts, Mapping) and platform != facts.get("platform"):
                yield Finding(
                    where, f"ranks[{index}].placement", "is on another platform than its configuration"
                )


def _summary_findings(
    bundle: _Bundle, summary: Mapping[str, Any], suite: Mapping[str, Any]
) -> Iterator[Finding]:
    """Recompute the summaries from the trials; agreement is checked against its own figures."""
    name = "summaries.json"
    try:
        stated = msgspec.convert(summary, StudySummary)
        order = [str(case["name"]) for case in suite["cases"]]
        again = summarise([receipt for _, receipt in bundle.trials], order)
    except (*_CANNOT, msgspec.MsgspecError, AnerError) as error:
        yield Finding(name, "", f"cannot be recomputed: {error}")
        return
    names = [case.case for case in stated.cases]
    for case in sorted({case for case in names if names.count(case) > 1}):
        yield Finding(name, case, "is summarised more than once")
    found = {case.case: case for case in stated.cases}
    expected = {case.case: case for case in again.cases}
    for case in sorted(set(found) ^ set(expected)):
        yield Finding(name, case, "has trials but no summary" if case in expected else "has no trials")
    for case in found.keys() & expected.keys():
        own, right = public_view(found[case]), public_view(expected[case])
        agreement = own.pop("agreement")
        right.pop("agreement")
        yield from (
            Finding(name, f"{case}.{path}", f"is {stated_value!r}; the trials give {right_value!r}")
            for path, stated_value, right_value in _differences(own, right)
        )
        if agreement is not None:
            yield from _agreement_findings(name, case, agreement, str(own["dtype"]))
    if list(stated.warnings) != list(again.warnings):
        yield Finding(name, "warnings", "are not those that the trials give")


def _agreement_findings(name: str, case: str, agreement: Mapping[str, Any], dtype: str) -> Iterator[Finding]:
    if agreement["tolerance"] != TOLERANCE.get(dtype):
        yield Finding(name, f"{case}.agreement.tolerance", f"is not the declared {TOLERANCE.get(dtype)}")
    if agreement["agrees"] != (agreement["maximum_relative"] <= agreement["tolerance"]):
        yield Finding(name, f"{case}.agreement.agrees", "does not follow from error and tolerance")
    sound = (
        agreement["root_mean_square"] <= agreement["maximum_absolute"] * (1 + 1e-12)
        and abs(agreement["cosine"]) <= 1 + 1e-9
        and agreement["maximum_absolute"] >= 0
    )
    if not sound:
        yield Finding(name, f"{case}.agreement", "has errors that cannot be: RMS, largest or cosine")


def _differences(own: Any, right: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(own, dict) and isinstance(right, dict):
        first, second = cast("dict[str, Any]", own), cast("dict[str, Any]", right)
        for key in first:
            yield from _differences(first[key], second.get(key), f"{path}.{key}".lstrip("."))
    elif isinstance(own, float) and isinstance(right, float):
        if not abs(own - right) <= 1e-9 * max(abs(own), abs(right)):
            yield path, own, right
    elif own != right:
        yield path, own, right


def _leak_findings(files: Mapping[str, bytes]) -> Iterator[Finding]:
    """Look in every byte for what must not be public."""
    for name, data in files.items():
        for text in _texts(name, data):
            for kind, pattern in LEAKS.items():
                match = pattern.search(text)
                if match:
                    yield Finding(name, "", f"contains {kind}: {match[0][:40].decode(errors='replace')}")


def _texts(name: str, data: bytes) -> Iterable[bytes]:
    """Return what a person could read in a file: of a PNG its metadata, else all of it."""
    if not name.endswith(".png"):
        # Namespaces are addresses of documents, not of machines.
        return [re.sub(rb"https?://(?:www\.w3\.org|json-schema\.org)[^\s\"'<]*", b"", data)]
    return [body for kind, body in _png_chunks(data) if kind in (b"tEXt", b"iTXt", b"zTXt", b"eXIf")]


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    position = 8
    while position + 8 <= len(data):
        length, kind = struct.unpack(">I4s", data[position : position + 8])
        yield kind, data[position + 8 : position + 8 + length]
        position += 12 + length


def _chart_findings(files: Mapping[str, bytes]) -> Iterator[Finding]:
    for name, data in files.items():
        if name.endswith(".png"):
            kinds = [kind for kind, _ in _png_chunks(data)] if data.startswith(b"\x89PNG\r\n\x1a\n") else []
            if not kinds or kinds[0] != b"IHDR" or kinds[-1] != b"IEND":
                yield Finding(name, "", "is not a complete PNG")
        elif name.endswith(".svg") and not _is_svg(data):
            yield Finding(name, "", "is not an SVG, or refers to something outside")


def _is_svg(data: bytes) -> bool:
    if b"<!" in data.replace(b"<!--", b"") or b"<script" in data.lower():
        return False
    if re.search(rb"href=[\"'](?!#|data:)", data):
        return False
    try:
        # As text of ours, so that no encoding of its own can hide an entity from the search above.
        return ElementTree.fromstring(data.decode()).tag.endswith("svg")  # noqa: S314
    except (ElementTree.ParseError, ValueError, RecursionError):
        return False


def _report_findings(data: bytes, summary: Mapping[str, Any] | None) -> Iterator[Finding]:
    text = data.decode(errors="replace")
    opening = text.find('<script type="application/json"')
    begin, end = text.find(">", opening) + 1, text.find("</script>", opening)
    try:
        embedded: object = read_json(html.unescape(text[begin:end]).encode()) if opening >= 0 else None
    except ValueError:
        embedded = None
    if embedded is None:
        yield Finding(REPORT, "", "has no readable figures in it")
    elif summary is not None and embedded != summary:
        yield Finding(REPORT, "", "shows other figures than summaries.json")
    if re.search(r"(?:src|href)=[\"']https?:", text):
        yield Finding(REPORT, "", "loads something from elsewhere")


def describe_findings(findings: Sequence[Finding]) -> str:
    """Return one line a finding, or a line that there is none; of very many, the first."""
    if not findings:
        return "verified: checksums, ids, counts, statistics, baselines, ratios, agreement, schema, leaks."
    lines = [str(finding) for finding in findings[:_MAX_SHOWN]]
    left = len(findings) - len(lines)
    return "\n".join([*lines, *([f"and {left} more"] if left else [])])
