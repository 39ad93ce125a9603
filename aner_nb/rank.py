"""The loop of a rank: take a request, compute the shard, give the sum."""

from __future__ import annotations

from collections.abc import Callable

from aner_nb.backends.base import AbstractGradientFunction
from aner_nb.channels.base import AbstractRankEnd
from aner_nb.errors import ContractBroken
from aner_nb.plan import Plan, Update


def serve(
    end: AbstractRankEnd,
    gradient: AbstractGradientFunction,
    plan: Plan,
    rank: int,
    *,
    epoch_ended: Callable[[Update], None],
) -> int:
    """Serve the plan's updates until the coordinator ends the run; return how many were served.

    The rank knows its rows from the plan: a request carries only the update's number and the parameters.
    `epoch_ended` is called after the reply of an epoch's last update, while the coordinator validates.

    Raises
    ------
    RankLost
        If the coordinator is gone.
    ContractBroken
        If a request comes out of order.
    """
    served = 0
    for update in plan.updates():
        taken = end.take()
        if taken is None:
            return served
        index, parameters = taken
        if index != update.index:
            raise ContractBroken(f"update {index} was asked for when {update.index} was due.")
        end.give(index, gradient(parameters, update.shards[rank], end.slot))
        served += 1
        if update.ends_epoch:
            epoch_ended(update)
    if end.take() is not None:
        raise ContractBroken("a request came after the plan's last update.")
    return served
