"""Gradients with TensorFlow on CPU, CUDA and Metal: the only module that imports it.

One concrete function a rank: traced once, called with the flat parameter vector and a shard. On CPU the
vector is handed over without a copy where its memory is aligned as TensorFlow wants it, and gradients are
read from TensorFlow's own buffers, so that one pass (cast to float64) brings them to the reply's slot.
"""

from __future__ import annotations

import functools
import os
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from aner_nb import cuda

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ[cuda.ORDER_VARIABLE] = cuda.BUS_ORDER  # CUDA reads it when TensorFlow starts

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.python.eager import context as eager_context
from tensorflow.python.framework.load_library import load_pluggable_device_library

from aner_nb.backends.base import (
    PLUGGABLE_DEVICE_VARIABLE,
    AbstractGradientFunction,
    DeviceProof,
    DrawMasks,
    GradientSum,
    Partition,
)
from aner_nb.backends.probe import TF32_TOLERANCE, TOLERANCE, probe
from aner_nb.case import Placement
from aner_nb.errors import BackendUnavailable, ContractBroken
from aner_nb.layers import Dense, Dropout, LayerNorm
from aner_nb.model import Model
from aner_nb.network import Network

Forward = Callable[[Sequence[Any], Any, Sequence[Any]], Any]
"""Arrays, rows and Dropout masks to the last layer's outputs, while a graph is traced."""

_ALIGNMENT: Final = 64
_BOOKKEEPING: Final = frozenset(
    # Operations that carry shapes, constants or values across, and compute nothing of the gradient.
    {
        "_Arg",
        "_Retval",
        "_Send",
        "_Recv",
        "_HostSend",
        "_HostRecv",
        "Const",
        "NoOp",
        "Identity",
        "Placeholder",
    }
    | {"Shape", "ShapeN", "Size", "Rank", "Range", "BroadcastGradientArgs"}
    | {"Pack", "StridedSlice", "ExpandDims", "Cast"}
)


def configure(placement: Placement, *, tf32: bool = False) -> str:
    """Set this process up for one placement and return the device's TensorFlow name.

    Other accelerators are hidden from TensorFlow before it starts, so that it puts nothing on them.

    Raises
    ------
    BackendUnavailable
        If the device is not there, or TensorFlow already runs in this process with other settings.
    """
    if placement.backend != "cpu":
        _load_emulated_device()
    tf.config.set_soft_device_placement(False)
    tf.config.experimental.enable_tensor_float_32_execution(tf32)
    gpus = tf.config.list_physical_devices("GPU")
    if placement.backend != "cpu" and placement.device >= len(gpus):
        raise BackendUnavailable(
            f"TensorFlow {tf.__version__} sees {len(gpus)} accelerators here, so there is no "
            f"{placement.backend}:{placement.device}.",
            remedy="Run `aner-nb doctor` on that machine: it says what is missing.",
        )
    chosen = [] if placement.backend == "cpu" else [gpus[placement.device]]
    try:
        tf.config.threading.set_intra_op_parallelism_threads(placement.threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        tf.config.set_visible_devices(chosen, "GPU")
        if placement.backend == "cuda":
            tf.config.experimental.set_memory_growth(chosen[0], True)
    except RuntimeError as error:
        same_threads = placement.threads == tf.config.threading.get_intra_op_parallelism_threads()
        if not same_threads or (chosen and tf.config.get_visible_devices("GPU") != chosen):
            raise BackendUnavailable(
                f"TensorFlow already runs in this process with other settings ({error}).",
                remedy="Let the cluster start fresh workers: run them under a nanny.",
            ) from error
    return "GPU:0" if chosen else "CPU:0"


@functools.cache
def _load_emulated_device() -> bool:
    """Load the library that the tests name, if they do; TensorFlow aborts the process on a second load."""
    library = os.environ.get(PLUGGABLE_DEVICE_VARIABLE)
    if library:
        load_pluggable_device_library(library)
    return bool(library)


class TensorflowGradientFunction(AbstractGradientFunction):
    """The traced forward and backward of one rank.

    Parameters
    ----------
    blocks
        The shards that will be asked for. Resident ones are put on the device now, each as tensors of its own,
        so that an update slices nothing.
    open_forward
        Returns, for a dtype, what computes the outputs; called once the device is set up. None: a Dense stack does.
    draw
        Makes the masks of each update; None: the model drops nothing.
    """

    def __init__(
        self,
        model: Network,
        partition: Partition,
        placement: Placement,
        *,
        blocks: Sequence[tuple[int, int]],
        resident: bool,
        open_forward: Callable[[str], Forward] | None = None,
        draw: DrawMasks | None = None,
        tf32: bool = False,
    ) -> None:
        self._device = configure(placement, tf32=tf32)
        self._partition: Partition | None = partition
        self._layout = model.layout
        self._draw = draw
        self.trace_count = 0
        self._vector_address = 0
        self._vector: Any = None
        self._synchronise = tf.test.experimental.sync_devices if self._device != "CPU:0" else None
        dtype = partition.features.dtype.name
        began = time.perf_counter_ns()
        self._shards = {block: self._place(block) for block in blocks} if resident else {}
        if open_forward is None:
            open_forward = functools.partial(_dense_forward, cast("Model", model))
        self._function: Any = self._trace(model, open_forward(dtype), dtype)
        self.proof = self._prove(placement, dtype)
        if self._device != "CPU:0":
            tolerance = TF32_TOLERANCE if tf32 else TOLERANCE[dtype]
            self.probe = probe(self, model, partition, placement, draw, tolerance=tolerance)
        if resident:
            self._partition = None
        self.compile_ns = time.perf_counter_ns() - began

    def _place(self, block: tuple[int, int]) -> tuple[Any, Any]:
        """Upload the rows of a shard."""
        assert self._partition is not None
        targets = self._partition.targets[slice(*block)]
        if self._device != "CPU:0" and targets.dtype == np.int32:
            # TensorFlow keeps int32 tensors of an accelerator on the host and would send them in every call.
            targets = targets.astype(np.int64)
        with tf.device(self._device):
            return tf.constant(self._partition.features[slice(*block)]), tf.constant(targets)

    def _masks(self, update: int, block: tuple[int, int]) -> list[Any]:
        """Draw and upload the masks of an update: one byte a unit, made on the host (see `aner_nb.dropout`)."""
        if self._draw is None:
            return []
        with tf.device(self._device):
            return [tf.constant(mask) for mask in self._draw(update, block)]

    def _trace(self, model: Network, forward: Forward, dtype: str) -> Any:
        targets = self._place((0, 0))[1]
        masks = self._masks(0, (0, 0))
        signature = [
            tf.TensorSpec([self._layout.size], dtype),
            tf.TensorSpec([None, model.features], dtype),
            tf.TensorSpec([None, *targets.shape[1:]], targets.dtype),
            *(tf.TensorSpec([None, mask.shape[1]], tf.bool) for mask in masks),
        ]

        loss_sum = loss_sum_of(model.loss, model.class_weights)

        @tf.function(input_signature=signature, autograph=False)
        def gradients(vector: Any, features: Any, labels: Any, *masks: Any) -> list[Any]:
            self.trace_count += 1
            with tf.device(self._device):
                pieces = tf.split(vector, list(self._layout.sizes))
                arrays = [
                    tf.reshape(piece, shape) for piece, shape in zip(pieces, self._layout.shapes, strict=True)
                ]
                with tf.GradientTape() as tape:
                    tape.watch(arrays)
                    loss = loss_sum(forward(arrays, features, masks), labels)
                return [loss, *tape.gradient(loss, arrays)]

        traced: Any = gradients
        return traced.get_concrete_function()

    def _prove(self, placement: Placement, dtype: str) -> DeviceProof:
        """Run the function once on one row and read where everything ran.

        The executed graph is what proves it: a tensor's ``device`` only repeats what was asked for, and its
        ``backing_device`` says where the memory lies.
        """
        vector = np.zeros(self._layout.size, dtype)
        eager_context.enable_run_metadata()
        try:
            outputs = self._first_call(placement, vector)
            running: Any = eager_context.context()
            metadata = running.export_run_metadata()
        finally:
            eager_context.disable_run_metadata()
        operations: dict[str, int] = {}
        strays: list[str] = []
        for graph in metadata.function_graphs:
            for node in (node for part in graph.partition_graphs for node in part.node):
                device = _short(node.device)
                operations[device] = operations.get(device, 0) + 1
                if device != self._device and node.op not in _BOOKKEEPING:
                    strays.append(f"{node.op} on {device}")
        produced = tuple(sorted({_short(tensor.backing_device) for tensor in outputs}))
        if strays or produced != (self._device,) or not operations:
            found = ", ".join(strays[:3]) or f"gradients on {', '.join(produced)}"
            raise ContractBroken(
                f"{placement} was to compute on {self._device}, but TensorFlow placed {found}.",
                remedy="The device lacks a kernel that the model needs: use another backend for this rank.",
            )
        return DeviceProof(
            requested=self._device,
            produced_on=produced,
            operations_on=operations,
            framework=f"tensorflow {tf.__version__}",
            emulated=placement.backend != "cpu" and _load_emulated_device(),
        )

    def _first_call(self, placement: Placement, vector: NDArray[np.floating]) -> list[Any]:
        """Call the function; where the device lacks a kernel, TensorFlow refuses to place the graph."""
        try:
            return self._function(self._upload(vector), *self._place((0, 1)), *self._masks(0, (0, 1)))
        except tf.errors.OpError as error:
            node = re.search(r"kernel.*\[\[\{\{node (\S+?)\}\}\]\]", error.message, re.DOTALL | re.IGNORECASE)
            if node is None:
                raise
            operation = self._function.graph.get_operation_by_name(node[1]).type
            raise ContractBroken(
                f"{placement} has no kernel for {operation} ({node[1]}), and falling back to the CPU is not allowed.",
                remedy="Use another backend for this rank, or a model without that operation.",
            ) from error

    def _upload(self, parameters: NDArray[np.floating]) -> Any:
        address = parameters.ctypes.data
        if self._device != "CPU:0" or address % _ALIGNMENT:
            with tf.device(self._device):
                return tf.constant(parameters)
        if address != self._vector_address:
            # The tensor shares the slot's memory: it is made once and read afresh in every call. The
            # coordinator writes the slot only while no call runs.
            self._vector = tf.experimental.dlpack.from_dlpack(parameters.__dlpack__())
            self._vector_address = address
        return self._vector

    def __call__(
        self,
        parameters: NDArray[np.floating],
        block: tuple[int, int],
        out: NDArray[np.float64],
        update: int = 0,
    ) -> GradientSum:
        began = time.perf_counter_ns()
        vector = self._upload(parameters)
        shard = self._shards.get(block) or self._place(block)
        if self._draw is not None:
            shard = (*shard, *self._masks(update, block))
        uploaded = time.perf_counter_ns()
        loss, *gradients = self._function(vector, *shard)
        if self._synchronise is not None:
            self._synchronise()
        computed = time.perf_counter_ns()
        for slot, gradient in zip(self._layout.views(out), gradients, strict=True):
            np.copyto(slot, memoryview(gradient))
        loss_sum = float(np.asarray(memoryview(loss)))
        read = time.perf_counter_ns()
        if _short(loss.backing_device) != self._device:
            raise ContractBroken(f"a gradient was produced on {loss.backing_device}, not on {self._device}.")
        phases = (uploaded - began, computed - uploaded, read - computed, read - began)
        return GradientSum(block[1] - block[0], loss_sum, out, phases)

    def device_bytes(self) -> dict[str, int | None]:
        """Return what TensorFlow's device allocator counts; its CPU allocator does not count."""
        if self._device == "CPU:0":
            return {"current": None, "peak": None}
        counted = tf.config.experimental.get_memory_info(self._device)
        return {"current": int(counted["current"]), "peak": int(counted["peak"])}

    def close(self) -> None:
        """Drop the resident rows, the function and the shared vector."""
        self._shards = {}
        self._function = self._vector = self._partition = None


def _short(device: str) -> str:
    return ":".join(device.rsplit(":", 2)[-2:])


_ACTIVATIONS: Final = {"relu": tf.nn.relu, "tanh": tf.tanh, "sigmoid": tf.sigmoid}


def _dense_forward(model: Model, _dtype: str) -> Forward:
    return functools.partial(_dense_outputs, model)


def _dense_outputs(model: Model, arrays: Sequence[Any], features: Any, masks: Sequence[Any]) -> Any:
    output = features
    drawn = iter(masks)
    for place, layer in zip(model.places, model.layers, strict=True):
        match layer:
            case Dense():
                output = tf.nn.bias_add(tf.matmul(output, arrays[place]), arrays[place + 1])
                if layer.activation in _ACTIVATIONS:
                    output = _ACTIVATIONS[layer.activation](output)
            case LayerNorm():
                output = _layer_norm(layer.epsilon)(output, arrays[place], arrays[place + 1])
            case Dropout():
                output *= tf.cast(next(drawn), output.dtype) * tf.constant(layer.scale, output.dtype)
    return output


def loss_sum_of(loss: str, class_weights: tuple[float, ...]) -> Callable[[Any, Any], Any]:
    """Return what adds up the loss of outputs and targets over the rows, while a graph is traced."""

    def loss_sum(output: Any, labels: Any) -> Any:
        if loss == "mean_squared_error":
            difference: Any = tf.square(output - labels)
            return tf.reduce_sum(difference) / int(output.shape[-1])
        losses: Any = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, output)
        if class_weights:
            losses *= tf.gather(tf.constant(class_weights, losses.dtype), labels)
        return tf.reduce_sum(losses)

    return loss_sum


def _layer_norm(epsilon: float) -> Any:
    """Return the normalization with its gradient written out: TensorFlow's own has shape arithmetic on the host."""

    def mean(values: Any) -> Any:
        return tf.reduce_mean(values, axis=1, keepdims=True)

    @tf.custom_gradient
    def normalize(inputs: Any, gamma: Any, beta: Any) -> Any:
        centred = inputs - mean(inputs)
        inverse: Any = tf.math.rsqrt(mean(tf.square(centred)) + tf.constant(epsilon, inputs.dtype))
        unit = centred * inverse

        def gradient(slope: Any) -> Any:
            scaled = slope * gamma
            by_input = (scaled - mean(scaled) - unit * mean(scaled * unit)) * inverse
            return by_input, tf.reduce_sum(slope * unit, axis=0), tf.reduce_sum(slope, axis=0)

        return unit * gamma + beta, gradient

    return normalize
