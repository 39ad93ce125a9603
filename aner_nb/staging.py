"""Rows that are larger than memory, made ready in files: split, normalized, in the order of the plan.

The files hold what `data.prepare` would give in memory, to the bit. They are made by streaming, hashed, and moved
to their place when they are complete; a later trial with the same rows, split, seed and type takes them as they are
after their hashes were checked.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import numpy as np
from numpy.typing import NDArray

from aner_nb.case import Case, canonical_json
from aner_nb.counter import permutation
from aner_nb.data import PreparedData, Rows
from aner_nb.errors import CaseError
from aner_nb.file_rows import FileRows, RowsFile
from aner_nb.normalization import Normalization, normalization_of
from aner_nb.sources import Source, first_not_finite
from aner_nb.splits import PARTS, Split, split
from aner_nb.user_files import Scan, Stored, part_fingerprint_end, part_fingerprint_start

_MOST_BUCKETS: Final = 200
_DONE: Final = "staged.json"


def stage(data: Stored, case: Case) -> tuple[PreparedData, Split]:
    """Return the rows of each part as `aner_nb.file_rows.FileRows`; training rows lie in the order of the plan.

    Raises
    ------
    CaseError
        If the files changed since they were described, the split is impossible, a value is beyond the type, or the
        cache folder cannot be written or was changed.
    """
    found = data.scan()
    parts = split(_rows_alone(data, found), case.split, seed=case.seed)
    inputs = [data.sha256, list(data.columns), data.target, list(case.split), case.seed, case.dtype]
    folder = data.cache / hashlib.sha256(canonical_json(inputs)).hexdigest()[:32]
    if (folder / _DONE).exists():
        _check(folder)
    else:
        _make(folder, data, case, found, parts)
    return _opened(folder, data, case, parts), parts


def _rows_alone(data: Stored, found: Scan) -> Source:
    """Return a source of the targets: all that a split looks at."""
    return Source(
        features=np.empty((data.rows, 0)),
        targets=cast("Any", found.targets),
        task=data.task,
        class_count=len(data.class_names),
        class_names=data.class_names,
        fingerprint=data.sha256,
    )


def _make(folder: Path, data: Stored, case: Case, found: Scan, parts: Split) -> None:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=".staging-", dir=folder.parent))
        try:
            _Writer(fresh, data, case, found, parts).write()
            with contextlib.suppress(OSError):  # another run may have been quicker
                fresh.rename(folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    except OSError as error:
        raise CaseError(
            f"prepared rows cannot be written ({error.strerror}).",
            where=str(folder.parent),
            remedy="Free space, or name another folder with cache=.",
        ) from error


def _check(folder: Path) -> None:
    expected = json.loads((folder / _DONE).read_text())["files"]
    for name, digest in expected.items():
        try:
            with (folder / name).open("rb") as file:
                right = hashlib.file_digest(file, "sha256").hexdigest() == digest
        except OSError:
            right = False
        if not right:
            raise CaseError(
                "a file of prepared rows was changed.", where=str(folder / name), remedy="Remove its folder."
            )


def _opened(folder: Path, data: Stored, case: Case, parts: Split) -> PreparedData:
    width = len(data.columns)
    ready: dict[str, Rows] = {}
    for name in PARTS:
        dtype = case.dtype if name == "train" else "float64"
        count = len(getattr(parts, name))
        labels = bool(data.class_names)
        features = FileRows(RowsFile(str(folder / f"{name}.features"), dtype, (count, width)))
        shape = (count,) if labels else (count, 1)
        targets = FileRows(RowsFile(str(folder / f"{name}.targets"), "int32" if labels else dtype, shape))
        ready[name] = Rows(features=cast("Any", features), targets=cast("Any", targets))
    mean, scale = np.load(folder / "normalization.npy", allow_pickle=False)
    return PreparedData(
        train=ready["train"],
        validation=ready["validation"],
        test=ready["test"],
        task=data.task,
        outputs=len(data.class_names) or 1,
        class_count=len(data.class_names),
        class_names=data.class_names,
        normalization=Normalization(mean=mean, scale=scale),
        fingerprints={"source": data.sha256, **json.loads((folder / _DONE).read_text())["fingerprints"]},
    )


class _Writer:
    """Writes the files of one folder."""

    def __init__(self, folder: Path, data: Stored, case: Case, found: Scan, parts: Split) -> None:
        self._folder = folder
        self._data = data
        self._dtype = np.dtype(case.dtype)
        self._targets = found.targets
        self._parts = parts
        self._order = permutation(case.seed, "rows", len(parts.train))
        self._part_of = np.empty(data.rows, np.int8)
        for number, name in enumerate(PARTS):
            self._part_of[getattr(parts, name)] = number

    def write(self) -> None:
        """Write everything; the record last."""
        width = len(self._data.columns)
        normalization = normalization_of(self._training_blocks, len(self._parts.train), width)
        np.save(self._folder / "normalization.npy", np.stack([normalization.mean, normalization.scale]))
        prints = self._features(normalization)
        for name in PARTS:
            self._targets_of(name)
        digests: dict[str, str] = {}
        for path in sorted(self._folder.iterdir()):
            with path.open("rb") as file:
                digests[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
        (self._folder / _DONE).write_text(json.dumps({"fingerprints": prints, "files": digests}))

    def _training_blocks(self) -> Iterator[NDArray[np.float64]]:
        """Yield the training rows 256 at a time, as the declared order of summation has them."""
        left = np.empty((0, len(self._data.columns)))
        start = 0
        for features in self._data.batches():
            chosen = features[self._part_of[start : start + len(features)] == 0]
            start += len(features)
            rows = np.concatenate([left, chosen])
            whole = len(rows) // 256 * 256
            for first in range(0, whole, 256):
                yield rows[first : first + 256]
            left = rows[whole:]
        if len(left):
            yield left

    def _features(self, normalization: Normalization) -> dict[str, str]:
        """Write the features of all parts in one reading; return the parts' fingerprints."""
        width = len(self._data.columns)
        counts = [len(getattr(self._parts, name)) for name in PARTS]
        digests = [part_fingerprint_start(count, width) for count in counts]
        shuffle = _Shuffle(self._folder, self._order, width, self._dtype, self._data.budget_bytes)
        start = 0
        with contextlib.ExitStack() as stack:
            files: list[BinaryIO] = [
                stack.enter_context((self._folder / f"{name}.features").open("wb")) for name in PARTS
            ]
            for features in self._data.batches():
                parts = self._part_of[start : start + len(features)]
                for number, name in enumerate(PARTS):
                    raw = features[parts == number]
                    digests[number].update(np.ascontiguousarray(raw, "<f8").data)
                    rows = self._ready(normalization, raw, name)
                    if number == 0:
                        shuffle.add(rows)
                    else:
                        rows.tofile(files[number])
                start += len(features)
            shuffle.finish(files[0])
        return {
            name: part_fingerprint_end(digest, self._targets[getattr(self._parts, name)])
            for name, digest in zip(PARTS, digests, strict=True)
        }

    def _ready(self, normalization: Normalization, raw: NDArray[np.float64], name: str) -> NDArray[Any]:
        dtype = self._dtype if name == "train" else np.dtype(np.float64)
        with np.errstate(over="ignore"):
            rows = normalization.apply(raw).astype(dtype)
        bad = first_not_finite(rows)
        if bad is not None:
            raise CaseError(
                f"a value of the column {self._data.columns[bad[1]]!r} is beyond {dtype}.",
                where="data",
                remedy="Rescale the column or use float64.",
            )
        return rows

    def _targets_of(self, name: str) -> None:
        targets = self._targets[getattr(self._parts, name)]
        if name == "train":
            targets = targets[self._order]
        kind = (
            np.dtype(np.int32)
            if targets.ndim == 1
            else self._dtype
            if name == "train"
            else np.dtype(np.float64)
        )
        targets.astype(kind).tofile(self._folder / f"{name}.targets")


class _Shuffle:
    """Brings rows into the order of the plan in two steps: into buckets by place, then each bucket in order.

    A bucket is as large as the budget allows, twice: as it was written, and in order.
    """

    def __init__(
        self, folder: Path, order: NDArray[np.int64], width: int, dtype: np.dtype[Any], budget: int
    ) -> None:
        self._width, self._dtype = width, dtype
        self._place = np.empty(len(order), np.int64)
        self._place[order] = np.arange(len(order))
        fitting = budget // (3 * (width * dtype.itemsize + 8))
        self._rows = max(1, fitting, -(-len(order) // _MOST_BUCKETS))
        count = -(-len(order) // self._rows)
        self._buckets = [folder / f"bucket-{number}" for number in range(count)]
        self._kind = np.dtype([("place", np.int64), ("row", dtype, (width,))])
        self._seen = 0

    def add(self, rows: NDArray[Any]) -> None:
        """Take the next rows."""
        tagged = np.empty(len(rows), self._kind)
        tagged["place"] = self._place[self._seen : self._seen + len(rows)]
        tagged["row"] = rows
        self._seen += len(rows)
        bucket = tagged["place"] // self._rows
        tagged = tagged[np.argsort(bucket, kind="stable")]
        ends = np.cumsum(np.bincount(bucket, minlength=len(self._buckets)))
        for path, piece in zip(self._buckets, np.split(tagged, ends[:-1]), strict=True):
            if len(piece):
                with path.open("ab") as file:
                    piece.tofile(file)

    def finish(self, file: BinaryIO) -> None:
        """Write all rows in order, and remove the buckets."""
        for number, path in enumerate(self._buckets):
            tagged = np.fromfile(path, self._kind)
            path.unlink()
            rows = np.empty((len(tagged), self._width), self._dtype)
            rows[tagged["place"] - number * self._rows] = tagged["row"]
            rows.tofile(file)
