"""Whether all placements learn the same: complete parameter vectors beside the reference's. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import numpy as np
from numpy.typing import NDArray

from aner_nb.facts import Record, fact
from aner_nb.receipts import TrialReceipt

TOLERANCE: Final[Mapping[str, float]] = {"float32": 1e-4, "float64": 1e-9}
"""Largest difference of any parameter, relative to the reference vector's largest, declared beforehand."""


class Agreement(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The worst of a case's measured trials beside the reference."""

    reference: Annotated[str, fact("Case whose first measured trial is the reference.")]
    trials: Annotated[int, fact("Trials compared.")]
    maximum_absolute: Annotated[float, fact("Largest difference of a parameter.")]
    maximum_relative: Annotated[float, fact("The same, over the largest magnitude in the reference vector.")]
    root_mean_square: Annotated[float, fact("Of the differences.")]
    cosine: Annotated[float, fact("Between the vectors; 1 is the same direction.")]
    loss_difference: Annotated[float, fact("Largest difference of the final test loss.")]
    accuracy_difference: Annotated[float | None, fact("Largest difference of the final test accuracy.")]
    tolerance: Annotated[float, fact("Largest maximum_relative that agrees, by dtype.")]
    agrees: Annotated[bool, fact("Whether maximum_relative is within the tolerance.")]


def reference_of(cases: Sequence[Sequence[TrialReceipt]], key: tuple[str, str]) -> TrialReceipt | None:
    """Return the reference of a work and dtype: the first measured trial of its first standalone CPU case.

    Where no standalone CPU case was measured, a standalone NumPy case serves; None: there is neither.
    """
    for backend in ("cpu", "numpy"):
        for own in cases:
            head = own[0]
            ranks = head.case["ranks"]
            placement = str(ranks[0][0]).rsplit("/", 1)[-1].split(":")[0]
            if (head.work_id, head.case["dtype"]) != key or len(ranks) != 1 or placement != backend:
                continue
            passed = [trial for trial in own if trial.role == "measured" and trial.status == "passed"]
            if passed:
                return min(passed, key=lambda trial: trial.repetition)
    return None


def compare_vectors(
    reference: TrialReceipt,
    trials: Sequence[TrialReceipt],
    vectors: Mapping[tuple[str, int], NDArray[np.float64]],
) -> Agreement | None:
    """Compare each trial's final parameters with the reference's; None where vectors are missing."""
    base = vectors.get((reference.case_name, reference.repetition))
    others = [vectors.get((trial.case_name, trial.repetition)) for trial in trials]
    present = [vector for vector in others if vector is not None]
    if base is None or len(present) != len(trials) or not trials:
        return None
    scale = float(np.abs(base).max()) or 1.0
    differences = [vector - base for vector in present]
    absolute = max(float(np.abs(difference).max()) for difference in differences)
    tolerance = TOLERANCE[str(reference.case["dtype"])]
    return Agreement(
        reference=reference.case_name,
        trials=len(trials),
        maximum_absolute=absolute,
        maximum_relative=absolute / scale,
        root_mean_square=max(float(np.sqrt(np.mean(difference**2))) for difference in differences),
        cosine=min(_cosine(vector, base) for vector in present),
        loss_difference=max(abs(_loss(trial) - _loss(reference)) for trial in trials),
        accuracy_difference=_accuracy_difference(reference, trials),
        tolerance=tolerance,
        agrees=absolute / scale <= tolerance,
    )


def _cosine(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    norms = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(first @ second) / norms if norms else 1.0


def _loss(trial: TrialReceipt) -> float:
    return float("nan") if trial.test is None or trial.test.loss is None else trial.test.loss


def _accuracy_difference(reference: TrialReceipt, trials: Sequence[TrialReceipt]) -> float | None:
    if reference.test is None or reference.test.accuracy is None:
        return None
    own = reference.test.accuracy
    return max(abs((trial.test.accuracy or 0.0) - own) for trial in trials if trial.test)
