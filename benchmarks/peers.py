"""The same training by us and by the tools that people would use instead, in one interleaved session.

Every peer gets the same rows in the same order, the same initial parameters, the same number of plain SGD updates,
and one thread a process. Times are milliseconds per update after the first epoch, without validation. The last
column is the mean loss over the training rows at the end, computed by one function for all.

    python benchmarks/peers.py [--works small,wide,deep] [--peers ours-1,ours-2,...] [--rounds 5] [--json FILE]

`halves-2` is no peer but a bound: two processes compute half of the rows each, at the same time, and exchange nothing.
Optional peers are skipped with a reason when they are not installed.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import aner_nb as aner
from aner_nb.case import Case
from aner_nb.network import evaluate
from aner_nb.work import Work, make_work

LEARNING_RATE = 0.05
WORKS: dict[str, dict[str, Any]] = {
    # layers after the input, features, global batch, epochs of 20 updates
    "small": {"layers": [128, 64, 10], "features": 64, "batch": 256, "epochs": 20},
    "wide": {"layers": [512, 10], "features": 784, "batch": 512, "epochs": 4},
    "deep": {"layers": [512, 512, 10], "features": 128, "batch": 1024, "epochs": 3},
}
UPDATES_PER_EPOCH = 20


def make_case(work: str, dtype: str, ranks: int) -> Case:
    """Return our case of a work."""
    spec = WORKS[work]
    return aner.Case(
        f"{work}-{ranks}",
        data=aner.teacher(spec["batch"] * UPDATES_PER_EPOCH * 5 // 4, spec["features"], 10, seed=7),
        layers=spec["layers"],
        dtype=dtype,
        batch=spec["batch"],
        epochs=spec["epochs"],
        optimizer=aner.SGD(LEARNING_RATE),
        split=(0.8, 0.1, 0.1),
        ranks=["cpu:1"] * ranks,
    )


class Shared:
    """What every peer starts from, and how all are judged."""

    def __init__(self, work: str, dtype: str) -> None:
        self.case = make_case(work, dtype, 1)
        self.work: Work = make_work(self.case)[0]
        self.dtype = dtype
        plan, train = self.work.plan, self.work.data.train
        order = plan.order()
        self.features = np.ascontiguousarray(train.features[order])
        self.targets = train.targets[order]
        self.batches = [batch for epoch in range(plan.epochs) for batch in plan.batch_order(epoch).tolist()]
        self.initial = self.work.model.initial(self.case.seed)
        self.layout = self.work.model.layout

    @property
    def batch(self) -> int:
        return self.case.batch

    def arrays(self, dtype: str | None = None) -> list[np.ndarray]:
        """Return the initial weights and biases."""
        return [view.astype(dtype or self.dtype) for view in self.layout.views(self.initial)]

    def block(self, update: int) -> slice:
        """Return the rows of an update."""
        start = self.batches[update] * self.batch
        return slice(start, start + self.batch)

    def loss(self, arrays: list[np.ndarray]) -> float:
        """Return the mean loss over the training rows."""
        vector = np.concatenate([np.asarray(array, np.float64).ravel() for array in arrays])
        features = self.features.astype(np.float64)
        return evaluate(self.work.model, vector, features, self.targets).loss


def ours(shared: Shared, ranks: int) -> dict[str, float]:
    """Return our own figures."""
    case = make_case(*_CHILD_WORK, ranks)
    with aner.local_cluster(["cpu:1"] * ranks) as cluster:
        trial = aner.run(case, cluster).raise_unless_passed()
    assert trial.steps is not None and trial.parameters is not None
    totals = trial.steps.coordinator_ns[UPDATES_PER_EPOCH:, -1]
    return {
        "ms": float(totals.mean()) / 1e6,
        "loss": shared.loss(list(shared.layout.views(trial.parameters))),
    }


def _tensorflow() -> Any:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    return tf


def _tf_forward(tf: Any, arrays: Any, features: Any) -> Any:
    output = features
    for index in range(0, len(arrays), 2):
        output = tf.nn.bias_add(tf.matmul(output, arrays[index]), arrays[index + 1])
        if index < len(arrays) - 2:
            output = tf.nn.relu(output)
    return output


def compiled_loop(shared: Shared, _ranks: int, jit: bool = False) -> dict[str, float]:
    """The whole loop as one TensorFlow function: nothing of Python is left between two updates."""
    return _run_loop(shared, slice(0, shared.batch), jit=jit)


def halves(shared: Shared, ranks: int) -> dict[str, float]:
    """The same loop on each rank's own rows, at the same time, with no exchange: what this machine could give at best.

    It is no training with the whole batch, so its loss is another one.
    """
    rank, share = int(os.environ["RANK"]), shared.batch // ranks
    mine = slice(rank * share, (rank + 1) * share)
    return _run_loop(shared, mine, meet=lambda: _meet(rank, ranks))


def _meet(rank: int, ranks: int) -> None:
    """Return in all processes at once."""
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if rank == 0:
        with socket.create_server(address) as server:
            others = [server.accept()[0] for _ in range(ranks - 1)]
        for other in others:
            other.close()
        return
    deadline = time.monotonic() + 60
    while True:
        try:
            with socket.create_connection(address) as connection:
                connection.recv(1)
            return
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _run_loop(
    shared: Shared, mine: slice, *, jit: bool = False, meet: Callable[[], None] = lambda: None
) -> dict[str, float]:
    tf = _tensorflow()
    variables = [tf.Variable(array) for array in shared.arrays()]
    x, y = tf.constant(shared.features), tf.constant(shared.targets)
    starts = tf.constant([shared.block(update).start + mine.start for update in range(len(shared.batches))])
    rows_each = mine.stop - mine.start

    @tf.function(jit_compile=jit)
    def loop(first: Any, last: Any) -> None:
        for update in tf.range(first, last):
            start = starts[update]
            rows = x[start : start + rows_each]
            rows.set_shape([rows_each, x.shape[1]])
            labels = y[start : start + rows_each]
            with tf.GradientTape() as tape:
                output = _tf_forward(tf, variables, rows)
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, output))
            for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
                variable.assign_sub(LEARNING_RATE * gradient)

    count = len(shared.batches)
    loop(tf.constant(0), tf.constant(UPDATES_PER_EPOCH))
    meet()
    began = time.perf_counter()
    loop(tf.constant(UPDATES_PER_EPOCH), tf.constant(count))
    spent = time.perf_counter() - began
    return {
        "ms": spent / (count - UPDATES_PER_EPOCH) * 1e3,
        "loss": shared.loss([variable.numpy() for variable in variables]),
    }


def compiled_loop_xla(shared: Shared, ranks: int) -> dict[str, float]:
    """The same loop through XLA."""
    return compiled_loop(shared, ranks, jit=True)


def keras_fit(shared: Shared, _ranks: int) -> dict[str, float]:
    """Keras `fit`, as most people train."""
    tf = _tensorflow()
    keras = tf.keras
    keras.backend.set_floatx(shared.dtype)
    units = [layer.units for layer in shared.work.model.layers]
    model = keras.Sequential([keras.Input((shared.features.shape[1],), dtype=shared.dtype)])
    for index, width in enumerate(units):
        model.add(keras.layers.Dense(width, activation="relu" if index < len(units) - 1 else None))
    model.set_weights(shared.arrays())
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(LEARNING_RATE), loss=loss)
    rows = np.concatenate([np.arange(*shared.block(u).indices(10**9)) for u in range(len(shared.batches))])
    x, y = shared.features[rows], shared.targets[rows]
    first = UPDATES_PER_EPOCH * shared.batch
    arguments = {"batch_size": shared.batch, "shuffle": False, "verbose": 0}
    model.fit(x[:first], y[:first], **arguments)
    began = time.perf_counter()
    model.fit(x[first:], y[first:], **arguments)
    spent = time.perf_counter() - began
    return {
        "ms": spent / (len(shared.batches) - UPDATES_PER_EPOCH) * 1e3,
        "loss": shared.loss(model.get_weights()),
    }


def multi_worker_mirrored(shared: Shared, ranks: int) -> dict[str, float]:
    """TensorFlow's own synchronous data parallelism over processes."""
    tf = _tensorflow()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    rank = int(json.loads(os.environ["TF_CONFIG"])["task"]["index"])
    share = shared.batch // ranks
    with strategy.scope():
        variables = [tf.Variable(array) for array in shared.arrays()]
    x, y = tf.constant(shared.features), tf.constant(shared.targets)

    def replica(rows: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            output = _tf_forward(tf, variables, rows)
            loss = (
                tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, output)) / shared.batch
            )
        gradients = tape.gradient(loss, variables)
        context = tf.distribute.get_replica_context()
        gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.assign_sub(LEARNING_RATE * gradient)

    @tf.function
    def step(start: Any) -> None:
        mine = start + rank * share
        strategy.run(replica, args=(x[mine : mine + share], y[mine : mine + share]))

    return _time_steps(
        shared,
        lambda update: step(tf.constant(shared.block(update).start)),
        lambda: [variable.numpy() for variable in variables],
    )


def torch_ddp(shared: Shared, ranks: int) -> dict[str, float]:
    """PyTorch DistributedDataParallel over gloo."""
    import torch

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    share = shared.batch // ranks
    dtype = getattr(torch, shared.dtype)
    arrays = shared.arrays()
    layers: list[Any] = []
    for index in range(0, len(arrays), 2):
        layer = torch.nn.Linear(*arrays[index].shape, dtype=dtype)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(arrays[index].T.copy()))
            layer.bias.copy_(torch.from_numpy(arrays[index + 1]))
        layers += [layer, torch.nn.ReLU()] if index < len(arrays) - 2 else [layer]
    model = torch.nn.Sequential(*layers)
    parallel = torch.nn.parallel.DistributedDataParallel(model) if ranks > 1 else model
    optimizer = torch.optim.SGD(parallel.parameters(), LEARNING_RATE)
    x, y = torch.from_numpy(shared.features), torch.from_numpy(shared.targets.astype(np.int64))
    loss_function = torch.nn.CrossEntropyLoss()

    def step(update: int) -> None:
        start = shared.block(update).start + rank * share
        optimizer.zero_grad(set_to_none=True)
        loss_function(parallel(x[start : start + share]), y[start : start + share]).backward()
        optimizer.step()

    def arrays_now() -> list[np.ndarray]:
        found = [parameter.detach().numpy() for parameter in model.parameters()]
        return [array.T if array.ndim == 2 else array for array in found]

    return _time_steps(shared, step, arrays_now)


def dask_submit(shared: Shared, ranks: int) -> dict[str, float]:
    """Plain Dask: parameters scattered, gradients submitted and gathered in every update."""
    import distributed

    share = shared.batch // ranks
    cluster = distributed.LocalCluster(ranks, threads_per_worker=1, dashboard_address=None, silence_logs=40)
    with cluster, distributed.Client(cluster) as client:
        workers = list(client.scheduler_info()["workers"])
        holders = [
            client.submit(_DaskRank, *_CHILD_WORK, actor=False, workers=[worker], pure=False)
            for worker in workers
        ]
        distributed.wait(holders)
        vector = shared.initial.copy()

        def step(update: int) -> None:
            sent = client.scatter(vector.astype(shared.dtype), broadcast=True, hash=False)
            start = shared.block(update).start
            futures = [
                client.submit(
                    _dask_gradient, holder, sent, start + rank * share, share, workers=[worker], pure=False
                )
                for rank, (holder, worker) in enumerate(zip(holders, workers, strict=True))
            ]
            vector[:] -= LEARNING_RATE * (sum(client.gather(futures)) / shared.batch)

        return _time_steps(shared, step, lambda: list(shared.layout.views(vector)))


class _DaskRank:
    """A worker's resident rows and function, kept between tasks."""

    def __init__(self, work: str, dtype: str) -> None:
        from aner_nb.backends.base import Partition
        from aner_nb.backends.tensorflow import TensorflowGradientFunction
        from aner_nb.case import Placement

        shared = Shared(work, dtype)
        self.function = TensorflowGradientFunction(
            shared.work.model,
            Partition(shared.features, shared.targets),
            Placement.parse("cpu:1"),
            blocks=[],
            resident=False,
        )

    def __reduce__(self) -> Any:
        raise TypeError("stays where it is")


def _dask_gradient(holder: _DaskRank, vector: np.ndarray, start: int, rows: int) -> np.ndarray:
    out = np.zeros(vector.size)
    return holder.function(vector, (start, start + rows), out).gradient


def _time_steps(
    shared: Shared, step: Callable[[int], None], arrays: Callable[[], list[np.ndarray]]
) -> dict[str, float]:
    count = len(shared.batches)
    for update in range(UPDATES_PER_EPOCH):
        step(update)
    began = time.perf_counter()
    for update in range(UPDATES_PER_EPOCH, count):
        step(update)
    spent = time.perf_counter() - began
    return {"ms": spent / (count - UPDATES_PER_EPOCH) * 1e3, "loss": shared.loss(arrays())}


PEERS: dict[str, tuple[Callable[[Shared, int], dict[str, float]], int, str]] = {
    # name: function, processes, package that must be there
    "ours-1": (ours, 1, "tensorflow"),
    "ours-2": (ours, 2, "tensorflow"),
    "loop-1": (compiled_loop, 1, "tensorflow"),
    "halves-2": (halves, 2, "tensorflow"),
    "loop-xla-1": (compiled_loop_xla, 1, "tensorflow"),
    "keras-1": (keras_fit, 1, "tensorflow"),
    "mirrored-1": (multi_worker_mirrored, 1, "tensorflow"),
    "mirrored-2": (multi_worker_mirrored, 2, "tensorflow"),
    "ddp-1": (torch_ddp, 1, "torch"),
    "ddp-2": (torch_ddp, 2, "torch"),
    "dask-2": (dask_submit, 2, "tensorflow"),
}
_OWN_PROCESSES = ("halves-2", "mirrored-1", "mirrored-2", "ddp-1", "ddp-2")
_CHILD_WORK: tuple[str, str] = ("", "")


def run_child(peer: str, work: str, dtype: str) -> None:
    """Run one peer in this process and print its figures."""
    global _CHILD_WORK
    _CHILD_WORK = (work, dtype)
    function, ranks, _ = PEERS[peer]
    print("RESULT", json.dumps(function(Shared(work, dtype), ranks)), flush=True)
    os._exit(0)  # some peers never end their threads


def run_peer(peer: str, work: str, dtype: str) -> dict[str, float]:
    """Run one peer in processes of its own and return rank 0's figures."""
    _, ranks, _ = PEERS[peer]
    count = ranks if peer in _OWN_PROCESSES else 1
    ports = [_free_port() for _ in range(count)]
    processes = []
    for rank in range(count):
        environment = {
            **os.environ,
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        environment |= {"RANK": str(rank), "WORLD_SIZE": str(count)}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ports[0])}
        if peer.startswith("mirrored"):
            workers = [f"127.0.0.1:{port}" for port in ports]
            task = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
            environment["TF_CONFIG"] = json.dumps(task)
        command = [sys.executable, __file__, "--child", peer, "--works", work, "--dtype", dtype]
        processes.append(
            subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    outputs = [process.communicate(timeout=300) for process in processes]
    for line in outputs[0][0].splitlines():
        if line.startswith("RESULT "):
            return dict(json.loads(line[7:]))
    raise RuntimeError(f"{peer} gave no result: {outputs[0][1][-800:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _installed(package: str) -> bool:
    from importlib.util import find_spec

    return find_spec(package) is not None


def main() -> None:
    """Print one table a work."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--works", default=",".join(WORKS))
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        run_child(options.child, options.works, options.dtype)
    os.environ.setdefault("ANER_NB_INVENTORY", str(Path(tempfile.mkdtemp()) / "inventory.json"))
    rows: list[dict[str, Any]] = []
    for work in options.works.split(","):
        rows += measure(work, options.dtype, options.peers.split(","), options.rounds)
        if options.json:
            options.json.write_text(json.dumps(rows, indent=2))


def measure(work: str, dtype: str, peers: list[str], rounds: int) -> list[dict[str, Any]]:
    """Run all peers of a work, round by round, and print their table."""
    present = [peer for peer in peers if _installed(PEERS[peer][2])]
    for peer in peers:
        if peer not in present:
            print(f"{peer}: skipped, {PEERS[peer][2]} is not installed")
    results: dict[str, list[dict[str, float]]] = {peer: [] for peer in present}
    for _ in range(rounds):
        for peer in list(present):
            try:
                results[peer].append(run_peer(peer, work, dtype))
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                print(f"{peer}: left out, {error}")
                present.remove(peer)
    base = statistics.median(result["ms"] for result in results["ours-1"]) if results.get("ours-1") else None
    print(f"\n{work} {WORKS[work]['layers']} @{WORKS[work]['batch']} {dtype}, {rounds} rounds")
    print(f"{'peer':<12} {'median ms':>10} {'min':>8} {'max':>8} {'ours-1 / it':>12} {'final loss':>12}")
    rows = []
    for peer in present:
        times = [result["ms"] for result in results[peer]]
        middle = statistics.median(times)
        ratio = base / middle if base else float("nan")
        loss = results[peer][0]["loss"]
        print(
            f"{peer:<12} {middle:>10.3f} {min(times):>8.3f} {max(times):>8.3f} {ratio:>12.2f} {loss:>12.6f}"
        )
        rows.append(
            {"work": work, "dtype": dtype, "peer": peer, "ms": times, "median_ms": middle, "loss": loss}
        )
    return rows


if __name__ == "__main__":
    main()
