"""The canonical state in a file: written whole, checked when read, and readable by other tools (safetensors)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from aner_nb.errors import AnerError
from aner_nb.files import write_atomically
from aner_nb.sources import fingerprint

FORMAT: Final = "aner_nb checkpoint 1"
_MAX_BYTES: Final = 2**34


class CheckpointError(AnerError):
    """A checkpoint cannot be read, or belongs to other work."""

    kind = "checkpoint_error"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All that the coordinator needs to go on: state, and the position in the plan."""

    work_id: str
    """Of the case: a checkpoint goes on only with the work that it came from."""
    updates: int
    """Updates applied; the next one has this number."""
    parameters: NDArray[np.float64]
    slots: tuple[NDArray[np.float64], ...]
    """The optimizer's vectors."""
    losses: tuple[float, ...] = ()
    """Validation losses of the epochs so far, of a case that may stop early."""
    best: NDArray[np.float64] | None = None
    """Parameters after the best epoch, of a case that restores them."""

    @property
    def digest(self) -> str:
        """SHA-256 over the work, the position and all vectors."""
        work = np.frombuffer(self.work_id.encode(), np.uint8)
        position = np.array([self.updates], np.int64)
        return fingerprint(work, position, self.parameters, *self.slots, *self.stopping.values())

    @property
    def stopping(self) -> dict[str, NDArray[np.float64]]:
        """What early stopping needs, by name; empty where there is nothing."""
        tensors = {"validation_losses": np.array(self.losses)} if self.losses else {}
        return tensors | ({"best_parameters": self.best} if self.best is not None else {})


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint, replacing the one before only when it is complete.

    Raises
    ------
    CheckpointError
        If it cannot be written.
    """
    tensors = {"parameters": checkpoint.parameters}
    tensors |= {f"optimizer_slot_{index}": slot for index, slot in enumerate(checkpoint.slots)}
    tensors |= checkpoint.stopping
    metadata = {
        "format": FORMAT,
        "work_id": checkpoint.work_id,
        "updates": str(checkpoint.updates),
        "sha256": checkpoint.digest,
    }
    content = safetensors.numpy.save(tensors, metadata)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda file: file.write(content))
    except OSError as error:
        raise CheckpointError(
            f"the checkpoint cannot be written ({error.strerror or error}).",
            where=str(path),
            remedy="Free space or make the folder writable.",
        ) from error


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint and check it.

    Raises
    ------
    CheckpointError
        If the file is missing, damaged, or not one of ours.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise CheckpointError(f"a file of over {_MAX_BYTES} bytes is not read.", where=str(path))
        content = path.read_bytes()
        tensors = safetensors.numpy.load(content)
        metadata = _metadata(content)
        losses, best = tensors.get("validation_losses", np.empty(0)), tensors.get("best_parameters")
        others = 1 + ("validation_losses" in tensors) + ("best_parameters" in tensors)
        slots = tuple(tensors[f"optimizer_slot_{index}"] for index in range(len(tensors) - others))
        checkpoint = Checkpoint(
            metadata["work_id"],
            int(metadata["updates"]),
            tensors["parameters"],
            slots,
            tuple(losses.tolist()),
            best,
        )
        intact = (
            metadata["format"] == FORMAT
            and all(array.dtype == np.float64 for array in tensors.values())
            and metadata["sha256"] == checkpoint.digest
        )
    except (OSError, KeyError, ValueError, safetensors.SafetensorError) as error:
        raise CheckpointError(
            f"not a readable checkpoint ({type(error).__name__}: {error}).",
            where=str(path),
            remedy="Start without it; the training then begins anew.",
        ) from error
    if not intact:
        raise CheckpointError(
            "the checkpoint's checksum does not fit its content.",
            where=str(path),
            remedy="It was changed or damaged: start without it.",
        )
    return checkpoint


def _metadata(content: bytes) -> dict[str, str]:
    """Return the metadata of safetensors bytes: a JSON header behind its 8-byte little-endian length."""
    length = int.from_bytes(content[:8], "little")
    return dict(json.loads(content[8 : 8 + length])["__metadata__"])
