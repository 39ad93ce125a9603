"""Checks of the emulated accelerator, run by test_plugin.py in a process of their own.

TensorFlow makes its devices once per process, so a process stands for one configuration. It prints a JSON
object with the trace of each check that failed.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import tensorflow as tf
from runtime import Counters, load_from_environment, read_counters
from tensorflow.python.eager import context

_TOLERANCES: Final = {"float32": 1e-5, "float64": 1e-12}
_ACTIVATIONS: Final = {"relu": tf.nn.relu, "tanh": tf.tanh, "sigmoid": tf.sigmoid, "linear": tf.identity}
_FEATURES: Final = 4
_UNITS: Final = (8, 3)

GradientFunction = Callable[..., list[tf.Tensor]]


def _shapes() -> list[tuple[int, ...]]:
    shapes: list[tuple[int, ...]] = []
    for inputs, units in zip((_FEATURES, *_UNITS), _UNITS, strict=False):
        shapes += [(inputs, units), (units,)]
    return shapes


def _gradient_function(
    device: str, dtype: str, loss: str, activation: str, *, inside: bool = True
) -> GradientFunction:
    """Return a compiled function of (flat parameters, features, targets): the loss, then all gradients.

    With `inside` the body asks for the device; otherwise only the code around the tracing does.
    """
    shapes = _shapes()
    sizes = [int(np.prod(shape)) for shape in shapes]

    def gradients(vector: tf.Tensor, features: tf.Tensor, targets: tf.Tensor) -> list[tf.Tensor]:
        parameters = [
            tf.reshape(part, shape) for part, shape in zip(tf.split(vector, sizes), shapes, strict=True)
        ]
        with tf.GradientTape() as tape:
            tape.watch(parameters)
            hidden = _ACTIVATIONS[activation](tf.matmul(features, parameters[0]) + parameters[1])
            output = tf.matmul(hidden, parameters[2]) + parameters[3]
            if loss == "softmax_cross_entropy":
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, output)
            else:
                losses = tf.square(output - targets)
            total = tf.reduce_sum(losses)
        return [total, *tape.gradient(total, parameters)]

    def placed(vector: tf.Tensor, features: tf.Tensor, targets: tf.Tensor) -> list[tf.Tensor]:
        with tf.device(device):
            return gradients(vector, features, targets)

    labels = tf.TensorSpec([None], tf.int32)
    values = tf.TensorSpec([None, _UNITS[-1]], dtype)
    signature = [
        tf.TensorSpec([sum(sizes)], dtype),
        tf.TensorSpec([None, _FEATURES], dtype),
        labels if loss == "softmax_cross_entropy" else values,
    ]
    with tf.device(device):
        function = tf.function(placed if inside else gradients, input_signature=signature)
        return function.get_concrete_function()


def _inputs(device: str, dtype: str, loss: str, rows: int) -> list[tf.Tensor]:
    """Return seeded parameters, features and targets on a device."""
    generator = np.random.default_rng(rows)
    size = sum(int(np.prod(shape)) for shape in _shapes())
    arrays = [
        generator.normal(size=size).astype(dtype),
        generator.normal(size=(rows, _FEATURES)).astype(dtype),
    ]
    if loss == "softmax_cross_entropy":
        arrays.append(generator.integers(0, _UNITS[-1], rows).astype(np.int32))
    else:
        arrays.append(generator.normal(size=(rows, _UNITS[-1])).astype(dtype))
    with tf.device(device):
        return [tf.constant(array) for array in arrays]


def _counters(device: int = 0) -> Counters:
    return read_counters(_LIBRARY, device)


def _bytes_in_use(device: str = "GPU:0") -> int:
    return int(tf.config.experimental.get_memory_info(device)["current"])


@contextmanager
def _placements() -> Iterator[set[tuple[str, str]]]:
    """Collect (operation, device) of all functions that run for the first time within the block."""
    found: set[tuple[str, str]] = set()
    context.context().enable_graph_collection()
    try:
        yield found
        for graphs in context.context().export_run_metadata().function_graphs:
            for graph in graphs.partition_graphs:
                found |= {(node.op, node.device.rpartition("device:")[2]) for node in graph.node}
    finally:
        context.context().disable_graph_collection()


# A configuration with two devices and all kernels.


def two_devices_are_listed() -> None:
    assert len(tf.config.list_physical_devices("GPU")) == 2
    assert [device.name for device in tf.config.list_logical_devices("GPU")] == [
        "/device:GPU:0",
        "/device:GPU:1",
    ]


def gradients_equal_those_of_the_cpu() -> None:
    for dtype, loss, activation in product(
        _TOLERANCES, ("softmax_cross_entropy", "squared_error"), _ACTIVATIONS
    ):
        functions = {
            device: _gradient_function(device, dtype, loss, activation)
            for device in ("/CPU:0", "/GPU:0", "/GPU:1")
        }
        for rows in (0, 1, 33):
            results = {
                device: function(*_inputs(device, dtype, loss, rows))
                for device, function in functions.items()
            }
            expected = [tensor.numpy() for tensor in results["/CPU:0"]]
            for device in ("/GPU:0", "/GPU:1"):
                for tensor, array in zip(results[device], expected, strict=True):
                    assert tensor.backing_device.endswith(device[1:]), (device, tensor.backing_device)
                    error = np.max(np.abs(tensor.numpy() - array), initial=0.0)
                    scale = max(1.0, np.max(np.abs(array), initial=0.0))
                    assert error <= _TOLERANCES[dtype] * scale, (dtype, loss, activation, rows, device, error)


def backing_device_tells_where_a_result_lies() -> None:
    """Hold what TensorFlow does: `device` names the device that the function was called under."""
    function = _gradient_function("/CPU:0", "float64", "squared_error", "relu")
    with tf.device("/GPU:1"):
        result = function(*_inputs("/CPU:0", "float64", "squared_error", 5))[0]
    assert result.device.endswith("GPU:1"), result.device
    assert result.backing_device.endswith("CPU:0"), result.backing_device


def each_device_runs_its_own_kernels() -> None:
    for device in (0, 1):
        function = _gradient_function(f"/GPU:{device}", "float32", "squared_error", "relu")
        inputs = _inputs(f"/GPU:{device}", "float32", "squared_error", 5)
        before = [_counters(0).kernel_runs, _counters(1).kernel_runs]
        function(*inputs)
        runs = [_counters(index).kernel_runs - before[index] for index in (0, 1)]
        assert runs[device] > 10, runs
        assert runs[1 - device] == 0, runs


def all_operations_are_placed_on_the_device() -> None:
    for loss in ("softmax_cross_entropy", "squared_error"):
        function = _gradient_function("/GPU:1", "float32", loss, "relu")
        inputs = _inputs("/GPU:1", "float32", loss, 5)
        with _placements() as placements:
            function(*inputs)
        operations = {operation for operation, device in placements if device == "GPU:1"}
        assert {"MatMul", "Relu", "ReluGrad"} <= operations, operations
        # Int32 arguments, here the labels, lie on the host although they name the device.
        elsewhere = {operation for operation, device in placements if device != "GPU:1"}
        assert elsewhere <= {"_Arg", "_Send"}, elsewhere


def other_kernels_equal_numpy() -> None:
    array = np.arange(24, dtype=np.float64).reshape(2, 3, 4) / 7
    matrix = array[0]
    exponents = np.exp(matrix)
    logs = np.log(exponents / exponents.sum(axis=-1, keepdims=True))
    with tf.device("/GPU:0"):
        x = tf.constant(array)
        indices = tf.constant([2, 0])
        pairs = {
            "Neg": (-x, -array),
            "Sqrt": (tf.sqrt(x), np.sqrt(array)),
            "Exp": (tf.exp(x), np.exp(array)),
            "Log": (tf.math.log(x + 1), np.log(array + 1)),
            "Sub": (x - x[0], array - array[0]),
            "Mul": (x * x[:, :1], array * array[:, :1]),
            "RealDiv": (x / (x + 1), array / (array + 1)),
            "Maximum": (tf.maximum(x, 2.0), np.maximum(array, 2.0)),
            "SquaredDifference": (tf.math.squared_difference(x, 2.0), (array - 2) ** 2),
            "BiasAdd": (tf.nn.bias_add(x, x[0, 0]), array + array[0, 0]),
            "BiasAddGrad": (tf.raw_ops.BiasAddGrad(out_backprop=x), array.sum(axis=(0, 1))),
            "SoftmaxCrossEntropyWithLogits": (
                tf.nn.softmax_cross_entropy_with_logits(labels=x[0], logits=x[0]),
                -(matrix * logs).sum(axis=-1),
            ),
            "MatMul": (tf.matmul(x[0], x[1], transpose_b=True), array[0] @ array[1].T),
            "MatMul transposed": (tf.matmul(x[0], x[1], transpose_a=True), array[0].T @ array[1]),
            "Sum": (tf.reduce_sum(x, 1, keepdims=True), array.sum(axis=1, keepdims=True)),
            "Mean": (tf.reduce_mean(x, [0, -1]), array.mean(axis=(0, 2))),
            "Prod": (tf.reduce_prod(x, 2), array.prod(axis=2)),
            "Prod of a shape": (tf.reduce_prod(tf.shape(x)), np.array(24)),
            "Max": (tf.reduce_max(x, 2), array.max(axis=2)),
            "Cast": (tf.cast(x, tf.float32), array.astype(np.float32)),
            "Cast to integers": (tf.cast(x, tf.int64), array.astype(np.int64)),
            "Fill": (tf.fill([2, 3], x[1, 2, 3]), np.full((2, 3), array[1, 2, 3])),
            "ZerosLike": (tf.raw_ops.ZerosLike(x=x), np.zeros_like(array)),
            "OnesLike": (tf.raw_ops.OnesLike(x=x), np.ones_like(array)),
            "BroadcastTo": (tf.broadcast_to(x[0, 0], [5, 4]), np.broadcast_to(array[0, 0], (5, 4))),
            "Tile": (tf.tile(x, [2, 1, 3]), np.tile(array, (2, 1, 3))),
            "Transpose": (tf.transpose(x, [2, 0, 1]), array.transpose(2, 0, 1)),
            "Slice": (tf.slice(x, [0, 1, 0], [-1, 2, 3]), array[:, 1:3, :3]),
            "StridedSlice": (x[1:, ::-1, ..., 2], array[1:, ::-1, ..., 2]),
            "StridedSlice backwards": (x[:, ::2, 3:0:-2], array[:, ::2, 3:0:-2]),
            "StridedSlice with a new axis": (x[..., tf.newaxis, -3:-1], array[..., None, -3:-1]),
            "StridedSlice of nothing": (x[0, 5:2], array[0, 5:2]),
            "StridedSlice of a shape": (tf.shape(x)[1], np.array(3)),
            "Split": (tf.split(x, 2, 2)[1], array[:, :, 2:]),
            "SplitV": (tf.split(x, [1, -1], 1)[1], array[:, 1:]),
            "ConcatV2": (tf.concat([x, x + 1], 1), np.concatenate([array, array + 1], axis=1)),
            "Pack": (tf.stack([x, x], -1), np.stack([array, array], axis=-1)),
            "GatherV2": (tf.gather(x, indices, axis=2), array[:, :, [2, 0]]),
            "GatherV2 of labels": (tf.gather(tf.constant([5, 6, 7]), indices), np.array([7, 5])),
        }
    for name, (tensor, expected) in pairs.items():
        assert tensor.shape == expected.shape, (name, tensor.shape, expected.shape)
        np.testing.assert_allclose(tensor.numpy(), expected, rtol=1e-6, atol=0, err_msg=name)
        if tensor.dtype != tf.int32:
            assert tensor.backing_device.endswith("GPU:0"), (name, tensor.backing_device)


def a_label_out_of_range_gives_nan() -> None:
    with tf.device("/GPU:0"):
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
            tf.constant([5, 1], tf.int64), tf.ones([2, 3])
        )
    assert np.isnan(losses.numpy()).tolist() == [True, False]


def a_variable_lives_on_the_device() -> None:
    with tf.device("/GPU:1"):
        variable = tf.Variable(np.zeros(3, np.float32))
        variable.assign(tf.constant(np.arange(3, dtype=np.float32)))
        value = variable.read_value()
    assert value.backing_device.endswith("GPU:1")
    assert value.numpy().tolist() == [0.0, 1.0, 2.0]


def memory_info_rises_and_falls() -> None:
    size = 8_000_000
    start = {device: _bytes_in_use(device) for device in ("GPU:0", "GPU:1")}
    with tf.device("/GPU:1"):
        tensor = tf.constant(np.ones(size // 8))
    # The best-fit allocator may give a block that is a little larger.
    assert size <= _bytes_in_use("GPU:1") - start["GPU:1"] < 1.5 * size
    assert _bytes_in_use("GPU:0") == start["GPU:0"]
    assert _counters(1).bytes_in_use >= size
    del tensor
    assert _bytes_in_use("GPU:1") == start["GPU:1"]
    assert tf.config.experimental.get_memory_info("GPU:1")["peak"] >= size


def copies_go_through_the_device() -> None:
    array = np.ones(1000, np.float32)
    before = _counters()
    with tf.device("/GPU:0"):
        tensor = tf.constant(array)
        uploaded = _counters()
        tensor = tf.square(tensor)
        computed = _counters()
        result = tensor.numpy()
    read = _counters()
    assert result.tolist() == array.tolist()
    assert uploaded.uploaded_bytes - before.uploaded_bytes == array.nbytes
    assert uploaded.readback_bytes == before.readback_bytes
    assert (computed.uploads, computed.readbacks) == (uploaded.uploads, uploaded.readbacks)
    assert computed.kernel_runs - uploaded.kernel_runs == 1
    assert read.readback_bytes - computed.readback_bytes == array.nbytes


def many_steps_hold_no_memory() -> None:
    function = _gradient_function("/GPU:0", "float32", "softmax_cross_entropy", "relu")

    def steps(count: int) -> None:
        for _ in range(count):
            for tensor in function(*_inputs("/GPU:0", "float32", "softmax_cross_entropy", 64)):
                tensor.numpy()

    steps(100)
    device_bytes, resident_bytes = _bytes_in_use(), _resident_bytes()
    steps(500)
    assert _bytes_in_use() == device_bytes
    assert _resident_bytes() - resident_bytes < 4_000_000, _resident_bytes() - resident_bytes


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


# ANER_EMULATED_OMIT=ReluGrad,BiasAddGrad


def an_omitted_kernel_is_refused() -> None:
    function = _gradient_function("/GPU:0", "float32", "squared_error", "relu")
    refusal = r"ReluGrad.*no supported kernel for GPU devices"
    with pytest.raises(tf.errors.InvalidArgumentError, match=refusal):
        function(*_inputs("/GPU:0", "float32", "squared_error", 5))


def other_kernels_still_run() -> None:
    function = _gradient_function("/GPU:0", "float32", "squared_error", "tanh")
    assert function(*_inputs("/GPU:0", "float32", "squared_error", 5))[0].backing_device.endswith("GPU:0")


def tensors_alone_do_not_show_a_fall_back() -> None:
    """Hold what TensorFlow does when the device is asked for around the tracing, and not in the body.

    The operation without kernel then runs on the CPU although soft placement is off, and the results lie on
    the GPU. Only the placed graph shows it.
    """
    function = _gradient_function("/GPU:0", "float32", "squared_error", "relu", inside=False)
    inputs = _inputs("/GPU:0", "float32", "squared_error", 5)
    with _placements() as placements:
        gradients = function(*inputs)
    assert all(gradient.backing_device.endswith("GPU:0") for gradient in gradients)
    assert ("ReluGrad", "CPU:0") in placements


# ANER_EMULATED_WRONG=Tanh


def a_wrong_kernel_is_wrong_and_others_are_right() -> None:
    with tf.device("/GPU:0"):
        x = tf.constant([0.5, 0.5, 0.5])
        assert tf.tanh(x).numpy() == pytest.approx(np.tanh(0.5) * np.array([1.05, 1, 1.05]))
        assert tf.sigmoid(x).numpy() == pytest.approx(1 / (1 + np.exp(-x.numpy())))


# ANER_EMULATED_DEVICES=3, ANER_EMULATED_MEMORY=64 MiB


def three_devices_are_listed() -> None:
    assert len(tf.config.list_logical_devices("GPU")) == 3


def memory_has_a_limit() -> None:
    with tf.device("/GPU:2"):
        assert tf.zeros([1 << 20]).backing_device.endswith("GPU:2")
        with pytest.raises(tf.errors.ResourceExhaustedError):
            tf.zeros([1 << 25])


def _failure(check: Callable[[], Any]) -> str | None:
    try:
        check()
    except Exception:  # any failure of a check is its result
        return traceback.format_exc()
    return None


if __name__ == "__main__":
    loaded = load_from_environment()
    assert loaded is not None
    _LIBRARY: Final = loaded
    tf.config.set_soft_device_placement(False)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    failures = {name: _failure(globals()[name]) for name in sys.argv[1:]}
    print(json.dumps({name: failure for name, failure in failures.items() if failure}))
