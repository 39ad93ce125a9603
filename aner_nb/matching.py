"""Which worker hosts which rank: pure."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from aner_nb.case import Placement
from aner_nb.errors import BackendUnavailable
from aner_nb.hardware import TENSORFLOW_VERSIONS
from aner_nb.ranks import Offer

_DEVICE_NAMES: Final = {"cuda": "CUDA device", "metal": "Metal device"}


def lasting_name(address: str, worker: Mapping[str, Any]) -> str:
    """Return what tells a worker from others before and after its restart, from what the scheduler knows of it.

    That is its name; a worker that was started without one is named by its address, which a restart changes. Then it is
    the address of its nanny.
    """
    name = str(worker["name"])
    return str(worker.get("nanny") or name) if name == address else name


def match_offers(placements: Sequence[Placement], offers: Sequence[Offer]) -> tuple[Offer, ...]:
    """Return the offer for each rank, with the placement that will run; no worker is used twice, and no accelerator.

    The most demanding ranks choose first, so that a CPU rank does not take a GPU's worker; each takes the offer
    that wastes least.

    Raises
    ------
    BackendUnavailable
        If there is no such placement, or too few of it, or the workers' TensorFlow does not fit.
    """
    free = list(offers)
    chosen: dict[int, Offer] = {}
    for rank in sorted(range(len(placements)), key=lambda rank: _demand(placements[rank])):
        wanted = placements[rank]
        fitting = [offer for offer in free if _fits(wanted, offer.placement)]
        if not fitting:
            raise _unavailable(wanted, placements, offers)
        offer = min(fitting, key=lambda offer: _waste(offer, wanted, offers))
        chosen[rank] = offer
        free = [other for other in free if other.worker != offer.worker and not _same_device(other, offer)]
    matched = tuple(
        dataclasses.replace(chosen[rank], placement=_settled(placement, chosen[rank].placement))
        for rank, placement in enumerate(placements)
    )
    _check_tensorflow(matched)
    return matched


def hostable(placements: Sequence[Placement], offers: Sequence[Offer]) -> tuple[int, ...]:
    """Return which of the ranks can be hosted together; lower ranks are served first."""
    chosen: list[int] = []
    for rank in range(len(placements)):
        try:
            match_offers([placements[index] for index in (*chosen, rank)], offers)
        except BackendUnavailable:
            continue
        chosen.append(rank)
    return tuple(chosen)


def _same_device(first: Offer, second: Offer) -> bool:
    """Return whether both are one accelerator, which two workers of a machine may offer."""
    return first.placement.backend in _DEVICE_NAMES and first.placement == second.placement


def _waste(offer: Offer, wanted: Placement, offers: Sequence[Offer]) -> tuple[int, int, str]:
    beside = sum(other.worker == offer.worker for other in offers)
    return (offer.placement.threads - wanted.threads, beside, offer.worker)


def _unavailable(
    wanted: Placement, all_wanted: Sequence[Placement], offers: Sequence[Offer]
) -> BackendUnavailable:
    offered = ", ".join(dict.fromkeys(str(offer.placement) for offer in offers))
    count = sum(_fits(wanted, offer.placement) for offer in offers)
    asked = sum(placement == wanted for placement in all_wanted)
    if wanted.backend in ("cuda", "metal") and not count:
        what = f"no {_DEVICE_NAMES[wanted.backend]} on {wanted.platform or 'any machine of the cluster'}."
    elif count:
        what = f"{asked} ranks ask for {wanted}; the cluster has {count} of it."
    else:
        what = f"the cluster has no placement {wanted}."
    return BackendUnavailable(what, remedy=f"It offers {offered}.")


def _demand(placement: Placement) -> tuple[bool, bool, int]:
    return (placement.backend in ("cpu", "numpy"), not placement.platform, -placement.threads)


def _fits(wanted: Placement, offered: Placement) -> bool:
    if wanted.platform and wanted.platform != offered.platform:
        return False
    if wanted.backend == "numpy":
        return offered.backend in ("numpy", "cpu")
    if wanted.backend != offered.backend:
        return False
    if wanted.backend == "cpu":
        return offered.threads >= wanted.threads
    return wanted.device == offered.device


def _settled(wanted: Placement, offered: Placement) -> Placement:
    """Return the placement that runs: what was asked for, with the offer's platform and default threads."""
    return dataclasses.replace(
        wanted, platform=offered.platform, threads=wanted.threads or offered.threads or 1
    )


def _check_tensorflow(offers: Sequence[Offer]) -> None:
    needing = [offer for offer in offers if offer.placement.backend != "numpy"]
    oldest, newest = (".".join(map(str, version)) for version in TENSORFLOW_VERSIONS)
    for offer in needing:
        where = str(offer.placement)
        if not offer.tensorflow:
            raise BackendUnavailable(
                "TensorFlow is not installed in the worker's environment.",
                where=where,
                remedy="Install it there: pip install 'aner-nb[cpu]'.",
            )
        found = re.match(r"(\d+)\.(\d+)", offer.tensorflow)
        version = (int(found[1]), int(found[2])) if found else (0, 0)
        if not TENSORFLOW_VERSIONS[0] <= version <= TENSORFLOW_VERSIONS[1]:
            raise BackendUnavailable(
                f"the worker has TensorFlow {offer.tensorflow}; {oldest} to {newest} are supported.",
                where=where,
                remedy=f"Install a TensorFlow from {oldest} to {newest} there.",
            )
    plain = {offer.tensorflow for offer in needing if offer.placement.backend != "metal"}
    if len(plain) > 1:
        raise BackendUnavailable(
            f"the ranks have different TensorFlow versions ({', '.join(sorted(plain))}).",
            remedy="Install one version on all of them; only Metal may differ, since its plug-in needs 2.18.",
        )
