"""What runs inside a worker process: say what the machine offers, and host one rank."""

from __future__ import annotations

import array
import contextlib
import dataclasses
import math
import os
import tempfile
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from aner_nb import cuda, machine
from aner_nb.backends.base import AbstractGradientFunction, Partition
from aner_nb.case import Placement
from aner_nb.channels.chain import ChainedRankEnd, Doorstep, Links
from aner_nb.channels.frames import Kind
from aner_nb.channels.shared_memory import aligned_wire, receive_arena
from aner_nb.channels.socket import Invitation, connect
from aner_nb.channels.stream import FrameStream
from aner_nb.dropout import RowMasks, make_masks
from aner_nb.errors import AnerError, LinkLost, RankLost
from aner_nb.file_rows import FileRows, RowsFile
from aner_nb.network import Network
from aner_nb.networks import KerasNetwork, network_from_record
from aner_nb.plan import Plan
from aner_nb.rank import serve
from aner_nb.sources import fingerprint

PLACEMENT_VARIABLE: Final = "ANER_NB_PLACEMENT"
"""Set in a worker that `local_cluster` started for one placement."""

_LAST_SECONDS: Final = 10.0

_HOSTED: Final[list[int]] = []
"""Runs that this process hosted a rank of: it is fresh as long as the list is empty."""


@dataclass(frozen=True, slots=True)
class RankSetup:
    """All that a rank must know, besides its rows: sent once, over the channel."""

    rank: int
    rank_count: int
    placement: Placement
    model: Network
    plan: Plan
    dtype: str
    rows: int
    targets_dtype: str
    targets_width: int
    """0: one number a row; else the columns of the targets."""
    resident: bool
    blocks: tuple[tuple[int, int], ...]
    """The blocks of its rows that will be asked for."""
    files: tuple[RowsFile, RowsFile] | None = None
    """Features and targets of all training rows in the plan's order, for a rank on the host that has the files."""
    tf32: bool = False
    spooled: bool = False
    """Whether a rank on another host keeps the rows that it is sent in a file of its own."""
    listens: bool = False
    """Whether the rank offers a place to the rank before it, and then waits to hear whether they form a chain."""
    placed: str = ""
    """Digest of the record beside the files, where they lie with the rank on whatever host; empty: only on this one."""

    def to_record(self) -> dict[str, Any]:
        """Return the set-up as plain JSON values."""
        return {
            **{f.name: getattr(self, f.name) for f in dataclasses.fields(self)},
            "placement": dataclasses.asdict(self.placement),
            "model": self.model.to_record(),
            "plan": dataclasses.asdict(self.plan),
            "files": [dataclasses.asdict(file) for file in self.files] if self.files else None,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> RankSetup:
        """Read the set-up back."""
        plan = record["plan"]
        values: dict[str, Any] = {
            **record,
            "placement": Placement(**record["placement"]),
            "model": network_from_record(record["model"]),
            "plan": Plan(**dict(plan, weights=tuple(plan["weights"]))),
            "files": _files(record["files"]),
            "blocks": tuple((int(start), int(stop)) for start, stop in record["blocks"]),
        }
        return cls(**values)

    @property
    def targets_shape(self) -> tuple[int, ...]:
        """Shape of the partition's targets."""
        return (self.rows, self.targets_width) if self.targets_width else (self.rows,)


def _files(records: Any) -> tuple[RowsFile, RowsFile] | None:
    if records is None:
        return None
    features, targets = (RowsFile(file["path"], file["dtype"], tuple(file["shape"])) for file in records)
    return features, targets


def describe_worker() -> dict[str, Any]:
    """Return what this worker's machine is and which placements the worker offers."""
    assigned = os.environ.get(PLACEMENT_VARIABLE)
    facts = machine.capacity()
    return {
        "machine_key": machine.machine_key(),
        "capacity": facts,
        "offers": [assigned] if assigned else list(machine.devices(facts)),
        "pid": os.getpid(),
    }


def open_gradient(setup: RankSetup, partition: Partition) -> AbstractGradientFunction:
    """Return the gradient function of a rank, compiled.

    Raises
    ------
    BackendUnavailable
        If the backend cannot run here.
    """
    draw = _row_masks(setup)
    if setup.placement.backend == "numpy":
        from aner_nb.backends.numpy import NumpyGradientFunction

        return NumpyGradientFunction(setup.model, partition, draw)
    from aner_nb.backends.tensorflow import TensorflowGradientFunction

    return TensorflowGradientFunction(
        setup.model,
        partition,
        setup.placement,
        blocks=setup.blocks,
        resident=setup.resident,
        open_forward=setup.model.open_forward if isinstance(setup.model, KerasNetwork) else None,
        draw=draw,
        tf32=setup.tf32,
    )


def _row_masks(setup: RankSetup) -> RowMasks | None:
    """Return what draws the masks for the rank's rows, which it numbers by the plan; None: nothing is dropped."""
    masks = make_masks(setup.model.layers, setup.model.features, setup.plan.seed)
    if masks is None:
        return None
    # A calibration lets every rank hold a whole batch, to time it: any numbers will do for that.
    return RowMasks(masks, np.resize(setup.plan.partition(setup.rank), setup.rows))


def host_rank(invitation: dict[str, Any]) -> None:
    """Host one rank from its first connection to the end of its run: the body of the Dask task.

    An error of the rank is told to the coordinator over the channel; the task itself then ends quietly, so
    that the scheduler neither repeats it nor blames the worker.
    """
    guest = Invitation(**dict(invitation, address=tuple(invitation["address"])))
    _HOSTED.append(guest.run_id)
    began = time.perf_counter_ns()
    connection, same_host = connect(guest)
    connection.settimeout(None)
    own_address = "" if same_host else str(connection.getsockname()[0])
    stream = FrameStream(connection, guest.run_id)
    links = Links()
    machine.run_as_batch()
    try:
        setup = RankSetup.from_record(cast("Any", stream.receive_document()))
        if same_host:
            arena = receive_arena(connection, setup.model.layout.size, setup.dtype, setup.rank_count)
            arena.release()
            wire, slot = arena.wire, arena.slots[setup.rank]
            payloads = (memoryview(b""), memoryview(b""))
        else:
            wire = aligned_wire(setup.model.layout.size, setup.dtype)
            slot = np.zeros(wire.size)
            payloads = (bytes_of(wire), bytes_of(slot))
        hosted = _prepare(stream, setup, began)
        stream.send_document(Kind.DOCUMENT, hosted.ready)
        if setup.listens:
            links = _form_chain(stream, guest, own_address)
        end = ChainedRankEnd(
            stream, guest.run_id, wire, slot, links, wire_payload=payloads[0], slot_payload=payloads[1]
        )
        serve(end, hosted.gradient, setup.rows, replied=hosted.replied)
        stream.send_document(Kind.DOCUMENT, hosted.close())
    except RankLost:
        pass  # the coordinator ended the run, or is gone: nobody is left to tell
    except Exception as error:  # noqa: BLE001 -- whatever it is, the coordinator must hear of it
        with contextlib.suppress(OSError):
            stream.send_document(Kind.FAILURE, _failure(error, guest.rank))
        if isinstance(error, LinkLost):
            links.close()  # the other neighbour must not wait for us
            stream.drain(
                _LAST_SECONDS
            )  # the coordinator may be sending, and shall not take us for the lost one
    finally:
        links.close()
        stream.close()


def bytes_of(array: NDArray[Any]) -> memoryview:
    """Return the bytes of a C-contiguous array, without a copy."""
    return array.reshape(-1).view(np.uint8).data


def _prepare(stream: FrameStream, setup: RankSetup, began: int) -> HostedRank:
    """Receive the rank's rows and compile its gradient function."""
    features: Any
    targets: Any
    if setup.files is not None:
        runs = setup.plan.runs(setup.rank)
        features, targets = (FileRows(file, runs) for file in setup.files)
    else:
        receive = _spooled if setup.spooled else FrameStream.receive_array
        features = receive(stream, setup.dtype, (setup.rows, setup.model.features))
        targets = receive(stream, setup.targets_dtype, setup.targets_shape)
    partition = Partition(cast("NDArray[np.floating]", features), targets)
    return HostedRank(setup, partition, receive_ns=time.perf_counter_ns() - began)


def _form_chain(stream: FrameStream, guest: Invitation, own_address: str) -> Links:
    """Say where the rank before can connect, and connect with both neighbours if the coordinator says so."""
    doorstep = Doorstep(guest, own_address)
    try:
        stream.send_document(Kind.DOCUMENT, doorstep.record)
        told = stream.receive_document()
        if not told["chained"]:
            return Links()
        links = doorstep.link(cast("Any", told["following"]), stream)
    finally:
        doorstep.close()
    stream.send_document(Kind.DOCUMENT, {})
    return links


def _spooled(stream: FrameStream, dtype: str, shape: tuple[int, ...]) -> FileRows:
    """Receive rows into a file that is gone once nobody reads it any more."""
    with tempfile.NamedTemporaryFile(prefix="aner-rows-") as file:
        stream.receive_to(file.write, np.dtype(dtype).itemsize * math.prod(shape))
        file.flush()
        return FileRows(RowsFile(file.name, dtype, shape))


class HostedRank:
    """A rank's gradient function, and what is reported of it before the first update and after the last.

    Parameters
    ----------
    receive_ns
        Time to connect and receive the rows.
    """

    def __init__(self, setup: RankSetup, partition: Partition, *, receive_ns: int) -> None:
        self._setup = setup
        self._epochs = array.array("q")  # three numbers an epoch; Python's own integers would show as growth
        before = machine.rss_bytes()
        began = time.perf_counter_ns()
        self.gradient = open_gradient(setup, partition)
        opened = time.perf_counter_ns()
        self.ready: dict[str, Any] = {
            "fresh_process": len(_HOSTED) == 1,
            "plan_id": setup.plan.plan_id,
            "partition": fingerprint(partition.features, partition.targets),
            "proof": dataclasses.asdict(self.gradient.proof),
            "probe": dataclasses.asdict(self.gradient.probe) if self.gradient.probe else None,
            "receive_ns": receive_ns,
            "backend_start_ns": opened - began - self.gradient.compile_ns,
            "compile_ns": self.gradient.compile_ns,
            "rss_before_backend_bytes": before,
            "rss_ready_bytes": machine.rss_bytes(),
            "noise": machine.noise_sample(),
        }

    def replied(self, update: int) -> None:
        """Note this process's memory after the last step of an epoch, while the coordinator validates."""
        if (update + 1) % self._setup.plan.batch_count == 0:
            self._epochs.extend((update, machine.rss_bytes(), machine.rss_high_water_bytes()))

    def close(self) -> dict[str, Any]:
        """Release the device and return the closing report."""
        vram, reason = _vram(self._setup.placement, emulated=self.gradient.proof.emulated)
        device = self.gradient.device_bytes()
        self.gradient.close()
        return {
            "trace_count": self.gradient.trace_count,
            "rss_by_epoch": np.reshape(self._epochs, (-1, 3)).tolist(),
            "rss_high_water_bytes": machine.rss_high_water_bytes(),
            "device_bytes": device,
            "device_bytes_after_close": self.gradient.device_bytes()["current"],
            "process_vram_bytes": vram,
            "process_vram_reason": reason,
            "noise": machine.noise_sample(),
        }


def _vram(placement: Placement, *, emulated: bool) -> tuple[int | None, str]:
    """Return the video memory of this process, or why there is no figure."""
    if emulated:
        return None, "the device is emulated in the host's memory"
    if placement.backend == "metal":
        return None, "Metal's buffers lie in the host's memory and overlap the resident size"
    if placement.backend != "cuda":
        return None, f"{placement.backend} has no video memory of its own"
    return cuda.process_vram_bytes(placement.device)


def _failure(error: Exception, rank: int) -> dict[str, str]:
    if isinstance(error, AnerError):
        return {**error.to_record(), "where": error.where or f"rank {rank}"}
    last = traceback.extract_tb(error.__traceback__)[-1]
    return {
        "kind": "rank_failed",
        "what": f"{type(error).__name__}: {error} (in {last.name}, line {last.lineno}).",
        "where": f"rank {rank}",
        "remedy": "The worker's log has the whole traceback.",
    }
