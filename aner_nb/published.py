"""A public bundle, read as the results of a study: what its files state, which `verify` checks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from aner_nb.analysis import StudySummary
from aner_nb.receipts import TrialReceipt, decode_public_receipt
from aner_nb.store import StoreError
from aner_nb.verification import CHECKSUMS


class PublicBundle:
    """The folder of a public bundle. It has no parameter vectors and no step columns: those are never published."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def receipts(self) -> list[TrialReceipt]:
        """Return the receipts of warm-ups and measured trials, without what is private.

        Raises
        ------
        ReceiptError
            If a line is no receipt; it is named.
        """
        return [
            decode_public_receipt(line, f"{name}:{number}")
            for name in ("warmups.jsonl", "trials.jsonl")
            for number, line in enumerate(self._read(name).splitlines(), 1)
        ]

    def summary(self) -> StudySummary:
        """Return the published summary: its agreement came from vectors that stay private.

        Raises
        ------
        StoreError
            If it cannot be read.
        """
        return self._decoded("summaries", StudySummary)

    def document(self, name: str) -> Mapping[str, Any]:
        """Return the suite or the configurations.

        Raises
        ------
        StoreError
            If it cannot be read.
        """
        return self._decoded(name, dict[str, Any])

    def vector(self, _receipt: TrialReceipt) -> None:
        """Return None: no vector is published."""

    def steps(self, _receipt: TrialReceipt) -> None:
        """Return None: no step columns are published."""

    def _decoded(self, name: str, kind: type[Any]) -> Any:
        try:
            return msgspec.json.decode(self._read(f"{name}.json"), type=kind)
        except msgspec.MsgspecError as error:
            raise self._broken(f"{name}.json does not fit its schema ({error})") from error

    def _read(self, name: str) -> bytes:
        try:
            return (self.path / name).read_bytes()
        except OSError as error:
            raise self._broken(f"{name} cannot be read ({error.strerror})") from error

    def _broken(self, what: str) -> StoreError:
        remedy = "aner-nb verify lists everything that is wrong with a bundle."
        return StoreError(f"{what}.", where=str(self.path), remedy=remedy)


def is_public_bundle(path: Path) -> bool:
    """Return whether a folder is a public bundle, and not the results folder that it was made from."""
    return (path / CHECKSUMS).is_file() and not (path / "receipts").is_dir()
