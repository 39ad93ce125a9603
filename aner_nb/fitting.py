"""Three ways to write the same run: `fit`, `develop` and `DenseNetwork`. They agree to the bit."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from aner_nb.case import Case, Dtype, Placement
from aner_nb.collectives.base import AbstractCollective, Exchange
from aner_nb.data import DataSpec
from aner_nb.dropout import make_masks
from aner_nb.errors import CaseError
from aner_nb.events import Subscriber
from aner_nb.execution import Wrap, run
from aner_nb.layers import Layer
from aner_nb.network import Evaluation, Masks, evaluate
from aner_nb.optimizers import SGD, OptimizerSpec
from aner_nb.plan import Update
from aner_nb.ranks import RankHost
from aner_nb.results import ConfusionMatrix, confusion, learning_curves, save
from aner_nb.sources import fingerprint
from aner_nb.stopping import EarlyStopping
from aner_nb.trial import Trial
from aner_nb.user_files import Stored
from aner_nb.user_table import Table
from aner_nb.work import Work

if TYPE_CHECKING:
    import pandas

Ranks = Sequence[str | Placement | tuple[str | Placement, int]]


@dataclass(frozen=True, slots=True)
class Fitted:
    """A trained model, with the trial that it came from."""

    trial: Trial
    parameters: NDArray[np.float64]
    """The final flat vector, float64."""
    work: Work = dataclasses.field(repr=False)

    def predict(self, features: Any) -> NDArray[Any]:
        """Return a class index, or the outputs of a regression, for each row of raw features.

        Parameters
        ----------
        features : (rows, features), or a table
            As in the source data: they are normalized by the training rows' statistics here. Of a table, what
            `aner_nb.table` takes: columns are found by their names, and missing values filled as in training.

        Returns
        -------
        (rows,) int64 classes, or (rows, outputs) float64
        """
        output = self.outputs(features)
        return output.argmax(axis=1) if self.work.data.task == "classification" else output

    def outputs(self, features: Any) -> NDArray[np.float64]:
        """Return the last layer's outputs (logits for classes), float64, shape (rows, outputs)."""
        data = self.work.case.data
        raw = data.matrix(features) if isinstance(data, Table | Stored) else np.asarray(features, np.float64)
        width = self.work.model.features
        if raw.ndim != 2 or raw.shape[1] != width:
            raise CaseError(
                f"features of shape {raw.shape} don't fit the model.",
                where="predict",
                remedy=f"Give rows of {width} features: shape (rows, {width}).",
            )
        normalized = self.work.data.normalization.apply(raw)
        return self.work.model.outputs(self.parameters, normalized).astype(np.float64, copy=False)

    def evaluate(self) -> Evaluation:
        """Return loss and accuracy on the test rows, as the receipt has them."""
        test = self.work.data.test
        return evaluate(self.work.model, self.parameters, test.features, test.targets)

    def save(self, path: str | Path) -> Path:
        """Write a ``.keras`` file that Keras loads without aner_nb; it takes raw rows and gives `outputs`.

        Its first layer normalizes in float64; the others compute in the case's dtype. Classes come out as logits.

        Raises
        ------
        CaseError
            If the name does not end in ``.keras``, or the file cannot be written.
        """
        return save(self.work, self.parameters, path)

    def confusion_matrix(self) -> ConfusionMatrix:
        """Return how often test rows of each class were taken for each class.

        Raises
        ------
        CaseError
            For a regression.
        """
        data = self.work.data
        if data.task != "classification":
            raise CaseError("numbers have no classes.", where="confusion_matrix", remedy="Use evaluate().")
        found = self.work.model.outputs(self.parameters, data.test.features).argmax(axis=1)
        return confusion(data.test.targets, found, data.class_names)

    def learning_curves(self) -> pandas.DataFrame:
        """Return one row an epoch: training loss, validation loss and accuracy, seconds since the first request."""
        return learning_curves(self.trial.receipt)

    def _repr_html_(self) -> str:
        from aner_nb.views import fitted_html

        return fitted_html(self)

    def __str__(self) -> str:
        return str(self.trial)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"


@dataclass(frozen=True, slots=True)
class ReferenceUpdate:
    """The canonical CPU reference graph of one update."""

    index: int
    parameters: str
    """SHA-256 of the wire vector that went in."""
    batch: str
    """SHA-256 of the global batch's rows, in rank order."""
    loss: float
    """Mean over the batch, as the reference computes it."""
    gradient_norm: float
    """Euclidean norm of the reference's mean gradient."""
    gradient_difference: float
    """Largest absolute difference between the ranks' mean gradient and the reference's."""


@dataclass(frozen=True, slots=True, repr=False)
class Developed(Fitted):
    """A trained model with the reference graph of each of its updates."""

    operations: tuple[str, ...] = ()
    """The reference graph's operations in order; the same in every update."""
    updates: tuple[ReferenceUpdate, ...] = ()

    def __str__(self) -> str:
        worst = max((update.gradient_difference for update in self.updates), default=0.0)
        lines = [
            str(self.trial),
            f"{len(self.updates)} updates of {len(self.operations)} operations; the ranks' gradients differ "
            f"from the reference by at most {worst:.2e}.",
            "operations: " + ", ".join(self.operations),
            f"{'update':>6} {'parameters':>12} {'batch':>12} {'loss':>10} {'gradient norm':>14}",
        ]
        shown = (*self.updates[:3], *self.updates[-2:]) if len(self.updates) > 5 else self.updates
        lines += [
            f"{update.index:>6} {update.parameters[:12]:>12} {update.batch[:12]:>12} "
            f"{update.loss:>10.6f} {update.gradient_norm:>14.6g}"
            for update in shown
        ]
        return "\n".join(lines)


class _ReferenceCollective(AbstractCollective):
    """Computes each update a second time with the reference, beside the collective that is measured."""

    def __init__(self, inner: AbstractCollective, work: Work) -> None:
        self.wire = inner.wire
        self._inner = inner
        self._work = work
        self._gradient = np.zeros(inner.wire.size)
        self._total = np.zeros(inner.wire.size)
        self.updates: list[ReferenceUpdate] = []

    @property
    def rank_count(self) -> int:
        return self._inner.rank_count

    def _masks(self, update: Update) -> Masks:
        work = self._work
        masks = make_masks(work.model.layers, work.model.features, work.plan.seed)
        if masks is None:
            return ()
        rows = [work.plan.partition(rank)[slice(*block)] for rank, block in enumerate(update.shards)]
        return masks.draw(update.index, np.concatenate(rows))

    def exchange(self, update: Update) -> Exchange:
        exchange = self._inner.exchange(update)
        pieces = [
            (part.features[slice(*block)], part.targets[slice(*block)])
            for part, block in zip(self._work.partitions, update.shards, strict=True)
        ]
        features = np.concatenate([piece[0] for piece in pieces])
        targets = np.concatenate([piece[1] for piece in pieces])
        parameters = self.wire.astype(np.float64)
        loss = self._work.model.gradient_sum(
            parameters,
            features.astype(np.float64),
            targets,
            self._gradient,
            self._masks(update),
        )
        exchange.sum_into(slice(None), self._total)
        difference = np.abs(self._total - self._gradient).max() / update.rows
        self.updates.append(
            ReferenceUpdate(
                index=update.index,
                parameters=fingerprint(self.wire),
                batch=fingerprint(features, targets),
                loss=loss / update.rows,
                gradient_norm=float(np.linalg.norm(self._gradient)) / update.rows,
                gradient_difference=float(difference),
            )
        )
        return exchange


def fit(
    data: DataSpec,
    layers: Sequence[int | Layer] = (),
    *,
    batch: int = 32,
    epochs: int = 40,
    optimizer: OptimizerSpec | None = None,
    dtype: Dtype = "float32",
    ranks: Ranks = ("cpu:1",),
    cluster: RankHost | None = None,
    subscribers: Sequence[Subscriber] = (),
    **fields: Any,
) -> Fitted:
    """Train and return the model.

    Parameters
    ----------
    data
        `iris`, `digits`, `teacher`, `arrays` or `table`.
    layers
        Units of each Dense layer; the last has one unit a class or target column.
    ranks
        A placement, or (placement, weight), for each rank.
    cluster
        None: a local cluster is started for this call.
    **fields
        Further fields of `Case`, such as ``seed``, or ``model`` for a Keras model in place of layers.

    Raises
    ------
    CaseError
        If the arguments are wrong.
    AnerError
        If the training did not pass.

    Examples
    --------
    >>> fitted = fit(iris(), [16, 3], batch=30, ranks=["cpu:1", "cpu:1"])  # doctest: +SKIP
    >>> fitted.predict([[5.1, 3.5, 1.4, 0.2]])  # doctest: +SKIP
    array([0])
    """
    case = _case("fit", data, layers, batch, epochs, optimizer, dtype, ranks, fields)
    return _fitted(_run(case, cluster, subscribers, None))


def develop(
    data: DataSpec,
    layers: Sequence[int | Layer] = (),
    *,
    batch: int = 32,
    epochs: int = 40,
    optimizer: OptimizerSpec | None = None,
    dtype: Dtype = "float32",
    ranks: Ranks = ("cpu:1",),
    cluster: RankHost | None = None,
    subscribers: Sequence[Subscriber] = (),
    **fields: Any,
) -> Developed:
    """Train as `fit` does, and capture the canonical CPU reference graph of every update.

    The result is the same to the bit; the clocks are not comparable, since every update is computed twice.
    Parameters and errors are those of `fit`.
    """
    case = _case("develop", data, layers, batch, epochs, optimizer, dtype, ranks, fields)
    captured: list[_ReferenceCollective] = []

    def wrap(inner: AbstractCollective, work: Work) -> AbstractCollective:
        captured.append(_ReferenceCollective(inner, work))
        return captured[0]

    fitted = _fitted(_run(case, cluster, subscribers, wrap))
    return Developed(
        fitted.trial,
        fitted.parameters,
        fitted.work,
        operations=fitted.work.model.operations(),
        updates=tuple(captured[0].updates),
    )


class DenseNetwork:
    """A network as a class: say what it is in class attributes, then `fit` it.

    Examples
    --------
    >>> class Flowers(DenseNetwork):
    ...     layers = (16, 3)
    ...     batch = 30
    ...     optimizer = SGD(0.1, momentum=0.9)
    >>> fitted = Flowers().fit(iris(), ranks=["cpu:1"])  # doctest: +SKIP
    """

    layers: ClassVar[Sequence[int | Layer]] = ()
    batch: ClassVar[int] = 32
    epochs: ClassVar[int] = 40
    optimizer: ClassVar[OptimizerSpec] = SGD()
    dtype: ClassVar[Dtype] = "float32"
    seed: ClassVar[int] = 0
    clip_norm: ClassVar[float | None] = None
    class_weights: ClassVar[Sequence[float] | Literal["balanced"] | None] = None
    stop_early: ClassVar[EarlyStopping | None] = None

    def case(self, data: DataSpec, ranks: Ranks = ("cpu:1",)) -> Case:
        """Return the case that `fit` runs."""
        name = type(self).__name__
        fields = {
            "seed": self.seed,
            "clip_norm": self.clip_norm,
            "class_weights": self.class_weights,
            "stop_early": self.stop_early,
        }
        return _case(
            name, data, self.layers, self.batch, self.epochs, self.optimizer, self.dtype, ranks, fields
        )

    def fit(
        self,
        data: DataSpec,
        *,
        ranks: Ranks = ("cpu:1",),
        cluster: RankHost | None = None,
        subscribers: Sequence[Subscriber] = (),
    ) -> Fitted:
        """Train on the data; parameters and errors are those of the function `fit`."""
        return _fitted(_run(self.case(data, ranks), cluster, subscribers, None))


def _case(
    name: str,
    data: DataSpec,
    layers: Sequence[int | Layer],
    batch: int,
    epochs: int,
    optimizer: OptimizerSpec | None,
    dtype: Dtype,
    ranks: Ranks,
    fields: dict[str, Any],
) -> Case:
    known = {field.name for field in dataclasses.fields(Case)}
    unknown = sorted(set(fields) - known)
    if unknown:
        raise CaseError(f"there is no argument {unknown[0]!r}.", remedy=f"Known: {', '.join(sorted(known))}.")
    named: dict[str, Any] = {"name": name}
    named.update(fields)
    return Case(
        **named,
        data=data,
        layers=layers,
        batch=batch,
        epochs=epochs,
        optimizer=optimizer or SGD(),
        dtype=dtype,
        ranks=ranks,
    )


def _run(case: Case, cluster: RankHost | None, subscribers: Sequence[Subscriber], wrap: Wrap | None) -> Trial:
    with _hosting(case, cluster) as host:
        trial = run(case, host, subscribers=subscribers, wrap=wrap)
    return trial.raise_unless_passed()


@contextlib.contextmanager
def _hosting(case: Case, cluster: RankHost | None) -> Generator[RankHost | None]:
    if cluster is not None or case.channel == "inline":
        yield cluster
        return
    from aner_nb.launch import local_cluster

    with local_cluster([str(placement) for placement in case.placements]) as own:
        yield own


def _fitted(trial: Trial) -> Fitted:
    assert trial.parameters is not None and trial.work is not None
    return Fitted(trial, trial.parameters, trial.work)
