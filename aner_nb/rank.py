"""The loop of a rank: take a request, compute the block, give the sum."""

from __future__ import annotations

from collections.abc import Callable

from aner_nb.backends.base import AbstractGradientFunction
from aner_nb.channels.base import AbstractRankEnd
from aner_nb.errors import ContractBroken


def serve(
    end: AbstractRankEnd,
    gradient: AbstractGradientFunction,
    rows: int,
    *,
    replied: Callable[[int], None],
) -> int:
    """Serve requests until the coordinator ends the run; return how many were served.

    A rank keeps no state between two requests but its rows and its compiled function: which update it is, and
    which rows, stands in the request.

    Parameters
    ----------
    rows
        Rows of the partition; a request beyond them is refused.
    replied
        Called with the update's number after its reply was sent.

    Raises
    ------
    RankLost
        If the coordinator is gone.
    ContractBroken
        If a request asks for rows that the rank does not hold.
    """
    served = 0
    while (request := end.take()) is not None:
        update, block, parameters = request
        if not 0 <= block[0] <= block[1] <= rows:
            raise ContractBroken(
                f"update {update} asks for rows {block[0]} to {block[1]}; the rank holds {rows}."
            )
        end.give(update, gradient(parameters, block, end.slot, update))
        served += 1
        replied(update)
    return served
