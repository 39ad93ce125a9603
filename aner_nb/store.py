"""A folder of results: receipts are added whole, never changed, and survive whatever ends the run."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from aner_nb.errors import AnerError
from aner_nb.files import write_atomically
from aner_nb.receipts import ReceiptError, TrialReceipt, decode_receipt, encode_receipt
from aner_nb.sources import fingerprint
from aner_nb.trial import Trial

_MAX_RECEIPT_BYTES: Final = 16 * 2**20
_UNREADABLE: Final = (
    *(OSError, ValueError, EOFError, LookupError, TypeError, SyntaxError, RuntimeError),
    *(ArithmeticError, MemoryError, struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error),
)
"""What NumPy lets through when an array file is damaged: the errors of all that it reads with."""
STEP_COLUMNS: Final = ("coordinator_ns", "ranks_ns", "rows", "loss")
_ROLE_FILE: Final = {"warm_up": "warmup", "measured": "trial"}


class StoreError(AnerError):
    """The results folder cannot be used."""

    kind = "store_error"


class ResultsFolder:
    """Receipts of trials below ``receipts/CASE/``, with each trial's step columns and final parameters.

    ``trial-2.json`` is the passed second repetition; a repetition that did not pass leaves
    ``trial-2.failed-1.json`` and is run again by the next run into the same folder. Beside a receipt,
    ``.steps.npz`` holds the columns by update and ``.parameters.npy`` the final float64 vector (private).
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextlib.contextmanager
    def writing(self) -> Generator[ResultsFolder]:
        """Hold the folder for one run.

        Raises
        ------
        StoreError
            If the folder cannot be written, or another run holds it; the holder is named.
        """
        try:
            self._receipts.mkdir(parents=True, exist_ok=True)
            lock = (self.path / ".lock").open("a+")
        except OSError as error:
            raise self._unusable(error) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                lock.seek(0)
                raise StoreError(
                    f"another run writes here ({lock.read().strip() or 'unknown process'}).",
                    where=str(self.path),
                    remedy="Wait for it to end, or give another folder.",
                ) from error
            lock.truncate(0)
            lock.write(f"process {os.getpid()}")
            lock.flush()
            self._sweep()
            yield self

    def _sweep(self) -> None:
        """Remove what runs that were killed while they wrote left half-written: nobody else writes here now."""
        for scrap in (*self.path.glob(".*.[0-9]*"), *self._receipts.glob("*/.*.[0-9]*")):
            with contextlib.suppress(OSError):
                scrap.unlink()

    @property
    def _receipts(self) -> Path:
        return self.path / "receipts"

    def save(self, trial: Trial) -> Path:
        """Write a trial, its receipt last, and return the receipt's path.

        Raises
        ------
        StoreError
            If it cannot be written (full disk, read-only folder), or that repetition has passed already.
            What was there before is untouched.
        """
        receipt = trial.receipt
        folder = self._receipts / receipt.case_name
        try:
            folder.mkdir(exist_ok=True)
            stem = self._free_stem(folder, receipt)
            if trial.steps is not None:
                columns = trial.steps
                write_atomically(
                    folder / f"{stem}.steps.npz",
                    lambda file: np.savez_compressed(
                        file, **{name: getattr(columns, name)[: columns.updates] for name in STEP_COLUMNS}
                    ),
                )
            if trial.parameters is not None:
                parameters = trial.parameters
                write_atomically(folder / f"{stem}.parameters.npy", lambda file: np.save(file, parameters))
            path = folder / f"{stem}.json"
            write_atomically(path, lambda file: file.write(encode_receipt(receipt)))
        except OSError as error:
            raise self._unusable(error) from error
        return path

    def _free_stem(self, folder: Path, receipt: TrialReceipt) -> str:
        stem = f"{_ROLE_FILE[receipt.role]}-{receipt.repetition}"
        if receipt.status == "passed":
            if (folder / f"{stem}.json").exists():
                raise StoreError(
                    f"{receipt.case_name} has passed {receipt.role.replace('_', '-')} {receipt.repetition} here "
                    "already; results are never overwritten.",
                    where=str(folder / f"{stem}.json"),
                    remedy="Save it as another repetition or into another folder.",
                )
            return stem
        attempt = 1
        while (folder / f"{stem}.{receipt.status}-{attempt}.json").exists():
            attempt += 1
        return f"{stem}.{receipt.status}-{attempt}"

    def receipts(self) -> list[TrialReceipt]:
        """Return all receipts, ordered by case and file name.

        Raises
        ------
        ReceiptError
            If a file is no receipt; it is named.
        """
        return [self._read(path) for path in self._paths()]

    def _paths(self) -> list[Path]:
        return sorted(self._receipts.glob("*/*.json"))

    def _read(self, path: Path) -> TrialReceipt:
        where = str(path.relative_to(self.path))
        if path.stat().st_size > _MAX_RECEIPT_BYTES:
            raise ReceiptError(f"a file of over {_MAX_RECEIPT_BYTES} bytes is no receipt.", where=where)
        receipt = decode_receipt(path.read_bytes(), where)
        if receipt.case_name != path.parent.name:
            raise ReceiptError(
                f"the receipt of case {receipt.case_name!r} lies in the folder of another case.",
                where=where,
                remedy="Move it back.",
            )
        return receipt

    def vector(self, receipt: TrialReceipt) -> NDArray[np.float64] | None:
        """Return the final parameters of a passed trial; None where they were not kept.

        Raises
        ------
        StoreError
            If the file is damaged, or is not of that trial.
        """
        path = self._beside(receipt, "parameters.npy")
        if not path.exists():
            return None
        try:
            vector: Any = np.load(path, allow_pickle=False)
        except _UNREADABLE as error:
            raise _damaged(path, error, "the trial's agreement with the reference") from error
        prints = receipt.fingerprints
        sound = isinstance(vector, np.ndarray) and vector.ndim == 1 and vector.dtype == np.float64
        if not sound or (prints is not None and fingerprint(vector) != prints.final_parameters):
            raise _damaged(path, "not the trial's", "the trial's agreement with the reference")
        return vector

    def steps(self, receipt: TrialReceipt) -> dict[str, NDArray[Any]] | None:
        """Return the columns by update of a passed trial; None where they were not kept.

        Raises
        ------
        StoreError
            If the file is damaged.
        """
        path = self._beside(receipt, "steps.npz")
        if not path.exists():
            return None
        try:
            with np.load(path, allow_pickle=False) as columns:
                found = {name: np.asarray(columns[name]) for name in columns.files}
        except _UNREADABLE as error:
            raise _damaged(path, error, "the trial's timeline") from error
        lengths = {len(column) if column.ndim else -1 for column in found.values()}
        if set(found) != set(STEP_COLUMNS) or len(lengths) != 1 or found["ranks_ns"].ndim != 3:
            raise _damaged(path, "columns are missing or differ in length", "the trial's timeline")
        return found

    def _beside(self, receipt: TrialReceipt, ending: str) -> Path:
        stem = f"{_ROLE_FILE[receipt.role]}-{receipt.repetition}"
        return self._receipts / receipt.case_name / f"{stem}.{ending}"

    def save_document(self, name: str, value: object) -> None:
        """Write a small JSON document, such as the suite or the platforms' facts, beside the receipts."""
        text = json.dumps(value, indent=2, sort_keys=True).encode() + b"\n"
        try:
            write_atomically(self.path / f"{name}.json", lambda file: file.write(text))
        except OSError as error:
            raise self._unusable(error) from error

    def document(self, name: str) -> Mapping[str, Any] | None:
        """Return a document that `save_document` wrote; None where there is none."""
        path = self.path / f"{name}.json"
        if not path.exists():
            return None
        try:
            return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise StoreError(f"not a JSON object ({error}).", where=str(path)) from error

    def _unusable(self, error: OSError) -> StoreError:
        return StoreError(
            f"results cannot be written ({error.strerror or error}).",
            where=str(self.path),
            remedy="Free space or make the folder writable; the same command then goes on where it stopped.",
        )


def _damaged(path: Path, reason: object, price: str) -> StoreError:
    return StoreError(
        f"the file is damaged ({reason or type(reason).__name__}).",
        where=str(path),
        remedy=f"Put back a good copy or delete it: only {price} is lost, its receipt stays.",
    )


def is_results_folder(path: Path) -> bool:
    """Return whether a folder holds receipts."""
    return any(re.fullmatch(r".+\.json", child.name) for child in (path / "receipts").glob("*/*"))
