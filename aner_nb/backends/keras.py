"""Keras: models built from their configuration, evaluated on CPU, and saved as files that load without us."""

from __future__ import annotations

import functools
import os
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, cast

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from aner_nb.backends.tensorflow import Forward, loss_sum_of
from aner_nb.errors import BackendUnavailable, CaseError, ContractBroken
from aner_nb.keras_models import with_dtype
from aner_nb.layers import Dense, Dropout, LayerNorm
from aner_nb.model import Model
from aner_nb.network import Array, Labels, Layout

LossSum = Callable[[Any, Any], Any]
"""Outputs and targets to the loss summed over the rows, likewise."""

_DRAWINGS: Final = 3
"""Times that initial values are drawn anew because something else drew random numbers meanwhile."""
_ROWS: Final = 4


def build(text: str, dtype: str) -> Any:
    """Return the model of a checked configuration, with variables in `dtype` on CPU.

    Raises
    ------
    CaseError
        If Keras cannot build it.
    BackendUnavailable
        If Keras runs on something else than TensorFlow.
    """
    if keras.backend.backend() != "tensorflow":
        raise BackendUnavailable(
            f"Keras runs on {keras.backend.backend()} in this process.",
            remedy="Set the environment variable KERAS_BACKEND to tensorflow before Keras is imported.",
        )
    try:
        with tf.device("CPU:0"):
            model: Any = keras.models.model_from_json(with_dtype(text, dtype))
    except Exception as error:
        # Whatever a layer's constructor objects to, it is the configuration that is wrong.
        raise CaseError(
            f"Keras {keras.__version__} cannot build the model ({type(error).__name__}: "
            f"{str(error).splitlines()[0][:300] if str(error) else 'no reason given'}).",
            where="model",
            remedy="Build it with this version of Keras and give it again.",
        ) from error
    frozen = [variable.path for variable in model.non_trainable_weights]
    if frozen:
        raise CaseError(
            f"{frozen[0]} is a weight that gradients don't train.",
            where="model",
            remedy="Use layers whose weights are all trained.",
        )
    return model


def shapes_of(model: Any) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of a model's trainable variables, in order."""
    return tuple(tuple(map(int, variable.shape)) for variable in model.trainable_variables)


def forward_of(text: str, shapes: tuple[tuple[int, ...], ...], dtype: str, *, training: bool) -> Forward:
    """Return what computes a model's outputs from its arrays: without variables, without state.

    Raises
    ------
    ContractBroken
        If this version of Keras lays the model out differently than the coordinator's did.
    """
    model = build(text, dtype)
    if shapes_of(model) != shapes:
        raise ContractBroken(
            f"Keras {keras.__version__} gives the model other arrays than the coordinator has.",
            remedy="Install the same Keras everywhere.",
        )
    row = tuple(model.input_shape[1:])
    kept = [variable.numpy() for variable in model.non_trainable_variables]

    def forward(arrays: Sequence[Any], features: Any, _masks: Sequence[Any]) -> Any:
        state = [tf.constant(value) for value in kept]
        rows = tf.reshape(features, [-1, *row])
        outputs, after = model.stateless_call(list(arrays), state, rows, training=training)
        changed = [new is not old for new, old in zip(after, state, strict=True)]
        if any(changed):
            path = model.non_trainable_variables[changed.index(True)].path
            raise ContractBroken(
                f"training changes {path}.", remedy="Use layers that keep nothing from batch to batch."
            )
        return outputs

    return forward


def prepare_coordinator() -> None:
    """Keep TensorFlow off the accelerators, with one thread a call: evaluations share the rows themselves.

    Where TensorFlow runs already, because a person built a model here, it stays as it is: results don't depend on it.
    """
    try:
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        tf.config.set_visible_devices([], "GPU")
    except RuntimeError:
        pass


class KerasReference:
    """A Keras model in float64 on CPU: what the coordinator evaluates with and `develop` compares with."""

    def __init__(self, text: str) -> None:
        prepare_coordinator()
        self._text = text
        model = build(text, "float64")
        self.layout = Layout(shapes_of(model))
        self.features = int(np.prod(model.input_shape[1:]))
        self.output_shape: tuple[int | None, ...] = tuple(model.output_shape)
        self._graphs: dict[object, Any] = {}
        self._training = forward_of(text, self.layout.shapes, "float64", training=True)
        self._outputs = self._traced(
            forward_of(text, self.layout.shapes, "float64", training=False), tf.float64
        )
        self._check_rows()

    def _arrays(self, vector: Any) -> list[Any]:
        pieces = tf.split(vector, list(self.layout.sizes))
        return [tf.reshape(piece, shape) for piece, shape in zip(pieces, self.layout.shapes, strict=True)]

    def _traced(self, forward: Forward, dtype: Any) -> Any:
        @tf.function(
            input_signature=[
                tf.TensorSpec([self.layout.size], dtype),
                tf.TensorSpec([None, self.features], dtype),
            ],
            autograph=False,
        )
        def outputs(vector: Any, features: Any) -> Any:
            with tf.device("CPU:0"):
                return forward(self._arrays(vector), features, ())

        traced: Any = outputs
        return traced.get_concrete_function()

    def _check_rows(self) -> None:
        """Hold the model to it that a row's output depends on that row alone, in training as in evaluation."""
        if len(self.output_shape) != 2 or self.output_shape[1] is None:
            raise CaseError(
                f"its output for a row has the shape {self.output_shape[1:]}.",
                where="model",
                remedy="End it with one number a class or target column, such as Dense(10) after Flatten().",
            )
        vector = self.initial(0)
        rows = np.random.default_rng(0).standard_normal((_ROWS, self.features))
        training = self._traced(self._training, tf.float64)
        together = self._call(training, vector, rows)
        alone = np.concatenate([self._call(training, vector, row[np.newaxis]) for row in rows])
        for other in (alone, self.outputs(vector, rows)):
            if not np.allclose(together, other, rtol=1e-9, atol=1e-9, equal_nan=True):
                raise CaseError(
                    "its output for a row depends on the other rows, on chance or on being trained.",
                    where="model",
                    remedy="Use layers that treat each row by itself: no operation along the batch's axis.",
                )

    def initial(self, seed: int) -> NDArray[np.float64]:
        """Return the initial values that Keras draws in float64, the same for one seed.

        Keras seeds its initializers from Python's global generator, which other threads may use: values count only
        when two drawings agree.
        """
        for _ in range(_DRAWINGS):
            first, second = self._drawn(seed), self._drawn(seed)
            if np.array_equal(first, second):
                return first
        raise ContractBroken(
            "initial values cannot be drawn twice alike.",
            where="model",
            remedy="Run the case while no other thread draws from Python's random module.",
        )

    def _drawn(self, seed: int) -> NDArray[np.float64]:
        before = random.getstate()
        random.seed(seed)
        try:
            model = build(self._text, "float64")
        finally:
            random.setstate(before)
        values = [np.asarray(variable.numpy(), np.float64).ravel() for variable in model.trainable_variables]
        return np.concatenate(values) if values else np.zeros(0)

    @staticmethod
    def _call(function: Any, parameters: Array, features: Array) -> NDArray[np.float64]:
        with tf.device("CPU:0"):
            vector = tf.constant(np.asarray(parameters, np.float64))
            rows = tf.constant(np.asarray(features, np.float64))
            return np.asarray(function(vector, rows).numpy(), np.float64)

    def outputs(self, parameters: Array, features: Array) -> NDArray[np.float64]:
        """Return the last layer's outputs, (rows, outputs), in float64."""
        return self._call(self._outputs, parameters, features)

    def gradient_function(self, loss_sum: LossSum, targets: Labels, key: object) -> Any:
        """Return the traced function from vector, features and targets to loss sum and gradient."""
        if key not in self._graphs:
            labels = tf.TensorSpec([None, *targets.shape[1:]], tf.as_dtype(targets.dtype))

            @tf.function(
                input_signature=[
                    tf.TensorSpec([self.layout.size], tf.float64),
                    tf.TensorSpec([None, self.features], tf.float64),
                    labels,
                ],
                autograph=False,
            )
            def gradients(vector: Any, features: Any, targets: Any) -> Any:
                with tf.device("CPU:0"), tf.GradientTape() as tape:
                    tape.watch(vector)
                    loss = loss_sum(self._training(self._arrays(vector), features, ()), targets)
                with tf.device("CPU:0"):
                    return loss, tape.gradient(loss, vector)

            traced: Any = gradients
            self._graphs[key] = traced.get_concrete_function()
        return self._graphs[key]


@functools.lru_cache(maxsize=8)
def reference(text: str) -> KerasReference:
    """Return the reference of a configuration; made once a process."""
    return KerasReference(text)


def gradient_sum(
    text: str,
    loss: str,
    class_weights: tuple[float, ...],
    parameters: Array,
    features: Array,
    targets: Labels,
    out: Array,
) -> float:
    """Write the reference's gradient summed over the rows into `out`; return the loss sum."""
    labels = np.asarray(targets, np.float64) if loss == "mean_squared_error" else targets
    key = (loss, class_weights)
    function = reference(text).gradient_function(loss_sum_of(loss, class_weights), labels, key)
    with tf.device("CPU:0"):
        inputs = [tf.constant(np.asarray(value, np.float64)) for value in (parameters, features)]
        total, gradient = function(*inputs, tf.constant(labels))
    np.copyto(out, gradient.numpy())
    return float(total.numpy())


def operations(text: str, loss: str, class_weights: tuple[float, ...]) -> tuple[str, ...]:
    """Return the names of the reference graph's operations, in order."""
    labels = np.zeros((1, 1)) if loss == "mean_squared_error" else np.zeros(1, np.int32)
    if loss == "mean_squared_error":
        labels = np.zeros((1, cast("int", reference(text).output_shape[1])))
    key = (loss, class_weights)
    function = reference(text).gradient_function(loss_sum_of(loss, class_weights), labels, key)
    silent = ("Placeholder", "Const", "NoOp", "Identity")
    return tuple(op.name for op in function.graph.get_operations() if op.type not in silent)


def dense_layers(model: Model, dtype: str) -> list[Any]:
    """Return Keras layers like those of a Dense stack; weights are set later."""
    own: list[Any] = []
    for layer in model.layers:
        match layer:
            case Dense():
                own.append(keras.layers.Dense(layer.units, activation=layer.activation, dtype=dtype))
            case LayerNorm():
                own.append(keras.layers.LayerNormalization(epsilon=layer.epsilon, dtype=dtype))
            case Dropout():
                own.append(keras.layers.Dropout(layer.rate, dtype=dtype))
    return own


def network_layers(text: str, dtype: str) -> list[Any]:
    """Return the layers that take flat rows into a Keras model; weights are set later."""
    model = build(text, dtype)
    return [keras.layers.Reshape(tuple(model.input_shape[1:]), dtype=dtype), model]


def save_model(
    path: Path,
    layers: Sequence[Any],
    mean: NDArray[np.float64],
    scale: NDArray[np.float64],
    arrays: Sequence[Array],
) -> None:
    """Write a file that Keras loads by itself: normalization of raw rows in float64, then the layers.

    Raises
    ------
    CaseError
        If Keras's normalization cannot express the scale of a column, or the file cannot be written.
    """
    bad = np.flatnonzero((scale <= keras.config.epsilon()) | ~np.isfinite(scale * scale))
    if len(bad):
        raise CaseError(
            f"column {bad[0]} varies by {scale[bad[0]]:.3g}, which Keras's Normalization cannot express.",
            where="save",
            remedy="Rescale the column; columns count from 0.",
        )
    with tf.device("CPU:0"):
        first = keras.layers.Normalization(dtype="float64")
        model: Any = keras.Sequential([keras.Input((len(mean),), dtype="float64"), first, *layers])
        first.set_weights([mean, scale * scale, np.zeros((), np.int64)])
        first.finalize_state()
        for variable, value in zip(model.trainable_variables, arrays, strict=True):
            variable.assign(value)
    try:
        with tempfile.TemporaryDirectory(prefix="aner-", dir=path.parent) as folder:
            model.save(Path(folder) / path.name)
            (Path(folder) / path.name).replace(path)
    except OSError as error:
        raise CaseError(
            f"the file cannot be written ({error.strerror or error}).",
            where=str(path),
            remedy="Free space or make the folder writable.",
        ) from error
