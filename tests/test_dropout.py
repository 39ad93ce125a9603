"""Dropout and layer normalization: masks, gradients, Keras's values, every backend, groups, resuming."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import aner_nb as aner
from aner_nb.backends.base import Partition
from aner_nb.backends.numpy import NumpyGradientFunction
from aner_nb.case import Placement, case_from_record
from aner_nb.channels.shared_memory import aligned_wire
from aner_nb.collectives.base import AbstractCollective, Exchange
from aner_nb.counter import words, words_at
from aner_nb.dropout import Masks, RowMasks, make_masks
from aner_nb.durability import Durability
from aner_nb.errors import CaseError, RankLost
from aner_nb.layers import Dense, Dropout, LayerNorm
from aner_nb.model import Model, forward, gradient_sum, operations
from aner_nb.network import evaluate
from aner_nb.plan import Update
from aner_nb.ranks import open_inline_ranks

LOSSES = ("softmax_cross_entropy", "mean_squared_error")
STACKS: dict[str, tuple[Any, ...]] = {
    "dropout": (Dense(8, "tanh"), Dropout(0.25), Dense(4, "linear")),
    "norm": (Dense(8, "tanh"), LayerNorm(0.5), Dense(4, "linear")),
    "both": (
        Dropout(0.5),
        Dense(8, "sigmoid"),
        LayerNorm(),
        Dropout(0.25),
        Dense(5, "tanh"),
        Dense(4, "linear"),
    ),
    "first": (LayerNorm(), Dense(4, "linear")),
}
ROWS = 21


def example(stack: str, loss: str = LOSSES[0], dtype: str = "float64") -> tuple[Model, Partition, np.ndarray]:
    random = np.random.default_rng(3)
    model = Model(6, STACKS[stack], loss)  # type: ignore[arg-type]
    features = random.standard_normal((ROWS, 6)).astype(dtype)
    targets = (
        random.integers(0, 4, ROWS).astype(np.int32)
        if loss == LOSSES[0]
        else random.standard_normal((ROWS, 4)).astype(dtype)
    )
    wire = aligned_wire(model.layout.size, dtype)
    wire[:] = model.initial(1) + 0.1 * random.standard_normal(wire.size)
    return model, Partition(features, targets), wire


def row_masks(model: Model, rows: np.ndarray | None = None) -> RowMasks | None:
    masks = make_masks(model.layers, model.features, 5)
    return RowMasks(masks, np.arange(100, 100 + ROWS) if rows is None else rows) if masks else None


# ---------------------------------------------------------------- masks


@given(st.lists(st.integers(0, 2**40), max_size=9), st.integers(1, 9), st.integers(0, 9))
def test_words_of_rows_are_those_of_the_stream(rows: list[int], width: int, seed: int) -> None:
    found = words_at(seed, "s", np.array(rows, np.int64), width)
    expected = [words(seed, "s", width, row * width) for row in rows]
    assert found.tolist() == [line.tolist() for line in expected]


def test_words_do_not_depend_on_how_they_are_cut() -> None:
    rows = np.random.default_rng(0).permutation(30_000)[:9000]
    whole = words_at(1, "s", rows, 3)
    np.testing.assert_array_equal(whole[4000:4100], words_at(1, "s", rows[4000:4100], 3))


@given(st.lists(st.integers(0, 999), min_size=1, unique=True), st.integers(0, 50), st.data())
def test_a_row_has_its_mask_in_whatever_company(rows: list[int], update: int, data: st.DataObject) -> None:
    masks = Masks(3, ((0, 6, 2**15), (2, 9, 2**14)))
    cut = data.draw(st.integers(0, len(rows)))
    numbers = np.array(rows, np.int64)
    whole = masks.draw(update, numbers)
    parts = [masks.draw(update, piece) for piece in (numbers[:cut], numbers[cut:])]
    for layer, mask in enumerate(whole):
        np.testing.assert_array_equal(mask, np.concatenate([part[layer] for part in parts]))


def by_hand(seed: int, place: int, update: int, row: int, unit: int, units: int) -> int:
    """Return the 16 bits of a unit, with Python's whole numbers alone."""
    digest = hashlib.sha256(f"{seed}/dropout of layer {place} in update {update}".encode()).digest()
    key, width, limit = int.from_bytes(digest[:8], "little"), -(-units // 4), 2**64
    state = (key + (row * width + unit // 4 + 1) * 0x9E3779B97F4A7C15) % limit
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % limit
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB % limit
    state ^= state >> 31
    return state >> (16 * (unit % 4)) & 0xFFFF


@pytest.mark.parametrize("units", [1, 4, 10])
def test_masks_are_the_same_everywhere(units: int) -> None:
    rows = [0, 5, 2**35]
    (mask,) = Masks(3, ((1, units, 2**14),)).draw(7, np.array(rows))
    assert mask.tolist() == [
        [by_hand(3, 1, 7, row, unit, units) >= 2**14 for unit in range(units)] for row in rows
    ]


def test_units_are_kept_at_their_rate_and_apart() -> None:
    (large,) = Masks(0, ((0, 401, 2**14),)).draw(0, np.arange(2000))
    share = large.mean()
    assert abs(share - 0.75) < 4 * (0.75 * 0.25 / large.size) ** 0.5
    assert np.abs(large.mean(axis=0) - 0.75).max() < 5 * (0.75 * 0.25 / 2000) ** 0.5
    pairs = (large[:, :-1] & large[:, 1:]).mean()
    assert abs(pairs - 0.75**2) < 0.003


def test_updates_layers_and_seeds_draw_apart() -> None:
    rows = np.arange(50)
    drawn = [
        Masks(seed, ((layer, 40, 2**15),)).draw(update, rows)[0]
        for seed, layer, update in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))
    ]
    for index, one in enumerate(drawn):
        for other in drawn[:index]:
            assert abs((one == other).mean() - 0.5) < 0.06


@pytest.mark.parametrize(("rate", "dropped"), [(0.0, 0), (0.25, 2**14), (1 - 2**-20, 2**16 - 1)])
def test_units_keep_their_mean(rate: float, dropped: int) -> None:
    layer = Dropout(rate)
    assert layer.dropped == dropped
    assert layer.scale * (2**16 - dropped) / 2**16 == 1.0


def test_a_stack_that_drops_nothing_draws_nothing() -> None:
    assert make_masks(STACKS["norm"], 6, 0) is None
    masks = make_masks(STACKS["both"], 6, 4)
    assert masks == Masks(4, ((0, 6, 2**15), (3, 8, 2**14)))


# ---------------------------------------------------------------- gradients


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("stack", STACKS)
def test_gradients_match_central_differences(stack: str, loss: str) -> None:
    model, part, wire = example(stack, loss)
    draw = row_masks(model)
    masks = draw(2, (0, ROWS)) if draw else ()
    gradient, unused = np.empty(wire.size), np.empty(wire.size)
    gradient_sum(model, wire, part.features, part.targets, gradient, masks)
    for index in range(wire.size):
        ends = []
        for step in (1e-6, -1e-6):
            moved = wire.copy()
            moved[index] += step
            ends.append(gradient_sum(model, moved, part.features, part.targets, unused, masks))
        assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(gradient[index], rel=1e-5, abs=1e-6)


@pytest.mark.tensorflow
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize(
    ("dtype", "tolerance", "resident"), [("float64", 1e-12, False), ("float32", 2e-5, True)]
)
def test_tensorflow_computes_the_references_gradients(
    stack: str, loss: str, dtype: str, tolerance: float, resident: bool
) -> None:
    from aner_nb.backends.tensorflow import TensorflowGradientFunction

    model, part, wire = example(stack, loss, dtype)
    draw, blocks = row_masks(model), [(0, 16), (16, ROWS), (3, 3)]
    theirs = TensorflowGradientFunction(
        model, part, Placement.parse("cpu:1"), blocks=blocks, resident=resident, draw=draw
    )
    own = NumpyGradientFunction(model, part, draw)
    out, expected = np.empty(wire.size), np.empty(wire.size)
    losses = []
    for update in (0, 5):
        for block in blocks:
            found = theirs(wire, block, out, update)
            reference = own(wire, block, expected, update)
            np.testing.assert_allclose(out, expected, rtol=tolerance, atol=tolerance * 20)
            assert found.loss_sum == pytest.approx(reference.loss_sum, rel=1e-5, abs=1e-9)
            losses.append(found.loss_sum)
    assert (losses[0] != losses[3]) == (draw is not None)
    assert theirs.trace_count == 1
    assert theirs.proof.produced_on == ("CPU:0",)
    theirs.close()


@pytest.mark.tensorflow
def test_normalization_is_that_of_keras() -> None:
    import keras

    random = np.random.default_rng(0)
    features = random.standard_normal((9, 6)) * 3 + 1
    layer = keras.layers.LayerNormalization(epsilon=0.25, dtype="float64")
    layer.build((None, 6))
    model = Model(6, (LayerNorm(0.25), Dense(6, "linear")), "mean_squared_error")
    vector = model.initial(0)
    gamma, beta = model.layout.views(vector)[:2]
    gamma[:], beta[:] = random.standard_normal((2, 6))
    layer.set_weights([gamma, beta])
    ours = forward(model, vector, features)[1]
    np.testing.assert_allclose(ours, np.asarray(layer(features)), rtol=1e-12, atol=1e-12)


def test_evaluation_drops_nothing() -> None:
    model, part, wire = example("dropout")
    plain = Model(6, (STACKS["dropout"][0], STACKS["dropout"][2]), LOSSES[0])  # type: ignore[arg-type]
    assert evaluate(model, wire, part.features, part.targets) == evaluate(
        plain, wire, part.features, part.targets
    )


def test_weights_begin_alike_with_other_layers_between() -> None:
    plain = Model(6, (Dense(8, "tanh"), Dense(4, "linear")), LOSSES[0])  # type: ignore[arg-type]
    np.testing.assert_array_equal(Model(6, STACKS["dropout"], LOSSES[0]).initial(3), plain.initial(3))  # type: ignore[arg-type]
    model = Model(6, STACKS["norm"], LOSSES[0])  # type: ignore[arg-type]
    views = model.layout.views(model.initial(3))
    assert (views[2].tolist(), views[3].tolist()) == ([1.0] * 8, [0.0] * 8)
    np.testing.assert_array_equal(views[4], plain.layout.views(plain.initial(3))[2])


def test_a_gradient_without_its_masks_is_an_error() -> None:
    model, part, wire = example("dropout")
    with pytest.raises(ValueError, match="shorter"):
        gradient_sum(model, wire, part.features, part.targets, np.empty(wire.size))


def test_the_reference_graph_names_the_layers() -> None:
    names = operations(Model(6, STACKS["both"], LOSSES[0]))  # type: ignore[arg-type]
    assert [name for name in names if name.startswith(("dropout", "layer"))] == [
        "dropout_0",
        "layer_norm_2",
        "dropout_3",
        "dropout_3/gradient",
        "layer_norm_2/gradient",
        "dropout_0/gradient",
    ]


# ---------------------------------------------------------------- whole trials

ALL: dict[str, Any] = {
    "name": "all",
    "data": {"source": "iris"},
    "layers": [
        {"units": 16, "l2": 0.001},
        {"kind": "layer_norm"},
        {"kind": "dropout", "rate": 0.25},
        {"units": 8, "activation": "tanh"},
        {"kind": "dropout", "rate": 0.1},
        3,
    ],
    "dtype": "float64",
    "batch": 32,
    "epochs": 12,
    "seed": 3,
    "optimizer": {
        "kind": "adamw",
        "learning_rate": {
            "kind": "cosine_decay",
            "initial_learning_rate": 0.0,
            "decay_steps": 30,
            "warmup_target": 0.05,
            "warmup_steps": 6,
        },
    },
    "clip_norm": 0.5,
    "class_weights": "balanced",
    "stop_early": {"patience": 6, "restore_best": True},
    "channel": "inline",
}
GROUPS = [["numpy", "numpy"], [["numpy", 1], ["numpy", 7]], [["numpy", 2], ["numpy", 1], ["numpy", 3]]]


def run(**changes: Any) -> aner.Trial:
    return aner.run(case_from_record({**ALL, "ranks": ["numpy"], **changes})).raise_unless_passed()


@pytest.mark.parametrize("ranks", GROUPS, ids=str)
def test_a_group_draws_what_standalone_draws(ranks: list[Any]) -> None:
    alone, group = run(), run(ranks=ranks)
    assert alone.parameters is not None
    assert alone.steps is not None
    assert group.steps is not None
    np.testing.assert_allclose(group.parameters, alone.parameters, rtol=0, atol=1e-10)
    np.testing.assert_allclose(group.steps.loss, alone.steps.loss, rtol=1e-10)
    assert group.receipt.stopping == alone.receipt.stopping


def test_other_masks_train_something_else() -> None:
    assert (
        run().receipt.fingerprints
        != run(layers=[{**ALL["layers"][0]}, *ALL["layers"][1:4], 3]).receipt.fingerprints
    )


@pytest.mark.parametrize("cut", [1, 3])
@pytest.mark.parametrize("every", ["epoch", 2])
def test_a_resumed_run_draws_what_it_would_have_drawn(tmp_path: Path, cut: int, every: Any) -> None:
    whole = run()
    case = case_from_record({**ALL, "ranks": ["numpy"]})
    asked = iter([False] * cut)
    durability = Durability(tmp_path / "state", every=every)
    assert aner.run(case, stop=lambda: next(asked, True), durability=durability).receipt.status == "cancelled"
    other = case_from_record({**ALL, "ranks": ["numpy"]})
    resumed = aner.run(other, durability=durability).raise_unless_passed()
    assert resumed.receipt.resumed_from > 0
    np.testing.assert_array_equal(resumed.parameters, whole.parameters)


class Losing:
    """Hosts ranks in this process, and no longer rank 1 when it is asked what is left."""

    def open_ranks(self, setups: Any, partitions: Any, *, channel: str, stop: Any) -> Any:
        return contextlib.nullcontext(open_inline_ranks(setups, partitions))

    def available(self, placements: Any) -> tuple[int, ...]:
        return tuple(rank for rank in range(len(placements)) if rank != 1)


class Breaking(AbstractCollective):
    """Loses a rank in one update."""

    def __init__(self, inner: AbstractCollective, lost: list[int]) -> None:
        self.wire, self._inner, self._lost = inner.wire, inner, lost

    @property
    def rank_count(self) -> int:
        return self._inner.rank_count

    def exchange(self, update: Update) -> Exchange:
        if update.index == 7 and not self._lost:
            self._lost.append(7)
            raise RankLost("the process is gone.", where="rank 1")
        return self._inner.exchange(update)


def test_ranks_that_go_on_after_a_loss_draw_what_would_have_been_drawn() -> None:
    lost: list[int] = []
    case = case_from_record({**ALL, "channel": "auto", "ranks": GROUPS[2]})
    trial = aner.run(
        case,
        Losing(),
        wrap=lambda inner, _work: Breaking(inner, lost),
        durability=Durability(on_loss="restart"),
    ).raise_unless_passed()
    assert [restart.update for restart in trial.receipt.restarts] == lost == [7]
    np.testing.assert_allclose(trial.parameters, run().parameters, rtol=0, atol=1e-10)


def test_the_developed_run_compares_with_the_same_masks() -> None:
    fields = {
        name: value for name, value in ALL.items() if name not in ("name", "data", "layers", "optimizer")
    }
    developed = aner.develop(
        aner.iris(),
        [16, aner.LayerNorm(), aner.Dropout(0.25), 3],
        **{**fields, "ranks": ["numpy", ("numpy", 2)], "epochs": 2, "stop_early": None},
    )
    assert max(update.gradient_difference for update in developed.updates) < 1e-13
    assert "dropout_2" in developed.operations


@pytest.mark.parametrize(
    "ranks", [["cpu:1"] * 2, [["cpu:1", 1], ["cpu:1", 7]], [["cpu:1", 2], ["cpu:1", 1], ["cpu:1", 3]]]
)
@pytest.mark.tensorflow
@pytest.mark.parametrize("channel", ["shared_memory", pytest.param("socket", marks=pytest.mark.long)])
def test_a_group_of_workers_trains_what_the_reference_trains(
    cluster: aner.Cluster, ranks: list[Any], channel: str
) -> None:
    alone = run()
    case = case_from_record({**ALL, "ranks": ranks, "channel": channel})
    group = aner.run(case, cluster).raise_unless_passed()
    assert alone.parameters is not None
    np.testing.assert_allclose(group.parameters, alone.parameters, rtol=0, atol=1e-9)
    assert group.receipt.stopping == alone.receipt.stopping
    assert {rank.trace_count for rank in group.receipt.ranks} == {1}


@pytest.mark.tensorflow
@pytest.mark.long
def test_weights_of_a_dropping_group_can_be_measured(cluster: aner.Cluster) -> None:
    case = case_from_record(
        {
            **ALL,
            "ranks": ["cpu:1", "cpu:1"],
            "channel": "auto",
            "balance": "auto",
            "epochs": 2,
            "stop_early": None,
        }
    )
    trial = aner.run(case, cluster).raise_unless_passed()
    np.testing.assert_allclose(trial.parameters, run(epochs=2, stop_early=None).parameters, rtol=0, atol=1e-9)


# ---------------------------------------------------------------- records


def test_the_record_of_all_of_it_comes_back() -> None:
    case = case_from_record({**ALL, "ranks": ["numpy"]})
    assert case_from_record(case.to_record()) == case
    layers = case.to_record()["layers"]
    assert layers[1:3] == [{"kind": "layer_norm", "epsilon": 0.001}, {"kind": "dropout", "rate": 0.25}]
    model = Model(6, STACKS["both"], LOSSES[0])  # type: ignore[arg-type]
    assert Model.from_record(model.to_record()) == model


@pytest.mark.parametrize(
    ("layers", "sentence"),
    [
        ([8, {"kind": "dropout", "rate": 1.0}, 3], r"case 'all': layers\[1\]\.rate: 1.0 is out of range"),
        ([8, {"kind": "dropout", "rate": -0.1}, 3], "rate: -0.1 is out of range"),
        ([8, {"kind": "dropout"}, 3], "dropout needs 'rate'"),
        ([8, {"kind": "layer_norm", "epsilon": 0}, 3], r"layers\[1\]\.epsilon: 0 is out of range"),
        ([8, {"kind": "batch_norm"}, 3], "names no layer. Give 'kind' as one of dropout, layer_norm"),
        ([8, 3, {"kind": "dropout", "rate": 0.5}], "the last layer is no Dense layer"),
    ],
)
def test_what_is_no_layer_is_refused(layers: list[Any], sentence: str) -> None:
    with pytest.raises(CaseError, match=sentence):
        case_from_record({**ALL, "layers": layers})
