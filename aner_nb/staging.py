"""Rows that are larger than memory, made ready in files: split, normalized, in the order of the plan.

The files hold what `data.prepare` would give in memory, to the bit. They are made by streaming where the rows are
read, hashed, and moved to their place when they are complete; a later trial with the same rows, split, seed and type
takes them as they are after their hashes were checked.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import numpy as np
from numpy.typing import NDArray

from aner_nb.case import Case, canonical_json
from aner_nb.counter import permutation
from aner_nb.data import PreparedData, Rows
from aner_nb.errors import CaseError
from aner_nb.file_rows import FileRows, PlacedRows, RowsFile, blocks_of_rows, read_pieces, write_pieces
from aner_nb.filling import Filling, fit_filling
from aner_nb.normalization import Normalization, normalization_of
from aner_nb.sources import Source, fingerprint, first_not_finite
from aner_nb.splits import PARTS, Split, split
from aner_nb.user_files import Scan, Stored, part_fingerprint_end, part_fingerprint_start

_MOST_BUCKETS: Final = 200
_MOST_VALUES: Final = 2**20
"""Different numbers of a column that are counted for its most frequent one."""
_DONE: Final = "staged.json"


@dataclass(frozen=True, slots=True)
class _Recipe:
    """What the files depend on besides the rows, and where they are."""

    folder: Path
    seed: int
    dtype: str


@dataclass(frozen=True, slots=True)
class _Staged:
    """What is known of a folder of files that are ready."""

    fingerprints: dict[str, str]
    normalization: Normalization
    token: str
    """Digest of the folder's record, which has the digests of all its files."""


def stage(data: Stored, case: Case) -> tuple[PreparedData, Split]:
    """Return the rows of each part, in files; training rows lie in the order of the plan.

    They are `aner_nb.file_rows.FileRows`; training rows of a Dask collection are `aner_nb.file_rows.PlacedRows`.

    Raises
    ------
    CaseError
        If the rows changed since they were described, the split is impossible, a value is beyond the type, or the
        cache folder cannot be written or was changed.
    """
    found = data.scan()
    parts = split(_rows_alone(data, found), case.split, seed=case.seed)
    inputs = [
        data.sha256,
        data.schema_sha256,
        data.options.missing,
        list(case.split),
        case.seed,
        case.dtype,
    ]
    name = hashlib.sha256(canonical_json(inputs)).hexdigest()[:32]
    recipe = _Recipe(data.cache / name, case.seed, case.dtype)
    staged = data.origin.run(_ready_folder, data, recipe, found, parts)
    if not data.origin.near and not is_staged(str(recipe.folder), staged.token):
        _bring(data, recipe, parts)
    return _opened(data, recipe, staged, found, parts), parts


def is_staged(folder: str, token: str) -> bool:
    """Return whether this process sees the folder with that record; also asked in workers."""
    try:
        return hashlib.sha256((Path(folder) / _DONE).read_bytes()).hexdigest() == token
    except OSError:
        return False


def placed_fingerprints(data: Stored, partitions: Sequence[tuple[PlacedRows, PlacedRows]]) -> tuple[str, ...]:
    """Return the fingerprint of each rank's rows, hashed in the worker that made their files ready."""
    files = [(features.file, targets.file, features.runs) for features, targets in partitions]
    return data.origin.run(_hash_runs, files)


def _hash_runs(
    _: object, files: Sequence[tuple[RowsFile, RowsFile, Sequence[tuple[int, int]]]]
) -> tuple[str, ...]:
    return tuple(
        fingerprint(cast("Any", FileRows(features, runs)), cast("Any", FileRows(targets, runs)))
        for features, targets, runs in files
    )


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


def _ready_folder(_: object, data: Stored, recipe: _Recipe, found: Scan, parts: Split) -> _Staged:
    """Make the files, or check those that are there; called where the rows are read."""
    folder = recipe.folder
    if (folder / _DONE).exists():
        _check(folder)
    else:
        _make(data, recipe, found, parts)
    record = (folder / _DONE).read_bytes()
    mean, scale, *rest = np.load(folder / "normalization.npy", allow_pickle=False)
    filling = Filling(values=rest[0], absent=rest[1].astype(bool)) if rest else None
    return _Staged(
        fingerprints=json.loads(record)["fingerprints"],
        normalization=Normalization(mean=mean, scale=scale, filling=filling),
        token=hashlib.sha256(record).hexdigest(),
    )


def _make(data: Stored, recipe: _Recipe, found: Scan, parts: Split) -> None:
    folder = recipe.folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=".staging-", dir=folder.parent))
        try:
            _Writer(fresh, data, recipe, found, parts).write()
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


def _file(data: Stored, recipe: _Recipe, parts: Split, name: str, kind: str) -> RowsFile:
    """Return the file of a part's features or targets."""
    dtype = recipe.dtype if name == "train" else "float64"
    count = len(getattr(parts, name))
    shape: tuple[int, ...] = (count, data.width)
    if kind == "targets":
        dtype, shape = ("int32", (count,)) if data.class_names else (dtype, (count, 1))
    return RowsFile(str(recipe.folder / f"{name}.{kind}"), dtype, shape)


def _bring(data: Stored, recipe: _Recipe, parts: Split) -> None:
    """Fetch the rows that the coordinator evaluates, block by block, where it does not see the workers' folder."""
    for name in PARTS[1:]:
        for kind in ("features", "targets"):
            file = _file(data, recipe, parts, name, kind)
            Path(file.path).unlink(missing_ok=True)
            for runs in blocks_of_rows(file, [(0, file.shape[0])]):
                write_pieces(file, runs, cast("Any", data.origin.run(_pieces, file, runs)))


def _pieces(_: object, file: RowsFile, runs: Sequence[tuple[int, int]]) -> list[NDArray[Any]]:
    return read_pieces(file, runs)


def _opened(data: Stored, recipe: _Recipe, staged: _Staged, found: Scan, parts: Split) -> PreparedData:
    ready: dict[str, Rows] = {}
    for name in PARTS:
        features, targets = (_file(data, recipe, parts, name, kind) for kind in ("features", "targets"))
        rows: tuple[Any, Any] = (
            (FileRows(features), FileRows(targets))
            if name != "train" or data.origin.near
            else (
                PlacedRows(features, staged.token),
                PlacedRows(targets, staged.token, known=_train_targets(found, recipe, parts)),
            )
        )
        ready[name] = Rows(features=rows[0], targets=rows[1])
    return PreparedData(
        train=ready["train"],
        validation=ready["validation"],
        test=ready["test"],
        task=data.task,
        outputs=len(data.class_names) or 1,
        class_count=len(data.class_names),
        class_names=data.class_names,
        normalization=staged.normalization,
        fingerprints={"source": data.sha256, **staged.fingerprints},
    )


def _train_targets(found: Scan, recipe: _Recipe, parts: Split) -> NDArray[Any]:
    """Return the targets of the training rows in the order of the plan, in their type."""
    targets = found.targets[parts.train][permutation(recipe.seed, "rows", len(parts.train))]
    return targets.astype(np.int32 if targets.ndim == 1 else recipe.dtype)


class _Writer:
    """Writes the files of one folder."""

    def __init__(self, folder: Path, data: Stored, recipe: _Recipe, found: Scan, parts: Split) -> None:
        self._folder = folder
        self._data = data
        self._dtype = np.dtype(recipe.dtype)
        self._targets = found.targets
        self._train_targets = _train_targets(found, recipe, parts)
        self._parts = parts
        self._order = permutation(recipe.seed, "rows", len(parts.train))
        self._part_of = np.empty(data.rows, np.int8)
        for number, name in enumerate(PARTS):
            self._part_of[getattr(parts, name)] = number

    def write(self) -> None:
        """Write everything; the record last."""
        normalization = self._normalization()
        learned = [normalization.mean, normalization.scale]
        if normalization.filling is not None:
            learned += [normalization.filling.values, normalization.filling.absent.astype(np.float64)]
        np.save(self._folder / "normalization.npy", np.stack(learned))
        prints = self._features(normalization)
        for name in PARTS:
            self._targets_of(name)
        digests: dict[str, str] = {}
        for path in sorted(self._folder.iterdir()):
            with path.open("rb") as file:
                digests[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
        (self._folder / _DONE).write_text(json.dumps({"fingerprints": prints, "files": digests}))

    def _normalization(self) -> Normalization:
        width = self._data.width
        filling = fit_filling(self._data.spans, self._training_blocks, width, _MOST_VALUES)

        def filled() -> Iterator[NDArray[np.float64]]:
            for block in self._training_blocks():
                yield block if filling is None else filling.apply(block)

        found = normalization_of(filled, len(self._parts.train), width)
        return dataclasses.replace(found, filling=filling)

    def _training_blocks(self) -> Iterator[NDArray[np.float64]]:
        """Yield the training rows 256 at a time, as the declared order of summation has them."""
        left = np.empty((0, self._data.width))
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
        width = self._data.width
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
                f"a value of the column {self._column(bad[1])!r} is beyond {dtype}.",
                where="data",
                remedy="Rescale the column or use float64.",
            )
        return rows

    def _column(self, place: int) -> str:
        """Return the name of the column that an encoded one comes from."""
        names = [column.name for column in self._data.columns for _ in range(column.width)]
        return names[place]

    def _targets_of(self, name: str) -> None:
        if name == "train":
            self._train_targets.tofile(self._folder / f"{name}.targets")
            return
        targets = self._targets[getattr(self._parts, name)]
        kind = np.int32 if targets.ndim == 1 else np.float64
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
