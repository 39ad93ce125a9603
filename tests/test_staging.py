"""Rows larger than memory: the same as in memory, to the bit, whatever the files and the budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

import aner_nb as aner
from aner_nb.errors import CaseError
from aner_nb.facts import public_view
from aner_nb.file_rows import FileRows, RowsFile, write_rows
from aner_nb.plan import Plan
from aner_nb.sources import fingerprint
from aner_nb.staging import stage
from aner_nb.work import make_setups, make_work

parquet: Any = pytest.importorskip("pyarrow.parquet")
pyarrow: Any = pytest.importorskip("pyarrow")

ROWS, WIDTH = 3000, 5


def frame_of(rows: int = ROWS) -> pandas.DataFrame:
    generator = np.random.default_rng(5)
    values = generator.normal(size=(rows, WIDTH)).astype(np.float32)
    frame = pandas.DataFrame(values, columns=[f"secret-{index}" for index in range(WIDTH)])
    frame["secret-kind"] = np.where(values[:, 0] + values[:, 1] > 0, "Äpfel", "Birnen")
    return frame


def write(path: Path, frame: pandas.DataFrame, row_group: int = 700) -> Path:
    parquet.write_table(
        pyarrow.Table.from_pandas(frame, preserve_index=False), path, row_group_size=row_group
    )
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "rows.parquet", frame_of())


def case_of(data: Any, **fields: Any) -> aner.Case:
    given = {"layers": [8, 2], "batch": 64, "epochs": 2, "ranks": ["numpy:1"], "channel": "inline", "seed": 3}
    return aner.Case("rows", data=data, **{**given, **fields})


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_stored_rows_train_to_the_same_bits_as_rows_in_memory(path: Path, dtype: Any) -> None:
    small = aner.stored(path, target="secret-kind", budget_bytes=2**20)
    ranks = ["numpy:1", ("numpy:1", 2)]
    one = aner.run(case_of(small, dtype=dtype, ranks=ranks)).raise_unless_passed()
    two = aner.run(case_of(aner.table(path, target="secret-kind"), dtype=dtype, ranks=ranks))
    prints, others = one.receipt.fingerprints, two.raise_unless_passed().receipt.fingerprints
    assert prints is not None and prints == others
    assert one.receipt.test == two.receipt.test
    losses = [[epoch.loss for epoch in trial.receipt.validation] for trial in (one, two)]
    assert losses[0] == losses[1]


def test_a_regression_is_stored_too(tmp_path: Path) -> None:
    frame = frame_of().drop(columns="secret-kind")
    path = write(tmp_path / "a.parquet", frame)
    fields: dict[str, Any] = {"layers": [1], "dtype": "float32"}
    stored = aner.stored(path, target="secret-0", task="regression")
    one = aner.run(case_of(stored, **fields)).raise_unless_passed()
    two = aner.run(case_of(aner.table(path, target="secret-0"), **fields)).raise_unless_passed()
    assert one.receipt.fingerprints == two.receipt.fingerprints


@pytest.mark.cluster
@pytest.mark.tensorflow
@pytest.mark.parametrize("channel", ["shared_memory", "socket"])
def test_ranks_of_this_host_open_the_files_and_others_are_sent_their_rows(path: Path, channel: Any) -> None:
    data = aner.stored(path, target="secret-kind", budget_bytes=2**20)
    case = case_of(data, ranks=["cpu:1", ("cpu:1", 3)], channel=channel, staging="streamed")
    with aner.local_cluster(["cpu:1", "cpu:1"]) as cluster:
        trial = aner.run(case, cluster).raise_unless_passed()
    for rank in trial.receipt.ranks:
        assert (rank.staging, rank.row_budget_bytes) == ("streamed", 2**20)
    alone = aner.run(case_of(data)).raise_unless_passed()
    np.testing.assert_allclose(trial.parameters, alone.parameters, atol=1e-5)


def test_the_fingerprint_depends_on_rows_and_not_on_files_or_row_groups(tmp_path: Path) -> None:
    frame = frame_of()
    folder = tmp_path / "folder.parquet"
    folder.mkdir()
    for number, start in enumerate(range(0, ROWS, 900)):
        write(folder / f"part-{number}.parquet", frame[start : start + 900], 128)
    digests = {
        aner.stored(path, target="secret-kind").sha256
        for path in (
            write(tmp_path / "a.parquet", frame, 100),
            write(tmp_path / "b.parquet", frame, ROWS),
            folder,
        )
    }
    assert digests == {aner.table(frame, target="secret-kind").sha256}
    turned = write(tmp_path / "c.parquet", frame[::-1])
    assert aner.stored(turned, target="secret-kind").sha256 not in digests


def test_the_budget_decides_what_stays_resident_and_whether_a_batch_fits(path: Path) -> None:
    wide, narrow = (aner.stored(path, target="secret-kind", budget_bytes=size) for size in (2**28, 2**20))
    assert make_setups(make_work(case_of(wide))[0])[0].resident
    work = make_work(case_of(narrow, staging="auto"))[0]
    assert make_setups(work)[0].resident  # 36 kB
    with pytest.raises(CaseError, match=r"a budget of 1,000 bytes is too small. Give 1,048,576"):
        aner.stored(path, target="secret-kind", budget_bytes=1000)


def test_a_batch_over_the_budget_is_refused(tmp_path: Path) -> None:
    values = np.random.default_rng(1).normal(size=(4000, 200)).astype(np.float32)
    frame = pandas.DataFrame(values, columns=[f"c{index}" for index in range(200)])
    frame["y"] = values[:, 0] > 0
    data = aner.stored(write(tmp_path / "a.parquet", frame), target="y", budget_bytes=2**20)
    work = make_work(case_of(data, batch=1000))[0]
    assert not make_setups(work)[0].resident
    with pytest.raises(
        CaseError, match="a batch of 2,000 rows is over the budget.*smaller batch, or a larger"
    ):
        make_setups(make_work(case_of(data, batch=2000))[0])


def test_prepared_rows_are_taken_again_and_checked(path: Path) -> None:
    data = aner.stored(path, target="secret-kind")
    case = case_of(data)
    ready, _ = stage(data, case)
    (folder,) = [item for item in data.cache.iterdir() if item.is_dir()]
    before = {item.name: item.stat().st_mtime_ns for item in folder.iterdir()}
    again, _ = stage(data, case)
    assert {item.name: item.stat().st_mtime_ns for item in folder.iterdir()} == before
    assert again.fingerprints == ready.fingerprints
    stage(data, case_of(data, seed=4))
    assert len(list(data.cache.iterdir())) == 2
    with (folder / "train.features").open("r+b") as file:
        file.write(b"\x01")
    with pytest.raises(
        CaseError, match="train.features: a file of prepared rows was changed. Remove its folder"
    ):
        stage(data, case)


def test_files_that_changed_are_refused(path: Path) -> None:
    data = aner.stored(path, target="secret-kind")
    changed = frame_of()
    changed.loc[ROWS - 1, "secret-4"] = 1.0
    write(path, changed)
    with pytest.raises(CaseError, match="the rows changed after they were described"):
        make_work(case_of(data))


def test_a_folder_that_cannot_be_written_is_named(path: Path) -> None:
    data = aner.stored(path, target="secret-kind", cache=path / "below-a-file")
    with pytest.raises(CaseError, match="prepared rows cannot be written.*name another folder with cache="):
        make_work(case_of(data))


@pytest.mark.parametrize(
    ("change", "options", "sentence"),
    [
        ({"t": ["a"] * 9}, {}, "the column 't' holds texts such as 'a'. Write categorical='one_hot'"),
        ({"t": [1.0, None] + [2.0] * 7}, {}, "the column 't' has no value in row 1"),
        ({"y": ["a", None] + ["b"] * 7}, {}, "the column 'y' has no value in row 1, and what is predicted"),
        ({"y": ["a"] * 9}, {}, "the target 'y' has 1 class. Name a column of two"),
        (
            {"y": ["a", "b", "c"] * 3},
            {"task": "regression"},
            "the target 'y' holds text values. Give numbers",
        ),
        ({}, {"target": "q"}, "there is no column 'q' to be target. There are x, y"),
    ],
)
def test_what_cannot_be_stored_is_refused(
    tmp_path: Path, change: dict[str, Any], options: dict[str, Any], sentence: str
) -> None:
    frame = pandas.DataFrame({"x": np.arange(9.0), "y": [0, 1, 0] * 3, **change})
    with pytest.raises(CaseError, match=sentence):
        aner.stored(write(tmp_path / "a.parquet", frame), **{"target": "y", **options})


MIXED = np.arange(ROWS)


def mixed() -> pandas.DataFrame:
    """Return columns of all kinds with gaps, of which some row groups have none and some nothing else."""
    frame = frame_of()
    frame["city"] = np.array(["Köln", "Aš", "Ōsaka", "Łódź", None], dtype=object)[MIXED * 7 % 5]
    frame["rare"] = np.where(MIXED > ROWS - 3, "selten", "oft")
    frame["size"] = np.array(["S", "M", "L", None], dtype=object)[MIXED * 5 % 4]
    frame["good"] = pandas.array(np.where(MIXED % 9 == 0, None, MIXED % 2 == 0), dtype="boolean")
    frame["count"] = np.where(MIXED % 13 == 0, np.nan, MIXED % 5)
    frame.loc[700:1399, ["city", "count", "good"]] = None
    frame["note"] = [f"text {row}" for row in MIXED]
    return frame


@pytest.mark.parametrize("missing", ["mean", "most_frequent", "drop"])
@pytest.mark.parametrize("row_group", [350, ROWS])
def test_categories_orders_and_gaps_are_those_of_a_table_to_the_bit(
    tmp_path: Path, missing: Any, row_group: int
) -> None:
    options: dict[str, Any] = {
        "target": "secret-kind",
        "categorical": "one_hot",
        "ordinal": {"size": ["S", "M", "L"]},
        "missing": missing,
        "leave_out": ["note"],
    }
    path = write(tmp_path / "mixed.parquet", mixed(), row_group)
    table = aner.table(path, **options)
    stored = aner.stored(path, **options, budget_bytes=2**20)
    assert (stored.sha256, stored.class_names) == (table.sha256, table.class_names)
    assert (stored.rows, stored.rows_left_out) == (table.rows, table.rows_left_out)
    told, known = stored.to_record(), table.to_record()
    for name in ("rows", "rows_left_out", "columns", "features", "classes", "categorical", "missing"):
        assert told[name] == known[name]
    one, two = (aner.run(case_of(data, ranks=["numpy:1", ("numpy:1", 2)])) for data in (stored, table))
    assert one.raise_unless_passed().receipt.fingerprints == two.raise_unless_passed().receipt.fingerprints
    assert one.receipt.test == two.receipt.test
    new = mixed().head(40) if missing != "drop" else mixed().dropna().head(40)
    a, b = (
        aner.fit(data, [2], batch=64, epochs=1, ranks=["numpy:1"], channel="inline")
        for data in (stored, table)
    )
    np.testing.assert_array_equal(a.outputs(new), b.outputs(new))
    public = msgspec.json.encode(public_view(one.receipt)).decode()
    for word in ("city", "Köln", "selten", "good"):
        assert word not in public


@pytest.mark.parametrize(
    ("change", "options", "sentence"),
    [
        (
            {"t": ["1", "2", "3", "n/k"] * 3},
            {"categorical": "one_hot"},
            "the text .n/k. in row 3 among numbers",
        ),
        (
            {"t": ["a", "b"] * 6, "y": ["a", "b"] * 6},
            {"categorical": "one_hot"},
            "is the target .y. under another name",
        ),
        ({"t": [f"w{row}" for row in range(12)]}, {"categorical": "refuse"}, "holds texts such as .w0."),
        ({"t": ["2026-01-01"] * 12}, {}, "the column .t. holds dates"),
        ({"t": [None] * 12}, {"missing": "mean"}, "the column .t. holds no value at all"),
        ({"t": [1.0, None] * 6}, {}, "the column .t. has no value in row 1. Fill it in"),
        ({"t": [1.0] * 7 + [np.inf] * 5}, {}, "the column .t. is inf in row 7"),
        ({"t": [None] * 12}, {"missing": "drop"}, "there are no rows. Give some rows without gaps"),
        (
            {},
            {"missing": "guess"},
            "data.missing: .guess. is not known. Choose refuse or drop or mean or most",
        ),
        ({}, {"ordinal": {"x": ["S"]}}, "the order of .x. is not two or more different"),
        ({}, {"leave_out": ["x"]}, "no column is left as a feature"),
    ],
)
def test_what_is_in_doubt_is_refused_as_in_a_table(
    tmp_path: Path, change: dict[str, Any], options: dict[str, Any], sentence: str
) -> None:
    frame = pandas.DataFrame({"x": np.arange(12.0), "y": [0, 1, 0] * 4, **change})
    with pytest.raises(CaseError, match=sentence):
        make_work(
            case_of(
                aner.stored(write(tmp_path / "a.parquet", frame, 4), **{"target": "y", **options}), batch=4
            )
        )


def test_a_column_of_too_many_numbers_has_no_most_frequent_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aner_nb.staging._MOST_VALUES", 100)
    data = aner.stored(
        write(tmp_path / "a.parquet", frame_of()), target="secret-kind", missing="most_frequent"
    )
    with pytest.raises(
        CaseError, match="has over 100 different numbers, too many to count. Write missing=.mean"
    ):
        make_work(case_of(data))


def test_predictions_take_frames_and_rows(path: Path) -> None:
    data = aner.stored(path, target="secret-kind")
    fitted = aner.fit(data, [8, 2], batch=64, epochs=2, ranks=["numpy:1"], channel="inline")
    frame = frame_of(20)
    rows = frame.drop(columns="secret-kind").to_numpy()
    np.testing.assert_array_equal(fitted.outputs(frame[frame.columns[::-1]]), fitted.outputs(rows))
    with pytest.raises(CaseError, match="predict: the column 'secret-0' is missing"):
        fitted.predict(frame.drop(columns="secret-0"))


def test_a_receipt_is_public_without_names(path: Path) -> None:
    receipt = aner.run(case_of(aner.stored(path, target="secret-kind"))).receipt
    assert receipt.data["class_names"] == ["Birnen", "Äpfel"]
    public = msgspec.json.encode(public_view(receipt)).decode()
    for word in ("secret", "pfel", str(path.parent)):
        assert word not in public


# ---------------------------------------------------------------- rows in a file


@given(
    st.integers(1, 40),
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.integers(1, 12),
    st.integers(0, 60),
    st.integers(0, 60),
)
def test_rows_in_runs_are_the_partition_of_the_plan(
    tmp_path_factory: pytest.TempPathFactory,
    rows: int,
    weights: list[int],
    batch: int,
    start: int,
    stop: int,
) -> None:
    plan = Plan(rows, min(batch, rows), 1, 7, tuple(weights))
    values = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
    path = tmp_path_factory.mktemp("rows") / "a"
    file = write_rows(path, values[plan.order()])
    for rank in range(len(weights)):
        expected = values[plan.partition(rank)]
        found = FileRows(file, plan.runs(rank))
        assert (found.shape, found.nbytes, found.ndim) == (expected.shape, expected.nbytes, 2)
        np.testing.assert_array_equal(found[start:stop], expected[start:stop])
        assert fingerprint(found) == fingerprint(expected)


def test_a_file_of_another_size_is_refused(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "a", np.zeros((4, 2)))
    with pytest.raises(CaseError, match="the file of rows has another size"):
        FileRows(RowsFile(file.path, "float64", (5, 2)))
    with pytest.raises(CaseError, match="rows cannot be read"):
        FileRows(RowsFile(str(tmp_path / "b"), "float64", (5, 2)))


def test_rows_are_read_by_their_numbers(tmp_path: Path) -> None:
    values = np.arange(8.0).reshape(4, 2)
    rows = FileRows(write_rows(tmp_path / "a", values))
    np.testing.assert_array_equal(rows[np.array([3, 0, 3])], values[[3, 0, 3]])
    assert rows[np.array([], np.int64)].shape == (0, 2)
