"""The result of one trial."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from aner_nb.coordinator import Record
from aner_nb.errors import AnerError
from aner_nb.receipts import TrialReceipt
from aner_nb.work import Work


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of one trial."""

    receipt: TrialReceipt
    steps: Record | None = None
    """Columns by update; None where training never began."""
    parameters: NDArray[np.float64] | None = None
    """The final float64 vector; None where training did not end. Private."""
    work: Work | None = field(default=None, repr=False)
    error: AnerError | None = None
    """What ended it, unless it passed."""

    def raise_unless_passed(self) -> Trial:
        """Return the trial, or raise the error that ended it."""
        if self.error is not None:
            raise self.error
        return self

    def __str__(self) -> str:
        receipt = self.receipt
        head = f"{receipt.case_name}, {receipt.role.replace('_', '-')} {receipt.repetition}: {receipt.status}"
        if receipt.failure is not None:
            return f"{head}: {self.error or receipt.failure.reason}"
        if receipt.clocks is None or receipt.test is None or receipt.test.loss is None:
            return head
        stopping = receipt.stopping
        if stopping is not None and stopping.stopped:
            head += f", stopped early after {stopping.epochs} epochs"
        accuracy = receipt.test.accuracy
        quality = f"test loss {receipt.test.loss:.4f}" if accuracy is None else f"test {accuracy:.2%}"
        return (
            f"{head}, native fit {receipt.clocks.native_fit_ns / 1e9:.3f} s, complete command "
            f"{receipt.clocks.complete_command_ns / 1e9:.2f} s, {quality}"
        )

    def _repr_html_(self) -> str:
        from aner_nb.views import trial_html

        return trial_html(self)

    def __repr__(self) -> str:
        return f"<Trial {self}>"
