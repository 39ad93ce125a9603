"""Opaque names for machines, kept stable in a small file of the user's."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, Final, cast

from aner_nb.case import canonical_json
from aner_nb.errors import ClusterError

VARIABLE: Final = "ANER_NB_INVENTORY"
_OPAQUE: Final = re.compile(r"[A-Z][a-z]+-\d{2,}")


def inventory_path() -> Path:
    """Return the inventory's path: ``ANER_NB_INVENTORY``, else in the user's configuration folder."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "aner_nb" / "inventory.json"


def platform_names(machine_keys: list[str]) -> dict[str, str]:
    """Return a name such as ``Atlas-01`` for each machine key; new machines get the next number.

    Raises
    ------
    ClusterError
        If the inventory cannot be read or written.
    """
    path = inventory_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path):
            known = _read(path)
            new = [key for key in dict.fromkeys(machine_keys) if key not in known]
            used = {int(name.rsplit("-", 1)[1]) for name in known.values()}
            for key in new:
                number = max(used, default=0) + 1
                used.add(number)
                known[key] = f"Atlas-{number:02d}"
            if new:
                temporary = path.with_suffix(".new")
                temporary.write_text(json.dumps(known, indent=2) + "\n")
                temporary.replace(path)
    except OSError as error:
        raise ClusterError(
            f"the inventory of machine names cannot be kept ({error.strerror}).",
            where=str(path),
            remedy=f"Make the folder writable, or name another file in {VARIABLE}.",
        ) from error
    return {key: known[key] for key in machine_keys}


def is_opaque(name: str) -> bool:
    """Return whether a machine's name is of the inventory's form, which tells nothing of the machine."""
    return _OPAQUE.fullmatch(name) is not None


def configuration_id(capacity: Mapping[str, Any]) -> str:
    """Return the immutable id of a machine's hardware and software: SHA-256 of its facts, hexadecimal."""
    return hashlib.sha256(canonical_json(capacity)).hexdigest()


def _read(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    try:
        known = json.loads(path.read_text())
        if isinstance(known, dict):
            names = cast("dict[str, str]", known)
            for name in names.values():
                int(str(name).rsplit("-", 1)[1])
            return names
    except (ValueError, IndexError, RecursionError):
        pass
    raise ClusterError(
        "the inventory of machine names is damaged.",
        where=str(path),
        remedy="Mend it, or delete it to number the machines anew.",
    )


@contextlib.contextmanager
def _locked(path: Path) -> Generator[None]:
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
