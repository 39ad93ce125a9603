"""Rows of Dask collections: partitions go from worker to worker, and this process gets no row of them.

What reads rows runs as one task on a worker. It asks for the partitions one after the other, in their order; each is
computed wherever Dask computes it and comes straight to that worker, two at a time. So the order in which rows are
hashed and summed does not depend on how they are cut.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import ipaddress
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeVar, TypeVarTuple, cast
from urllib.parse import urlsplit

from aner_nb.errors import AnerError, CaseError, ClusterError
from aner_nb.parquet_frames import batch_rows

_AHEAD: Final = 2
"""Partitions that are computed or held beside the one that is read."""
_LOOK_SECONDS: Final = 1.0
ARRAY_TARGET: Final = "target"

Given = TypeVarTuple("Given")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, eq=False)
class DaskFrames:
    """Partitions of a Dask DataFrame, or of arrays, each a task that gives a pandas frame."""

    columns: tuple[Any, ...]
    parts: tuple[Any, ...]
    client: Any = None
    """Dask's client in the process that described the rows; None in a worker."""
    near: ClassVar[bool] = False

    def __reduce__(self) -> tuple[object, ...]:
        return DaskFrames, (self.columns, self.parts)

    def names(self) -> list[Any]:
        """Return the names of the columns."""
        return list(self.columns)

    def run(self, function: Callable[[Any, *Given], Result], *args: *Given) -> Result:
        """Call a function with these rows in a task on a worker, and return what it returned.

        Raises
        ------
        ClusterError
            If the worker is lost.
        """
        worker = _reader(self.client)
        asked: list[Any] = []
        try:
            # Arguments may be as long as the rows are many, such as a split: they do not go into the task's own graph.
            bare = dataclasses.replace(self, client=None)
            asked += self.client.scatter([bare, *args], workers=[worker], hash=False)
            where = {"workers": [worker], "allow_other_workers": False, "pure": False}
            asked.append(self.client.submit(_beside, function, *asked, **where))
            self._wait(asked[-1], worker)
            return asked[-1].result()
        except (AnerError, KeyboardInterrupt):
            raise
        except Exception as error:  # Dask's own errors have no common base
            raise ClusterError(
                f"the worker that reads the rows could not go on ({type(error).__name__}: {str(error)[:200]}).",
                where="data",
                remedy="Look at the worker's log, and run it again.",
            ) from error
        finally:
            with contextlib.suppress(Exception):
                self.client.cancel(asked, force=True)

    def _wait(self, future: Any, worker: str) -> None:
        """Wait for a task, as long as its worker is there: Dask would keep it for an address that has left."""
        while not future.done():
            with contextlib.suppress(TimeoutError):
                future.exception(timeout=_LOOK_SECONDS)
            if not future.done() and worker not in workers_of(self.client):
                raise ClusterError(
                    "the worker that reads the rows was lost.",
                    where="data",
                    remedy="Look at its log; run it again when it is back.",
                )

    def frames(self, columns: Sequence[str]) -> Iterator[Any]:
        """Yield the rows batch by batch; called in a worker.

        Raises
        ------
        CaseError
            If a partition cannot be computed.
        """
        import distributed

        client = distributed.get_client()
        rows = batch_rows(len(columns))
        left = collections.deque(self.parts)
        asked: collections.deque[Any] = collections.deque()
        while left or asked:
            while left and len(asked) <= _AHEAD:
                asked.append(client.compute(left.popleft()))
            try:
                frame = asked.popleft().result()
            except AnerError:
                raise
            except Exception as error:  # whatever the person's own graph raises
                raise CaseError(
                    f"a partition cannot be computed ({type(error).__name__}: {str(error)[:200]}).",
                    where="data",
                    remedy="Mend what makes it: compute() shows the whole traceback.",
                ) from error
            for start in range(0, len(frame), rows):
                yield frame.iloc[start : start + rows][list(columns)]


def _beside(function: Callable[..., Result], *args: Any) -> Result:
    """Call the function and leave the worker's threads to the tasks that compute partitions."""
    import distributed

    distributed.secede()
    return function(*args)


def _reader(client: Any) -> str:
    """Return the address of the worker that reads: one on this host if there is one, and always the same."""
    workers = workers_of(client)
    if not workers:
        raise ClusterError("the cluster has no workers.", where="data", remedy="Start workers.")
    named = sorted(
        (not _is_near(address), str(worker["name"]), address) for address, worker in workers.items()
    )
    return named[0][2]


def _is_near(address: str) -> bool:
    from distributed.utils import get_ip

    host = urlsplit(address).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback or host == get_ip()
    except ValueError:
        return not host  # an in-process worker has no host


def workers_of(client: Any) -> dict[str, Any]:
    """Return what the scheduler knows of its workers, by address.

    It is asked itself: a callback of the client can replace what `scheduler_info` fetched by totals without workers.
    """
    return dict(client.sync(client.scheduler.identity, n_workers=-1)["workers"])


def client_of(cluster: object) -> Any:
    """Return Dask's client: of what `local_cluster` or `connect` gave, or itself, or the current one for None.

    Raises
    ------
    CaseError
        If there is none.
    """
    import distributed

    if isinstance(cluster, distributed.Client):
        return cluster
    if cluster is not None:
        return cast("Any", cluster).client
    try:
        return distributed.default_client()
    except ValueError as error:
        raise CaseError(
            "Dask rows need the cluster whose workers hold them.",
            where="data.cluster",
            remedy="Give cluster=, what local_cluster(…), connect(…) or dask.distributed.Client(…) gave.",
        ) from error


def frames_of(data: Any, target: Any, cluster: object) -> tuple[DaskFrames, str]:
    """Return the partitions of a Dask DataFrame, or of arrays of features and of targets, and the target's name.

    Raises
    ------
    CaseError
        If it is neither, or the two arrays do not fit.
    """
    if not _is_dask(data):
        raise CaseError(
            f"{type(data).__name__} is neither a path nor a Dask DataFrame or array.",
            where="data",
            remedy="Give one of them; of rows in memory table(…) or arrays(…).",
        )
    client = client_of(cluster)
    if hasattr(data, "columns"):
        if not isinstance(target, str):
            raise CaseError(
                "the target of a Dask DataFrame is no name.",
                where="data.target",
                remedy="Name the column to predict.",
            )
        return DaskFrames(tuple(data.columns), tuple(data.to_delayed()), client), target
    columns, parts = _of_arrays(data, target)
    return DaskFrames(columns, parts, client), ARRAY_TARGET


def _is_dask(data: object) -> bool:
    return type(data).__module__.partition(".")[0] == "dask" and hasattr(data, "to_delayed")


def _of_arrays(features: Any, targets: Any) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    import dask

    if not _is_dask(targets) or hasattr(targets, "columns"):
        raise CaseError(
            "the target of a Dask array is no Dask array.",
            where="data.target",
            remedy="Give the targets as an array of shape (rows,): dask.array.from_array(labels) makes one.",
        )
    if features.ndim != 2 or targets.ndim not in (1, 2) or targets.shape[1:] not in ((), (1,)):
        raise CaseError(
            f"arrays of {features.ndim} and {targets.ndim} dimensions are not (rows, features) and (rows,).",
            where="data",
            remedy="Use reshape: one row an example, and one target for each.",
        )
    wide = features.rechunk({1: -1})
    try:
        long = targets.rechunk((wide.chunks[0], *((1,) for _ in range(targets.ndim - 1))))
    except ValueError as error:
        raise CaseError(
            f"the targets do not fit the rows of features ({error}).",
            where="data.target",
            remedy="Give one target for each row, in chunks of known lengths: array.compute_chunk_sizes().",
        ) from error
    names = tuple(str(number) for number in range(wide.shape[1]))
    make = dask.delayed(_array_frame, pure=True)
    pairs = zip(wide.to_delayed().ravel(), long.to_delayed().ravel(), strict=True)
    return (*names, ARRAY_TARGET), tuple(make(part, labels, names) for part, labels in pairs)


def _array_frame(features: Any, targets: Any, names: Sequence[str]) -> Any:
    """Return the rows of a chunk as a frame; called in a worker."""
    import pandas

    frame = pandas.DataFrame(features, columns=list(names))
    frame[ARRAY_TARGET] = targets.reshape(-1)
    return frame
