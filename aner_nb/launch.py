"""Getting a cluster: start one on this machine, or connect to one that runs."""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Sequence
from typing import Any, Final, cast, get_args

import dask.config
import distributed

from aner_nb.case import Placement
from aner_nb.channels.socket import Encryption
from aner_nb.cluster import Cluster
from aner_nb.errors import CaseError, ClusterError
from aner_nb.host import PLACEMENT_VARIABLE

_GUARD: Final = 'Put what the script does under `if __name__ == "__main__":`.'
_CONNECT_SECONDS: Final = 10
_START_SECONDS: Final = 60
_WORKER_ENVIRONMENT: Final = {
    # Dask's default makes glibc give every large temporary back to the kernel and fault it in again at the
    # next update. Ranks reuse the same few buffers: keep them.
    "MALLOC_TRIM_THRESHOLD_": 2**30,
    "MALLOC_MMAP_THRESHOLD_": 2**30,
    "OMP_NUM_THREADS": 1,
    "MKL_NUM_THREADS": 1,
    "OPENBLAS_NUM_THREADS": 1,
    "TF_CPP_MIN_LOG_LEVEL": 2,
}
_DASK_SETTINGS: Final = {
    # The statistical profiler interrupts the rank every 10 ms; nothing reads it here.
    "distributed.worker.profile.enabled": False,
    # On a host whose cores are all ranks' cores, what Dask does beside them is paid by a rank, and with it by all:
    # the loops' ticks, the resource samples of a dashboard that is off, and looking for tasks to move.
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.system-monitor.interval": "5s",
    # Each trial starts fresh workers, and Dask would keep 10,000 lines of log about them.
    "distributed.admin.log-length": 200,
    "distributed.scheduler.active-memory-manager.start": False,
    "distributed.scheduler.work-stealing": False,
    "distributed.nanny.pre-spawn-environ": _WORKER_ENVIRONMENT,
    "distributed.worker.daemon": True,
}


def local_cluster(placements: Sequence[str] = ("cpu:1", "cpu:1")) -> Cluster:
    """Start a Dask cluster on this machine, one worker process under a nanny for each placement.

    Raises
    ------
    CaseError
        If a placement cannot be read.
    ClusterError
        If the cluster does not start.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise ClusterError(
            "a worker process imports the script that started it, and the script starts a cluster again.",
            where="local_cluster",
            remedy=_GUARD,
        )
    parsed = [Placement.parse(text, "local_cluster") for text in placements]
    if not parsed:
        raise CaseError("a cluster needs at least one placement.", remedy="For example ['cpu:1', 'cpu:1'].")
    workers = {
        index: {
            "cls": distributed.Nanny,
            "options": {
                "nthreads": 1,
                "name": f"aner-{index}",
                "memory_limit": 0,
                "host": "127.0.0.1",
                "dashboard": False,
                "silence_logs": logging.ERROR,
                "env": {PLACEMENT_VARIABLE: str(placement)},
            },
        }
        for index, placement in enumerate(parsed)
    }
    scheduler = {
        "cls": distributed.Scheduler,
        "options": {"host": "127.0.0.1", "port": 0, "dashboard": False, "dashboard_address": "127.0.0.1:0"},
    }
    with dask.config.set(_DASK_SETTINGS):
        try:
            owned = distributed.SpecCluster(workers, scheduler, silence_logs=cast("Any", logging.ERROR))
        except RuntimeError as error:
            raise ClusterError(
                f"the worker processes could not start ({str(error).rstrip('.')}).",
                where="local_cluster",
                remedy=f"What they wrote stands above. In a script: {_GUARD[0].lower()}{_GUARD[1:]}",
            ) from None
        client = distributed.Client(owned, set_as_default=False)
        try:
            client.wait_for_workers(len(workers), timeout=_START_SECONDS)
            return Cluster(client, owned)
        except BaseException:
            client.close()
            owned.close(timeout=10)
            raise


def connect(
    address: str,
    security: distributed.Security | None = None,
    *,
    encryption: Encryption = "tls",
) -> Cluster:
    """Connect to a Dask cluster that is already running.

    Parameters
    ----------
    address : str
        The scheduler's, such as ``tls://scheduler:8786``.
    security
        Certificates for Dask's own TLS; None: what Dask's configuration says.
    encryption : {"tls", "network"}
        Who encrypts parameters, rows and gradients between hosts. ``network`` states that the network does
        (WireGuard, a switch of your own): ranks still prove that they hold
        the run's key, and receipts say that it was left to the network.

    Raises
    ------
    CaseError
        If `encryption` is neither.
    ClusterError
        If the scheduler does not answer within 10 seconds.
    """
    if encryption not in get_args(Encryption):
        raise CaseError(
            f"encryption is {encryption!r}.",
            where="connect",
            remedy="Write 'tls', or 'network' where the network itself encrypts.",
        )
    try:
        client = distributed.Client(
            address, timeout=_CONNECT_SECONDS, security=security, set_as_default=False
        )
    except (OSError, TimeoutError, ValueError, TypeError) as error:
        raise ClusterError(
            f"no scheduler answered within {_CONNECT_SECONDS} s ({error}).",
            where=address,
            remedy="Check the address and port, that the scheduler runs, and TLS settings.",
        ) from error
    try:
        return Cluster(client, encryption=encryption)
    except BaseException:
        client.close()
        raise
