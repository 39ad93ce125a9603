"""Sources, fingerprints, splits, normalization and prepared data, each against values known otherwise."""

import hashlib
import pickle
import re
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.datasets import load_digits, load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

from aner_nb import sources
from aner_nb.counter import words
from aner_nb.data import (
    DataSpec,
    arrays,
    data_from_record,
    digits,
    fingerprint,
    iris,
    load,
    prepare,
    teacher,
)
from aner_nb.errors import CaseError
from aner_nb.normalization import fit_normalization
from aner_nb.sources import Source, make_source
from aner_nb.splits import Split, split

FEATURES = np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]])
LABELS = np.array([0, 1, 0, 1])


def parts(divided: Split) -> dict[str, np.ndarray]:
    return {"train": divided.train, "validation": divided.validation, "test": divided.test}


def classified(labels: Any) -> Source:
    targets = np.asarray(labels, dtype=np.int64)
    names = tuple(map(str, range(int(targets.max()) + 1)))
    return make_source(np.arange(len(targets), dtype=np.float64)[:, None], targets, names)


# ---------------------------------------------------------------- shipped data


def test_iris_equals_scikit_learns_copy() -> None:
    source, other = load(iris()), cast("Any", load_iris())
    np.testing.assert_array_equal(source.features, other.data)
    np.testing.assert_array_equal(source.targets, other.target)
    assert source.class_names == tuple(other.target_names) == ("setosa", "versicolor", "virginica")
    assert (source.task, source.class_count) == ("classification", 3)
    assert (source.features.dtype, source.targets.dtype) == (np.float64, np.int64)


def test_digits_equal_scikit_learns_copy() -> None:
    source, other = load(digits()), cast("Any", load_digits())
    np.testing.assert_array_equal(source.features, other.data)
    np.testing.assert_array_equal(source.targets, other.target)
    assert source.class_names == tuple("0123456789")


@pytest.mark.parametrize(
    ("spec", "digest"),
    [
        (iris(), "4f5250c7f7a15f80d243b914c6d881e4f88b56776f66d009e83cbe915b23e2a3"),
        (digits(), "172c853313a35c2a35ae45ee87937cba901a6ec1264460d664aa9a1e81cef22e"),
        (teacher(500, 20, 4, seed=7), "560ea435dfc0b948121cf058dfe30e5c6b05dfc7566aba81185c934f0c12629b"),
        (
            teacher(1001, 33, 10, seed=2, hidden=8, label_noise=0.1),
            "76170c70805a5811c0abfd1cd6fe57283293c8be204a68cd4c2b4a8ea7bc4f39",
        ),
    ],
    ids=["iris", "digits", "teacher", "noisy teacher"],
)
def test_the_bytes_of_a_source_are_pinned(spec: DataSpec, digest: str) -> None:
    assert load(spec).fingerprint == digest


def test_the_readme_of_the_data_files_states_their_digests() -> None:
    folder = Path(sources.__file__).parent / "fixtures"
    stated = dict(re.findall(r"\| `(\S+)` \|.*`([0-9a-f]{64})`", (folder / "README.md").read_text("utf-8")))
    assert stated == {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in ("iris.csv", "digits.npy")
    }


@pytest.mark.parametrize(("content", "state"), [(b"5.1,3.5,1.4,0.2,setosa\n", "altered"), (None, "missing")])
def test_an_altered_or_missing_data_file_is_refused(
    content: bytes | None, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fixtures").mkdir()
    if content is not None:
        (tmp_path / "fixtures" / "iris.csv").write_bytes(content)

    def files(_: str) -> Path:
        return tmp_path

    monkeypatch.setattr(sources.resources, "files", files)
    with pytest.raises(CaseError, match=f"iris.csv: the data file that came with aner_nb is {state}"):
        load(iris())


def test_a_source_cannot_be_written_to() -> None:
    source = load(iris())
    with pytest.raises(ValueError, match="read-only"):
        source.features[0, 0] = 9.0


# ---------------------------------------------------------------- teacher


def integer_teacher(
    rows: int, features: int, classes: int, seed: int, hidden: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return a teacher's features in units of 2**-6 and its labels, in int64 arithmetic alone."""

    def small(stream: str, *shape: int) -> np.ndarray:
        count = int(np.prod(shape))
        drawn = words(seed, stream, -(-count // 8)).astype("<u8").tobytes()
        return np.frombuffer(drawn, np.int8)[:count].reshape(shape).astype(np.int64)

    factors = small("teacher factors", rows, 16, 4).sum(axis=2)
    noise = small("teacher noise", rows, features) >> 2
    inputs = (factors @ small("teacher mixing", 16, features) >> 9) + noise
    active = np.maximum(inputs @ small("teacher layer 1", features, hidden), 0) >> 4
    outputs = active @ small("teacher layer 2", hidden, classes)
    return inputs, (outputs - np.sort(outputs, axis=0)[(rows - 1) // 2]).argmax(axis=1)


@pytest.mark.parametrize("size", [(700, 300, 5), (9000, 3, 2), (13, 1, 13)])
def test_the_teachers_float_arithmetic_is_exact(size: tuple[int, int, int]) -> None:
    source = load(teacher(*size, seed=4, hidden=17))
    inputs, labels = integer_teacher(*size, seed=4, hidden=17)
    np.testing.assert_array_equal(source.features * 64, inputs)
    np.testing.assert_array_equal(source.targets, labels)


def test_a_teachers_classes_are_of_comparable_size() -> None:
    counts = np.bincount(load(teacher(4000, 50, 5, seed=1)).targets.astype(np.int64))
    assert len(counts) == 5
    assert counts.min() > 4000 / 5 / 3


@pytest.mark.filterwarnings(f"ignore::{ConvergenceWarning.__module__}.{ConvergenceWarning.__name__}")
def test_a_small_network_learns_what_the_teacher_says() -> None:
    source = load(teacher(2000, 20, 4))
    data = prepare(source, split(source), dtype="float64")
    network = MLPClassifier((32,), max_iter=30, random_state=0).fit(data.train.features, data.train.targets)
    assert network.score(data.test.features, data.test.targets) > 0.6  # chance: 0.25


def test_label_noise_replaces_exactly_that_fraction_of_labels_by_others() -> None:
    clean, noisy = load(teacher(1000, 8, 4)), load(teacher(1000, 8, 4, label_noise=0.25))
    np.testing.assert_array_equal(clean.features, noisy.features)
    assert int((clean.targets != noisy.targets).sum()) == 250
    assert noisy.targets.min() == 0
    assert noisy.targets.max() == 3


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"rows": 3}, r"data.rows: 3 is not a whole number from 4 to 134,217,728. A teacher has at least"),
        ({"rows": 2**40}, "data.rows: 1099511627776 is not a whole number from 4 to"),
        ({"rows": 10.0}, "data.rows: 10.0 is not a whole number"),
        ({"rows": "many"}, "data.rows: 'many' is not a whole number"),
        ({"features": 0}, "data.features: 0 is not a whole number from 1 to 65,536"),
        ({"classes": 1}, "data.classes: 1 is not a whole number from 2 to 4,096"),
        ({"classes": True}, "data.classes: True is not a whole number"),
        ({"seed": -1}, "data.seed: -1 is not a whole number"),
        ({"hidden": 5000}, "data.hidden: 5000 is not a whole number from 1 to 4,096"),
        ({"label_noise": 1.5}, "data.label_noise: 1.5 is not a fraction from 0 to 1. Give the share"),
        ({"label_noise": float("nan")}, "data.label_noise: nan is not a fraction"),
        ({"label_noise": "0.1"}, "data.label_noise: '0.1' is not a fraction"),
    ],
)
def test_a_teacher_out_of_range_is_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CaseError, match=sentence):
        teacher(**{"rows": 100, "features": 8, "classes": 4, **change})


# ---------------------------------------------------------------- records


@pytest.mark.parametrize("spec", [iris(), digits(), teacher(100, 8, 4, seed=3, label_noise=0.5)])
def test_a_record_gives_the_description_back(spec: DataSpec) -> None:
    assert data_from_record(spec.to_record()) == spec
    assert hash(data_from_record(spec.to_record())) == hash(spec)


def test_records_are_plain_values() -> None:
    assert data_from_record("iris").to_record() == {"source": "iris"}
    made = teacher(np.int64(100), 8, 4, label_noise=0)  # pyright: ignore[reportArgumentType]
    assert repr(made.to_record()) == (
        "{'source': 'teacher', 'rows': 100, 'features': 8, 'classes': 4, 'seed': 0, 'hidden': 32, "
        "'label_noise': 0.0}"
    )
    record = arrays(FEATURES.astype(np.float32), LABELS, name="mine").to_record()
    assert record == {
        "source": "arrays",
        "name": "mine",
        "rows": 4,
        "features": 2,
        "classes": 2,
        "features_dtype": "float32",
        "targets_dtype": "int64",
        "sha256": fingerprint(FEATURES.astype(np.float32), LABELS),
    }
    assert arrays(FEATURES, FEATURES[:, 0]).to_record()["outputs"] == 1


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        ("mnist", "here.source: 'mnist' is not a source of data. Write source: iris or digits or teacher"),
        ({"rows": 3}, "here.source: None is not a source of data"),
        ({"source": ["iris"]}, r"here.source: \['iris'\] is not a source of data"),
        (7, "here.source: 7 is not a source of data"),
        ({"source": "iris", "rows": 3}, "here: unknown field 'rows'. iris knows no other field"),
        ({"source": "teacher", "rows": 9, "row": 3}, "here: unknown field 'row'. teacher knows rows, feat"),
        ("teacher", "here: the field 'rows' is missing. teacher knows rows, features, classes"),
        ({"source": "teacher", "rows": 9, "features": 2}, "here: the field 'classes' is missing"),
        (
            {"source": "teacher", "rows": "9", "features": 2, "classes": 2},
            "here.rows: '9' is not a whole number from 2",
        ),
        ({"source": "arrays"}, r"here: arrays live in the program that gave them.*arrays\(features, targets"),
    ],
)
def test_a_bad_record_is_refused_with_one_sentence(record: object, sentence: str) -> None:
    with pytest.raises(CaseError, match=sentence):
        data_from_record(record, where="here")


# ---------------------------------------------------------------- arrays


def test_arrays_are_taken_without_a_copy_and_read_only() -> None:
    spec = arrays(FEATURES, LABELS)
    source = load(spec)
    assert np.shares_memory(spec.features, FEATURES)
    assert np.shares_memory(source.features, FEATURES)
    assert not source.features.flags.writeable
    assert FEATURES.flags.writeable


def test_arrays_are_equal_if_their_content_is() -> None:
    assert arrays(FEATURES, LABELS) == arrays(FEATURES.copy(), LABELS.tolist())
    assert len({arrays(FEATURES, LABELS), arrays(FEATURES.copy(), LABELS)}) == 1
    assert arrays(FEATURES, LABELS) != arrays(FEATURES + 1, LABELS)
    assert arrays(FEATURES, LABELS) != arrays(FEATURES, LABELS, name="other")
    assert pickle.loads(pickle.dumps(arrays(FEATURES, LABELS))) == arrays(FEATURES, LABELS)


def test_labels_give_the_classes_and_names_may_add_some() -> None:
    assert load(arrays(FEATURES, LABELS.astype(np.uint8))).class_names == ("0", "1")
    assert load(arrays(FEATURES, LABELS == 1)).class_count == 2
    named = load(arrays(FEATURES, LABELS, class_names=["a", "b", "c"]))
    assert (named.class_count, named.class_names) == (3, ("a", "b", "c"))
    assert named.targets.dtype == np.int64


def test_float_targets_are_a_regression() -> None:
    one = load(arrays(FEATURES, np.array([1, 2, 3, 4], dtype=np.float32)))
    assert (one.task, one.class_count, one.class_names) == ("regression", 0, ())
    assert (one.targets.shape, one.targets.dtype) == ((4, 1), np.float64)
    assert load(arrays(FEATURES, FEATURES)).targets.shape == (4, 2)


def test_arrays_that_changed_since_they_were_described_are_refused() -> None:
    features = FEATURES.copy()
    spec = arrays(features, LABELS)
    features[0, 0] = 99.0
    with pytest.raises(CaseError, match=r"data 'arrays': the arrays changed after they were described. Desc"):
        load(spec)


def bad_at(row: int, column: int, value: float) -> np.ndarray:
    features = np.zeros((2000, 3))
    features[row:, column] = value
    return features


@pytest.mark.parametrize(
    ("features", "targets", "sentence"),
    [
        (bad_at(7, 2, np.nan), LABELS, "data.features: the value in row 7, column 2 is nan. Remove the row"),
        (bad_at(1500, 0, -np.inf), LABELS, "data.features: the value in row 1500, column 0 is -inf"),
        (FEATURES, [0.0, 1.0, np.inf, 2.0], "data.targets: the value in row 2 is inf"),
        (FEATURES[:, 0], LABELS, r"data.features: the shape \(4,\) is not \(rows, features\). Use reshape"),
        (FEATURES, np.zeros((4, 1, 1)), r"data.targets: the shape \(4, 1, 1\) is not \(rows,\) or"),
        (FEATURES[:0], LABELS[:0], r"data.features: the shape \(0, 2\) holds no values"),
        (FEATURES[:, :0], LABELS, r"data.features: the shape \(4, 0\) holds no values"),
        (FEATURES.astype(str), LABELS, "data.features: values of type <U32 are not numbers"),
        (FEATURES * 1j, LABELS, "data.features: values of type complex128 are not numbers"),
        (FEATURES, ["a", "b", "a", "b"], "data.targets: values of type <U1 are not numbers. .*numpy.unique"),
        (FEATURES, LABELS[:3], "data.targets: 3 targets do not fit 4 rows of features. Give one target"),
        (FEATURES, LABELS - 1, "data.targets: the label -1 in row 0 is not from 0 to 65,535"),
        (FEATURES, LABELS * 100_000, "data.targets: the label 100000 in row 1 is not from 0 to 65,535"),
        (FEATURES, np.eye(4, dtype=int), "data.targets: whole-number targets of shape .* are neither labels"),
        (FEATURES, LABELS * 0, "data.targets: all rows have the one label 0"),
    ],
)
def test_bad_arrays_are_refused_with_one_sentence(features: Any, targets: Any, sentence: str) -> None:
    with pytest.raises(CaseError, match=sentence):
        arrays(features, targets)


@pytest.mark.parametrize(
    ("targets", "options", "sentence"),
    [
        (LABELS + 1, {"class_names": ["a", "b"]}, "data.targets: the label 2 in row 1 is not from 0 to 1."),
        (FEATURES, {"class_names": ["a"]}, "data.targets: float targets are a regression, which has no cla"),
        (LABELS, {"class_names": ["a", 2]}, "data: a name is not a text"),
        (LABELS, {"name": ""}, "data: a name is not a text"),
    ],
)
def test_bad_names_are_refused(targets: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CaseError, match=sentence):
        arrays(FEATURES, targets, **options)


# ---------------------------------------------------------------- fingerprint

any_array = hnp.arrays(
    st.sampled_from([np.float64, np.float32, np.int64, np.int32, np.uint8, np.bool_]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
)


def test_a_fingerprint_is_the_sha256_of_one_line_and_the_little_endian_values() -> None:
    expected = hashlib.sha256(b"int32 2x1\n\x01\0\0\0\x02\0\0\0" + b"float64 \n" + bytes(6) + b"\xf0\x3f")
    given_ = (np.array([[1], [2]], dtype=np.int32), np.array(1.0))
    assert fingerprint(*given_) == expected.hexdigest()


@given(any_array)
def test_byte_order_and_memory_layout_do_not_change_a_fingerprint(array: np.ndarray) -> None:
    expected = fingerprint(array)
    assert fingerprint(array.astype(array.dtype.newbyteorder(">"))) == expected
    assert fingerprint(array.copy(order="F")) == expected
    assert fingerprint(np.repeat(array[..., None], 2, axis=-1)[..., 0]) == expected


@given(any_array, any_array)
def test_fingerprints_are_equal_only_for_equal_arrays(left: np.ndarray, right: np.ndarray) -> None:
    same = (left.dtype, left.shape, left.tobytes()) == (right.dtype, right.shape, right.tobytes())
    assert (fingerprint(left) == fingerprint(right)) == same


def test_type_shape_order_and_count_of_arrays_are_part_of_a_fingerprint() -> None:
    a, b = np.zeros(4), np.ones(4)
    variants = [(a,), (a, b), (b, a), (a.reshape(2, 2),), (a.view(np.int64),), (np.zeros(8),), (a, a), ()]
    assert len({fingerprint(*variant) for variant in variants}) == len(variants)


def test_a_fingerprint_of_selected_rows_equals_that_of_their_copy() -> None:
    values = np.asfortranarray(np.arange(600_000, dtype=np.float64).reshape(3000, 200))
    rows = np.arange(2999, -1, -2)
    assert fingerprint(values, values[:, 0], rows=rows) == fingerprint(values[rows], values[rows, 0])


def test_objects_have_no_fingerprint() -> None:
    with pytest.raises(CaseError, match="values of type object have no fingerprint"):
        fingerprint(np.array([object()]))


# ---------------------------------------------------------------- split


def test_iris_is_divided_90_30_30_and_each_species_30_10_10() -> None:
    source = load(iris())
    for seed in range(5):
        divided = split(source, seed=seed)
        counts = {name: np.bincount(source.targets[rows]).tolist() for name, rows in parts(divided).items()}
        assert counts == {"train": [30] * 3, "validation": [10] * 3, "test": [10] * 3}


def test_a_split_is_pinned_to_the_row() -> None:
    divided = split(load(iris()), seed=0)
    assert divided.test.tolist() == [
        3,
        17,
        20,
        22,
        30,
        37,
        38,
        45,
        46,
        48,
        50,
        51,
        54,
        58,
        59,
        64,
        65,
        73,
        96,
        98,
        100,
        102,
        103,
        106,
        109,
        111,
        117,
        118,
        122,
        128,
    ]


@settings(max_examples=200)
@given(
    st.lists(st.integers(0, 6), min_size=8, max_size=120),
    st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9)),
    st.integers(0, 2**53 - 1),
)
def test_a_split_has_exact_totals_no_overlap_and_fair_classes(
    labels: list[int], weights: tuple[int, int, int], seed: int
) -> None:
    source, total = classified([*labels, 1]), sum(weights)
    fractions = [weight / total for weight in weights]
    rows = len(source.targets)
    assume(min(fractions) * rows >= 1)
    divided = parts(split(source, fractions, seed=seed))
    together = np.concatenate(list(divided.values()))
    assert sorted(together.tolist()) == list(range(rows))
    for (_, chosen), weight, fraction in zip(divided.items(), weights, fractions, strict=True):
        assert chosen.dtype == np.int64
        assert np.all(np.diff(chosen) > 0)
        assert len(chosen) in (rows * weight // total, rows * weight // total + 1)
        sizes = np.bincount(source.targets.astype(np.int64))
        shares = np.bincount(source.targets[chosen].astype(np.int64), minlength=len(sizes))
        assert np.all(np.abs(shares - sizes * fraction) <= 2)


@pytest.mark.parametrize(
    ("rows", "fractions", "counts"),
    [
        (10, (0.6, 0.2, 0.2), [6, 2, 2]),
        (11, (0.6, 0.2, 0.2), [7, 2, 2]),  # 6.6, 2.2, 2.2
        (13, (0.6, 0.2, 0.2), [8, 3, 2]),  # 7.8, 2.6, 2.6: the tie goes to validation
        (7, (1 / 3, 1 / 3, 1 / 3), [3, 2, 2]),
        (1000, (0.7, 0.15, 0.15), [700, 150, 150]),  # 0.7 * 1000 is not 700 in every floating-point sum
    ],
)
def test_totals_are_rounded_by_largest_remainder(
    rows: int, fractions: tuple[float, float, float], counts: list[int]
) -> None:
    numbers = make_source(np.zeros((rows, 1)), np.zeros((rows, 1)))
    assert [len(part) for part in parts(split(numbers, fractions)).values()] == counts
    same = classified([0] * (rows - 2) + [1, 1])
    assert [len(part) for part in parts(split(same, fractions)).values()] == counts


def test_a_small_class_is_trained_on_first() -> None:
    labels = np.array([0] * 50 + [1] + [2] * 2 + [3] * 50)
    for seed in range(20):
        train = split(classified(labels), seed=seed).train
        assert set(labels[train].tolist()) == {0, 1, 2, 3}


def test_the_seed_chooses_the_rows() -> None:
    source = load(iris())
    np.testing.assert_array_equal(split(source, seed=1).train, split(source, seed=1).train)
    assert split(source, seed=1).train.tolist() != split(source, seed=2).train.tolist()


@pytest.mark.parametrize(
    ("rows", "fractions", "sentence"),
    [
        (2, (0.6, 0.2, 0.2), "split: 2 rows leave none for test. Give more rows or a larger fraction"),
        (4, (0.1, 0.2, 0.7), "split: 4 rows leave none for train"),
        (9, (0.5, 0.5), r"split: \(0.5, 0.5\) does not divide the rows. Give three positive fractions"),
        (9, (1.0, 0.0, 0.0), r"split: \(1.0, 0.0, 0.0\) does not divide the rows"),
        (9, (0.6, 0.3, 0.2), "does not divide the rows"),
        (9, (0.6, float("nan"), 0.2), "does not divide the rows"),
    ],
)
def test_a_split_that_leaves_a_part_empty_is_refused(
    rows: int, fractions: tuple[float, ...], sentence: str
) -> None:
    with pytest.raises(CaseError, match=sentence):
        split(classified([0, 1] * (rows // 2) + [0] * (rows % 2)), fractions)


# ---------------------------------------------------------------- normalization


def test_normalization_is_mean_and_population_deviation() -> None:
    fitted = fit_normalization(np.array([[1.0, 5.0, 0.1], [3.0, 5.0, 0.1], [8.0, 5.0, 0.1]]))
    assert fitted.mean.tolist() == [4.0, 5.0, 0.1]
    assert fitted.scale.tolist() == [np.sqrt(26 / 3), 1.0, 1.0]
    applied = fitted.apply(np.array([[4.0, 6.0, 0.1]], dtype=np.float32))
    assert applied.dtype == np.float64
    assert applied[0, :2].tolist() == [0.0, 1.0]


def test_normalization_agrees_with_numpy_over_many_rows() -> None:
    features = load(digits()).features
    fitted = fit_normalization(features)
    np.testing.assert_allclose(fitted.mean, features.mean(axis=0), rtol=1e-14)
    deviation = features.std(axis=0)
    np.testing.assert_allclose(fitted.scale, np.where(deviation == 0, 1, deviation), rtol=1e-13)
    assert (
        fingerprint(fitted.mean, fitted.scale)
        == "eb8321e78aeabebbcdb31750da0e6f5e21f07c28631b40106b7333b0e1da2fdf"
    )


def test_memory_layout_and_selection_do_not_change_a_normalization() -> None:
    features = load(iris()).features
    rows = np.arange(0, 150, 2)
    expected = fit_normalization(features[rows])
    for fitted in (fit_normalization(features, rows), fit_normalization(np.asfortranarray(features[rows]))):
        assert fingerprint(fitted.mean, fitted.scale) == fingerprint(expected.mean, expected.scale)


def test_a_constant_column_keeps_its_exact_value_as_mean() -> None:
    fitted = fit_normalization(np.full((1000, 1), 0.1))
    assert (fitted.mean.item(), fitted.scale.item()) == (0.1, 1.0)


def test_a_column_beyond_float64_cannot_be_normalized() -> None:
    with pytest.raises(CaseError, match=r"data.features: the values of column 1 are too large to normalize"):
        fit_normalization(np.array([[0.0, 1e308], [1.0, 1.5e308]]))


# ---------------------------------------------------------------- prepare


def test_prepared_iris_has_the_shapes_and_types_that_travel() -> None:
    source = load(iris())
    divided = split(source)
    data = prepare(source, divided, dtype="float32")
    assert (data.train.features.shape, data.train.features.dtype) == ((90, 4), np.float32)
    assert data.train.features.flags.c_contiguous
    assert data.train.targets.dtype == data.test.targets.dtype == np.int32
    assert (data.validation.features.shape, data.validation.features.dtype) == ((30, 4), np.float64)
    assert (data.task, data.outputs, data.class_count) == ("classification", 3, 3)
    assert data.class_names == ("setosa", "versicolor", "virginica")
    np.testing.assert_array_equal(data.test.targets, source.targets[divided.test])
    np.testing.assert_allclose(data.train.features.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(data.train.features.std(axis=0), 1, atol=1e-6)
    expected = data.normalization.apply(source.features[divided.test])
    np.testing.assert_array_equal(data.test.features, expected)


def test_the_type_changes_neither_fingerprints_nor_what_is_evaluated() -> None:
    source = load(digits())
    single, double = (prepare(source, split(source), dtype=dtype) for dtype in ("float32", "float64"))
    assert single.fingerprints == double.fingerprints
    np.testing.assert_array_equal(single.validation.features, double.validation.features)
    np.testing.assert_array_equal(single.train.features, double.train.features.astype(np.float32))


def test_fingerprints_are_of_the_raw_rows() -> None:
    source = load(iris())
    divided = split(source)
    raw = prepare(source, divided, dtype="float32", normalize=False)
    assert raw.fingerprints == prepare(source, divided, dtype="float32").fingerprints
    assert list(raw.fingerprints) == ["source", "train", "validation", "test"]
    assert raw.fingerprints["source"] == fingerprint(source.features, source.targets)
    for name, rows in parts(divided).items():
        assert raw.fingerprints[name] == fingerprint(source.features[rows], source.targets[rows])


def test_without_normalization_the_rows_are_as_they_were() -> None:
    source = load(iris())
    divided = split(source)
    data = prepare(source, divided, dtype="float64", normalize=False)
    np.testing.assert_array_equal(data.train.features, source.features[divided.train])
    assert set(data.normalization.scale.tolist()) == {1.0}


@pytest.mark.parametrize("part", ["validation", "test"])
def test_validation_and_test_rows_have_no_influence_on_training_rows(part: str) -> None:
    source = load(iris())
    divided = split(source)
    changed = source.features.copy()
    changed[parts(divided)[part]] *= 1000
    before = prepare(source, divided, dtype="float32")
    other = make_source(changed, source.targets, source.class_names)
    after = prepare(other, divided, dtype="float32")
    np.testing.assert_array_equal(before.train.features, after.train.features)
    np.testing.assert_array_equal(before.normalization.mean, after.normalization.mean)
    np.testing.assert_array_equal(before.normalization.scale, after.normalization.scale)
    assert before.fingerprints["train"] == after.fingerprints["train"]
    assert before.fingerprints[part] != after.fingerprints[part]


def test_regression_targets_keep_their_columns_and_take_the_type() -> None:
    features = np.arange(40.0).reshape(20, 2)
    source = load(arrays(features, features * 0.1))
    data = prepare(source, split(source, seed=1), dtype="float32")
    assert (data.outputs, data.class_count, data.task) == (2, 0, "regression")
    assert data.train.targets.dtype == np.float32
    assert data.test.targets.dtype == np.float64
    np.testing.assert_array_equal(data.test.targets, source.targets[split(source, seed=1).test])


@pytest.mark.parametrize("column", ["features", "targets"])
def test_a_value_beyond_float32_is_refused_with_its_place(column: str) -> None:
    values = {"features": np.zeros((10, 2)), "targets": np.zeros((10, 2))}
    values[column][:, 1] = 1e39
    source = load(arrays(values["features"], values["targets"]))
    first = split(source).train[0]
    with pytest.raises(
        CaseError, match=f"data.{column}: the value in row {first}, column 1 is beyond float32"
    ):
        prepare(source, split(source), dtype="float32", normalize=False)
    prepare(source, split(source), dtype="float64", normalize=False)
