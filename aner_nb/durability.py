"""What survives a loss: checkpoints during training, and going on with other ranks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from aner_nb.checkpoints import Checkpoint, CheckpointError, load_checkpoint, save_checkpoint
from aner_nb.errors import CaseError
from aner_nb.master import MasterState
from aner_nb.plan import Update
from aner_nb.stopping import StopWatch
from aner_nb.work import Work


@dataclass(frozen=True, slots=True)
class Durability:
    """How a trial protects its progress. The default is not at all: measured trials are not disturbed.

    Examples
    --------
    >>> Durability(Path("state.safetensors"), every=100, on_loss="restart").every
    100
    """

    checkpoint: Path | None = None
    """File for the canonical state. If it exists and belongs to the same work, training goes on from it."""
    every: Literal["epoch"] | int = "epoch"
    """Write after each epoch, or after every so many updates."""
    on_loss: Literal["fail", "restart"] = "fail"
    """What a lost rank leads to: the end of the trial, or going on over the ranks that the cluster then has.

    The state is the coordinator's, so nothing is lost with a rank: training goes on at the very update.
    """

    def __post_init__(self) -> None:
        number = isinstance(self.every, int) and not isinstance(self.every, bool) and self.every >= 1
        if self.every != "epoch" and not number:
            raise CaseError(
                f"{self.every!r} is no interval.",
                where="every",
                remedy="Give 'epoch' or a number of updates.",
            )
        if self.on_loss not in ("fail", "restart"):
            raise CaseError(
                f"{self.on_loss!r} is not known.", where="on_loss", remedy="Choose fail or restart."
            )

    def restore(self, work: Work, state: MasterState, watch: StopWatch) -> int:
        """Take over the checkpoint, if there is one; return the updates that it has.

        Raises
        ------
        CheckpointError
            If it is damaged or belongs to other work.
        """
        if self.checkpoint is None or not self.checkpoint.exists():
            return 0
        kept = load_checkpoint(self.checkpoint)
        fits = (
            kept.work_id == work.case.work_id
            and kept.parameters.shape == state.parameters.shape
            and len(kept.slots) == len(state.optimizer.slots)
            and kept.updates <= work.plan.update_count
            and (watch.rule is None or len(kept.losses) == kept.updates // work.plan.batch_count)
        )
        if not fits:
            raise CheckpointError(
                "the checkpoint belongs to other work.",
                where=str(self.checkpoint),
                remedy="Name another file, or remove it to begin anew.",
            )
        state.restore(kept.parameters, kept.slots, kept.updates)
        watch.go_on_from(kept.losses, kept.best)
        return kept.updates

    def applied(self, work: Work, update: Update, state: MasterState, watch: StopWatch) -> None:
        """Write the checkpoint if it is due after this update."""
        if self.checkpoint is None:
            return
        done = update.index + 1
        due = update.ends_epoch if self.every == "epoch" else done % self.every == 0
        if due or done == work.plan.update_count or (update.ends_epoch and watch.over()):
            losses = tuple(watch.losses)
            slots = state.optimizer.slots
            save_checkpoint(
                self.checkpoint,
                Checkpoint(work.case.work_id, done, state.parameters, slots, losses, watch.best),
            )


NOT_DURABLE: Final = Durability()
"""No checkpoint, and a lost rank ends the trial."""
