"""From trials to summaries: medians, baselines, ratios, agreement, memory, warnings. Pure.

The statistics of a case are the median and the observed minimum and maximum of its passed measured trials.
They are called that, and never a confidence interval.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from aner_nb.agreement import Agreement, compare_vectors, reference_of
from aner_nb.errors import AnerError
from aner_nb.facts import Record, fact
from aner_nb.receipts import TrialReceipt

SPREAD_LIMIT: Final = 1.25
"""Largest over smallest native fit of a case from which its spread is pointed out."""

DRIFT_LIMIT: Final = 1.15
"""Median of last round's cases over the first round's, relative to each case, from which drift is pointed out."""

STEAL_LIMIT: Final = 0.02
"""Share of stolen processor time from which it is pointed out."""

Vectors = Mapping[tuple[str, int], NDArray[np.float64]]
"""(case name, repetition) to the final parameters."""


class MixedResults(AnerError):
    """Trials that must not be put into one figure."""

    kind = "mixed_results"


class Spread(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A duration over the measured trials."""

    median_ns: Annotated[int, fact("Median of the measured trials.", "ns")]
    minimum_ns: Annotated[int, fact("Smallest observed.", "ns")]
    maximum_ns: Annotated[int, fact("Largest observed.", "ns")]


class Comparison(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group beside its fastest standalone placement, for one clock."""

    baseline: Annotated[str, fact("Case with the fastest median among the group's placements, alone.")]
    ratio: Annotated[float, fact("Baseline's median over the group's; below 1 the group is slower.")]
    faster_trials: Annotated[int, fact("Group trials that were faster than every trial of the baseline.")]
    ideal_ratio: Annotated[
        float | None, fact("What the members' own speeds would add up to without any overhead.")
    ]


class Memory(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Largest memory over the measured trials, by scope. Scopes overlap and are never added up."""

    coordinator_rss_bytes: Annotated[int, fact("Coordinator's resident high water.", "bytes")]
    worker_rss_bytes: Annotated[int, fact("Largest rank's resident high water.", "bytes")]
    largest_rank: Annotated[int, fact("Which rank that was.")]
    device_bytes: Annotated[int | None, fact("Most tracked device memory of a rank.", "bytes")]
    process_vram_bytes: Annotated[int | None, fact("Most video memory of a rank's process.", "bytes")]
    process_vram_reason: Annotated[str, fact("Why there is no figure; empty if there is one.")]


class CaseSummary(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the trials of a case come to."""

    case: Annotated[str, fact("Name.")]
    contract_id: Annotated[str, fact("Of the case.")]
    work_id: Annotated[str, fact("Of what is computed.")]
    dtype: Annotated[str, fact("Arithmetic of the ranks.")]
    placements: Annotated[tuple[str, ...], fact("Of each rank, as declared.")]
    weights: Annotated[tuple[int, ...], fact("Of each rank, as declared.")]
    status: Annotated[str, fact("passed, failed, not_run or incomplete.")]
    reason: Annotated[str, fact("Why it did not run or failed; empty if it passed.")]
    measured: Annotated[int, fact("Measured trials that passed.")]
    warm_ups: Annotated[int, fact("Warm-up trials that passed; not in the statistics.")]
    failed: Annotated[int, fact("Trials that failed or were cancelled, all roles.")]
    native_fit: Annotated[Spread | None, fact("Native fit.")] = None
    complete_command: Annotated[Spread | None, fact("Complete command.")] = None
    fit_comparison: Annotated[Comparison | None, fact("Groups only: native fit.")] = None
    command_comparison: Annotated[Comparison | None, fact("Groups only: complete command.")] = None
    no_baseline: Annotated[str, fact("Groups only: why there is no comparison.")] = ""
    epochs: Annotated[
        tuple[int, ...],
        fact("Epochs that the measured trials ran, each number once; empty where a case always runs all."),
    ] = ()
    test_loss: Annotated[float | None, fact("Final test, first measured trial.")] = None
    test_accuracy: Annotated[float | None, fact("Final test, first measured trial.")] = None
    agreement: Annotated[Agreement | None, fact("With the reference of its work.")] = None
    memory: Annotated[Memory | None, fact("By scope.")] = None


class StudySummary(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All cases of a study, in the suite's order."""

    cases: Annotated[tuple[CaseSummary, ...], fact("One a case.")]
    warnings: Annotated[tuple[str, ...], fact("What may make figures less certain; alters none.")]


def summarise(
    receipts: Sequence[TrialReceipt], case_order: Sequence[str], vectors: Vectors | None = None
) -> StudySummary:
    """Summarise all trials of a study.

    Parameters
    ----------
    case_order
        Names of the cases, in the suite's order: the first standalone CPU case of a work is its reference.
    vectors
        Final parameters by case and repetition; without them there is no agreement.

    Raises
    ------
    MixedResults
        If one case name has trials of several contracts or machine configurations.
    """
    by_case: dict[str, list[TrialReceipt]] = {name: [] for name in case_order}
    for receipt in receipts:
        if receipt.case_name in by_case:
            by_case[receipt.case_name].append(receipt)
    for name, own in by_case.items():
        _refuse_mixing(name, own)
    summaries = [_summarise_case(name, own) for name, own in by_case.items() if own]
    references = {
        key: reference_of([by_case[name] for name in case_order if by_case[name]], key)
        for key in {(summary.work_id, summary.dtype) for summary in summaries}
    }
    finished: list[CaseSummary] = []
    for summary in summaries:
        changes: dict[str, Any] = _compare(summary, summaries)
        reference = references[summary.work_id, summary.dtype]
        if vectors is not None and reference is not None and summary.measured:
            changes["agreement"] = compare_vectors(
                reference, [trial for trial in by_case[summary.case] if _counts(trial)], vectors
            )
        finished.append(msgspec.structs.replace(summary, **changes))
    return StudySummary(cases=tuple(finished), warnings=_warnings(by_case))


def _refuse_mixing(name: str, own: Sequence[TrialReceipt]) -> None:
    contracts = {receipt.contract_id for receipt in own}
    if len(contracts) > 1:
        raise MixedResults(
            f"trials of {len(contracts)} different contracts bear the name {name!r}.",
            remedy="Keep changed cases in another results folder, or give them another name.",
        )
    configurations = {
        tuple(rank.configuration_id for rank in receipt.ranks) for receipt in own if _counts(receipt)
    }
    if len(configurations) > 1:
        raise MixedResults(
            f"the machines or software of {name!r} changed between its trials.",
            remedy="Run the suite into a new folder: figures of two configurations are not put into one median.",
        )


def _counts(receipt: TrialReceipt) -> bool:
    """Return whether a trial enters the statistics."""
    return receipt.role == "measured" and receipt.status == "passed" and not receipt.restarts


def _summarise_case(name: str, own: Sequence[TrialReceipt]) -> CaseSummary:
    measured = sorted((trial for trial in own if _counts(trial)), key=lambda trial: trial.repetition)
    troubled = [trial for trial in own if trial.status in ("failed", "cancelled")]
    unavailable = [trial for trial in own if trial.status == "not_run"]
    status = "passed" if measured else "not_run" if unavailable else "failed" if troubled else "incomplete"
    blamed = (
        [] if measured else [trial.failure.reason for trial in (*unavailable, *troubled) if trial.failure]
    )
    ranks = own[0].case["ranks"]
    first = measured[0] if measured else None
    return CaseSummary(
        case=name,
        contract_id=own[0].contract_id,
        work_id=own[0].work_id,
        dtype=str(own[0].case["dtype"]),
        placements=tuple(str(placement) for placement, _ in ranks),
        weights=tuple(int(weight) for _, weight in ranks),
        status=status,
        reason=blamed[0] if blamed else "",
        measured=len(measured),
        warm_ups=sum(trial.role == "warm_up" and trial.status == "passed" for trial in own),
        failed=len(troubled),
        native_fit=_spread([trial.clocks.native_fit_ns for trial in measured if trial.clocks]),
        complete_command=_spread([trial.clocks.complete_command_ns for trial in measured if trial.clocks]),
        epochs=tuple(sorted({trial.stopping.epochs for trial in measured if trial.stopping})),
        test_loss=first.test.loss if first and first.test else None,
        test_accuracy=first.test.accuracy if first and first.test else None,
        memory=_memory(measured),
    )


def _spread(values: Sequence[int]) -> Spread | None:
    if not values:
        return None
    return Spread(median_ns=round(statistics.median(values)), minimum_ns=min(values), maximum_ns=max(values))


def _memory(measured: Sequence[TrialReceipt]) -> Memory | None:
    ranks = [(index, rank.memory) for trial in measured for index, rank in enumerate(trial.ranks)]
    if not ranks:
        return None
    largest, memory = max(ranks, key=lambda item: item[1].worker_rss_high_water_bytes)
    devices = [rank.device_peak_bytes for _, rank in ranks if rank.device_peak_bytes is not None]
    vram = [rank.process_vram_bytes for _, rank in ranks if rank.process_vram_bytes is not None]
    return Memory(
        coordinator_rss_bytes=max(trial.coordinator_rss_high_water_bytes or 0 for trial in measured),
        worker_rss_bytes=memory.worker_rss_high_water_bytes,
        largest_rank=largest,
        device_bytes=max(devices, default=None),
        process_vram_bytes=max(vram, default=None),
        process_vram_reason="" if vram else ranks[0][1].process_vram_reason,
    )


def _compare(summary: CaseSummary, summaries: Sequence[CaseSummary]) -> dict[str, Any]:
    """Return the comparisons of a group with the placements in it, alone, on the same work."""
    if len(summary.placements) < 2 or summary.native_fit is None or summary.complete_command is None:
        return {}
    alone = [
        other
        for other in summaries
        if len(other.placements) == 1
        and other.work_id == summary.work_id
        and other.placements[0] in summary.placements
        and other.native_fit is not None
    ]
    if not alone:
        return {"no_baseline": "none of its placements was measured alone on the same work"}
    alike = [other for other in alone if other.epochs == summary.epochs and len(summary.epochs) < 2]
    if not alike:
        return {"no_baseline": "none of its placements alone stopped after the same number of epochs"}
    alone = alike
    return {
        "fit_comparison": _comparison(summary, alone, "native_fit"),
        "command_comparison": _comparison(summary, alone, "complete_command"),
    }


def _comparison(summary: CaseSummary, alone: Sequence[CaseSummary], clock: str) -> Comparison:
    own: Spread = getattr(summary, clock)
    spreads: dict[str, Spread] = {other.case: getattr(other, clock) for other in alone}
    baseline = min(spreads, key=lambda name: spreads[name].median_ns)
    best = spreads[baseline]
    speeds = {other.placements[0]: 1.0 / getattr(other, clock).median_ns for other in alone}
    members = [speeds.get(placement) for placement in summary.placements]
    known = [speed for speed in members if speed is not None]
    complete = len(known) == len(members) and clock == "native_fit"
    return Comparison(
        baseline=baseline,
        ratio=best.median_ns / own.median_ns,
        faster_trials=summary.measured if own.maximum_ns < best.minimum_ns else 0,
        ideal_ratio=ideal_ratio(known, summary.weights) if complete else None,
    )


def ideal_ratio(speeds: Sequence[float], weights: Sequence[int]) -> float:
    """Return how much faster than its fastest member a group would be without any overhead.

    With shares fixed by the weights, the slowest rank for its share sets the pace:
    (sum of weights) * min over ranks of speed / weight, over the largest speed.

    Examples
    --------
    >>> ideal_ratio([1.0, 1.0], [1, 1])
    2.0
    >>> round(ideal_ratio([1.0, 1.0], [1, 7]), 3)
    1.143
    """
    pace = sum(weights) * min(speed / weight for speed, weight in zip(speeds, weights, strict=True))
    return pace / max(speeds)


def _warnings(by_case: Mapping[str, Sequence[TrialReceipt]]) -> tuple[str, ...]:
    found: list[str] = []
    for name, own in by_case.items():
        fits = [trial.clocks.native_fit_ns for trial in own if _counts(trial) and trial.clocks]
        if len(fits) > 1 and max(fits) > SPREAD_LIMIT * min(fits):
            found.append(f"{name}: native fit spreads by a factor of {max(fits) / min(fits):.2f}")
        lengths = sorted({trial.stopping.epochs for trial in own if _counts(trial) and trial.stopping})
        if len(lengths) > 1:
            found.append(
                f"{name}: its trials stopped after different epochs ({', '.join(map(str, lengths))})"
            )
        restarted = sum(bool(trial.restarts) for trial in own)
        if restarted:
            found.append(f"{name}: {restarted} trial(s) went on after a loss and are not in the statistics")
    trials = [trial for own in by_case.values() for trial in own if _counts(trial)]
    found += _different_ends(trials)
    drift = _drift(by_case)
    if drift is not None and not 1 / DRIFT_LIMIT < drift < DRIFT_LIMIT:
        found.append(f"the last round took {drift:.2f} times the first round's native fit, over all cases")
    noise = [trial.noise for trial in trials if trial.noise is not None]
    busy = sum(item.busy_seconds for item in noise)
    stolen = sum(item.steal_seconds for item in noise)
    if busy > 0 and stolen / busy > STEAL_LIMIT:
        found.append(f"{stolen / busy:.1%} of the used processor time was taken by the hypervisor")
    return tuple(found)


def _different_ends(trials: Sequence[TrialReceipt]) -> list[str]:
    """Return a sentence for each work whose cases did not all stop after the same epoch."""
    ends: dict[tuple[str, str], dict[int, str]] = {}
    for trial in trials:
        if trial.stopping is not None:
            own = ends.setdefault((trial.work_id, str(trial.case["dtype"])), {})
            own.setdefault(trial.stopping.epochs, trial.case_name)
    return [
        "cases of one work stopped after different epochs, and are not compared: "
        + ", ".join(f"{name} after {epochs}" for epochs, name in sorted(own.items()))
        for own in ends.values()
        if len(set(own.values())) > 1
    ]


def _drift(by_case: Mapping[str, Sequence[TrialReceipt]]) -> float | None:
    """Return the median, over cases, of the last round's native fit over the first's."""
    ratios: list[float] = []
    for own in by_case.values():
        fits = {trial.round: trial.clocks.native_fit_ns for trial in own if _counts(trial) and trial.clocks}
        if len(fits) > 1:
            ratios.append(fits[max(fits)] / fits[min(fits)])
    return statistics.median(ratios) if ratios else None
