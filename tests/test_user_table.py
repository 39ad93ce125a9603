"""A person's own table: what goes through, and the sentence for what does not."""

from __future__ import annotations

import datetime
import hashlib
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas
import pytest

import aner_nb as aner
from aner_nb.data import data_from_record, prepare
from aner_nb.errors import CaseError
from aner_nb.facts import public_view
from aner_nb.receipts import decode_receipt, encode_receipt
from aner_nb.splits import split
from aner_nb.suites import case_of_record
from aner_nb.verification import verify
from tests.study_fixtures import make_study

PASSENGERS = """\
name,age,fare,class,returns,born,port,survived
"Allen, Miss",29,211.3375,first,True,1883-01-02,Cherbourg,yes
"Braund, Mr",22,7.25,third,False,1890-04-01,Southampton,no
"Cumings, Mrs",,71.2833,first,True,1874-09-09,Cherbourg,yes
"Heikkinen, Miss",26,7.925,third,False,1886-03-30,,yes
"Moran, Mr",,8.4583,third,False,1880-01-01,Queenstown,no
"Sandström, Miss",4,16.7,third,True,1908-02-29,Southampton,yes
"""


@pytest.fixture
def passengers(tmp_path: Path) -> Path:
    """Return a CSV of mixed types with gaps, 60 rows."""
    head, *lines = PASSENGERS.splitlines()
    path = tmp_path / "passengers.csv"
    path.write_text("\n".join([head, *lines * 10]) + "\n", encoding="utf-8")
    return path


def mixed(rows: int = 60) -> pandas.DataFrame:
    return pandas.DataFrame(
        {
            "size": np.arange(rows) % 7 / 4,
            "colour": [["rot", "grün", "blau"][row % 3] for row in range(rows)],
            "good": [row % 2 == 0 for row in range(rows)],
            "kind": [["Äpfel", "Birnen"][row % 5 == 0] for row in range(rows)],
        }
    )


def trained(data: Any, outputs: int, **fields: Any) -> Any:
    return aner.fit(data, [outputs], channel="inline", ranks=["numpy:1"], batch=16, epochs=2, **fields)


# ---------------------------------------------------------------- the list of the issue


def test_a_csv_of_mixed_types_with_gaps_is_refused_one_remedy_at_a_time_and_then_goes_through(
    passengers: Path,
) -> None:
    stated: dict[str, Any] = {"target": "survived"}
    for sentence, remedy in (
        ("the column 'age' has no value in row 2 and 19 others.*missing='drop', 'mean'", {"missing": "mean"}),
        ("the column 'name' holds texts such as 'Allen, Miss'", {"leave_out": ["name"]}),
        ("the column 'class' holds texts.*categorical='one_hot'", {"categorical": "one_hot"}),
        ("the column 'born' holds dates.*leave it out", {"leave_out": ["name", "born"]}),
    ):
        with pytest.raises(CaseError, match=sentence):
            aner.table(passengers, **stated)
        stated |= remedy
    data = aner.table(passengers, **stated)
    assert data.class_names == ("no", "yes")
    assert data.to_record()["columns"] == 5
    assert data.to_record()["features"] == 1 + 1 + 2 + 1 + 3
    assert trained(data, 2).trial.receipt.status == "passed"


def test_a_wide_parquet_goes_through(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    values = np.random.default_rng(1).normal(size=(50, 5000)).astype(np.float32)
    frame = pandas.DataFrame(values, columns=[f"gene {number}" for number in range(5000)])
    frame["ill"] = values[:, 0] > 0
    frame.to_parquet(tmp_path / "genes.parquet")
    data = aner.table(str(tmp_path / "genes.parquet"), target="ill")
    assert data.to_record()["features"] == 5000
    assert data.class_names == ("False", "True")
    assert trained(data, 2).trial.receipt.status == "passed"


def test_an_imbalanced_label_keeps_its_share_in_every_part() -> None:
    frame = pandas.DataFrame({"x": np.arange(1000) % 17 / 3, "fraud": [row % 50 == 0 for row in range(1000)]})
    source = aner.table(frame, target="fraud").load()
    parts = split(source)
    counts = [int(source.targets[rows].sum()) for rows in (parts.train, parts.validation, parts.test)]
    assert counts == [12, 4, 4]


def test_a_regression_target_goes_through() -> None:
    frame = pandas.DataFrame({"x": np.arange(100) / 7, "price": np.arange(100) * 1.25})
    data = aner.table(frame, target="price")
    assert data.to_record()["outputs"] == 1
    assert "classes" not in data.to_record()
    assert trained(data, 1).predict(frame.head(4)).shape == (4, 1)


def test_labels_beyond_ascii_are_classes_in_sorted_order() -> None:
    data = aner.table(mixed(), target="kind", categorical="one_hot")
    assert data.class_names == ("Birnen", "Äpfel")
    source = data.load()
    assert source.class_names == data.class_names
    assert [source.class_names[label] for label in source.targets[:6]] == list(mixed()["kind"][:6])


# ---------------------------------------------------------------- formats


def test_every_format_gives_the_same_fingerprint(tmp_path: Path) -> None:
    polars, parquet = pytest.importorskip("polars"), pytest.importorskip("pyarrow.parquet")
    frame = mixed()
    frame.loc[3, "size"] = np.nan
    frame.loc[4, "colour"] = None
    frame.to_csv(tmp_path / "one.csv", index=False)
    table = pytest.importorskip("pyarrow").Table.from_pandas(frame)
    for rows in (7, 60):
        parquet.write_table(table, tmp_path / f"of-{rows}.parquet", row_group_size=rows)
    (tmp_path / "folder.parquet").mkdir()
    for part in range(2):
        parquet.write_table(table.slice(part * 30, 30), tmp_path / "folder.parquet" / f"{part}.parquet")
    origins = [
        frame,
        polars.DataFrame(
            {name: [None if value != value else value for value in frame[name]] for name in frame}
        ),
        {name: frame[name] for name in frame},
        *(tmp_path / name for name in ("one.csv", "of-7.parquet", "of-60.parquet", "folder.parquet")),
    ]
    tables = [aner.table(origin, target="kind", categorical="one_hot", missing="mean") for origin in origins]
    assert len({data.sha256 for data in tables}) == 1
    assert len(set(tables)) == 1


def test_npz_takes_one_array_a_column_and_cuts_wide_ones(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(12.0).reshape(6, 2), y=np.array([0, 1] * 3))
    data = aner.table(tmp_path / "a.npz", target="y")
    assert [column.name for column in data.schema.columns] == ["x[0]", "x[1]"]
    np.testing.assert_array_equal(data.load().features, np.arange(12.0).reshape(6, 2))


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.xlsx", b"", r"'a.xlsx' does not end in .csv, .parquet, .npz. Read the file with pandas"),
        ("absent.csv", None, "there is no .*absent.csv. Correct the path"),
        ("a.csv", b"x,y\n\xe4,1\n", r"a.csv is not UTF-8 \(byte 4\). Read it with pandas.read_csv"),
        ("a.csv", b"x;y\n1;2\n", r"a.csv is separated by ';' and not by commas. Read it with pandas"),
        ("a.csv", b"x,y,x\n1,2,3\n", "the column name 'x' is used 2 times. Give each column a name of its"),
        ("a.csv", b"x,,y\n1,2,3\n", "the column name '' is not a text. Rename it"),
        ("a.csv", b"x,y\n", "the table has no rows"),
        ("a.npz", b"no archive", "a.npz cannot be read .*Mend the file"),
        ("a.csv", b'x,y\n1,"2\n', "a.csv cannot be read .*ParserError.*Mend the file"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(
    tmp_path: Path, name: str, content: bytes | None, sentence: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(CaseError, match=sentence):
        aner.table(tmp_path / name, target="y")


def test_a_missing_package_is_named_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"")
    with pytest.raises(CaseError, match=r"reading Parquet needs pyarrow.*pip install 'aner-nb\[data\]'"):
        aner.table(tmp_path / "a.parquet", target="y")


# ---------------------------------------------------------------- columns


BASE = {"x": [0.5, 1.5, 2.5, 3.5], "y": ["a", "b", "a", "b"]}
DAY = datetime.date(2026, 1, 1)


@pytest.mark.parametrize(
    ("columns", "options", "sentence"),
    [
        ({"t": [DAY] * 4}, {}, "the column 't' holds dates. Make numbers of it"),
        ({"t": pandas.to_datetime([DAY] * 4)}, {}, "the column 't' holds dates"),
        ({"t": ["2026-01-01"] * 4}, {}, "the column 't' holds dates"),
        ({"t": [1, "2", 3, 4]}, {}, r"the column 't' holds mixed integer values .*Make them all numbers"),
        (
            {"t": ["1", "2", "n/k", "4"]},
            {"categorical": "one_hot"},
            "'t' has the text 'n/k' in row 2 among num",
        ),
        ({"t": [1.0, np.inf, 2, 3]}, {}, "the column 't' is inf in row 1"),
        ({"t": [1, 2**60, 2, 3]}, {}, "the column 't' has whole numbers beyond 2.*53.*in row 1"),
        ({"t": [1j, 2, 3, 4]}, {}, "the column 't' holds complex values"),
        ({"t": [None] * 4}, {"missing": "mean"}, "the column 't' holds no value at all"),
        ({"t": ["a", "b", "a", "b"]}, {"categorical": "one_hot"}, "'t' is the target 'y' under another name"),
        ({"t": ["S", "M", "L", "Q"]}, {"ordinal": {"t": ["S", "M", "L"]}}, "category 'Q' in row 3, which is"),
        ({}, {"ordinal": {"x": ["S"]}}, "the order of 'x' is not two or more different categories"),
        ({}, {"ordinal": {"q": ["S", "M"]}}, "there is no column 'q' to be ordinal. There are x, y"),
        ({}, {"groups": "q"}, "there is no column 'q' to be groups"),
        ({}, {"leave_out": ["y"]}, "the column 'y' is both target and leave_out. Give it one part"),
        ({}, {"leave_out": ["x"]}, "no column is left as a feature"),
        ({"g": [1, 2, 3, 4], "o": [1, 2, 3, 4]}, {"groups": "g", "order": "o"}, "by groups or by order, not"),
        ({}, {"target": []}, "there is no target. Name the column"),
        ({"y": ["a"] * 4}, {}, "the target 'y' has 1 classes"),
        ({"y": [DAY] * 4}, {}, "the target 'y' holds dates"),
        (
            {"y": [1.0, 2.0, 1.0, 2.0]},
            {},
            "2 different whole numbers, which may be classes or amounts. Write task",
        ),
        ({}, {"task": "regression"}, "the target 'y' holds no numbers. Write task='classification'"),
        (
            {"z": [1.5] * 4},
            {"target": ["y", "z"], "task": "classification"},
            "2 targets are not one class a row",
        ),
        (
            {"y": ["a", None, "a", "b"]},
            {"missing": "mean"},
            "'y' has no value in row 1, and what is predicted",
        ),
        ({"t": [None, 1, None, 1], "u": [1, None, 1, None]}, {"missing": "drop"}, "missing in every row"),
        (
            {},
            {"missing": "guess"},
            r"data.missing: 'guess' is not known. Choose refuse or drop or mean or most",
        ),
        ({}, {"categorical": "hash"}, "data.categorical: 'hash' is not known"),
        ({}, {"task": "ranking"}, "data.task: 'ranking' is not known"),
        ({}, {"name": ""}, "data.name: a name is not a text"),
    ],
)
def test_what_is_in_doubt_is_refused_with_the_remedy(
    columns: dict[str, Any], options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(CaseError, match=sentence):
        aner.table({**BASE, **columns}, **{"target": "y", **options})


@pytest.mark.parametrize("given", ["text", [1, 2], np.zeros((4, 2)), None])
def test_what_is_no_table_is_refused(given: Any) -> None:
    with pytest.raises(CaseError, match=r"Read the file|is not a table"):
        aner.table(given, target="y")


def test_names_twice_or_not_of_text_are_refused_in_frames() -> None:
    for names, sentence in (
        (["x", "x"], "the column name 'x' is used 2 times"),
        (["x", 3], "3 is not a text"),
    ):
        with pytest.raises(CaseError, match=sentence):
            aner.table(pandas.DataFrame([[1, 2]], columns=names), target="x")


def test_free_text_is_no_category() -> None:
    words = [f"word {row}" for row in range(30)]
    with pytest.raises(CaseError, match="30 different texts in 30 rows, too many for categories. Leave it"):
        aner.table({"x": words, "y": [0, 1] * 15}, target="y", categorical="one_hot")


def test_a_constant_column_goes_through_as_zeros() -> None:
    data = aner.table({"x": np.arange(20.0), "same": [3.3] * 20, "y": [0, 1] * 10}, target="y")
    source = data.load()
    prepared = prepare(source, split(source), dtype="float64")
    assert not prepared.train.features[:, 1].any() and not prepared.test.features[:, 1].any()


def test_booleans_orders_and_categories_become_numbers() -> None:
    frame = {
        "good": [True, False, None, True],
        "size": ["S", "L", None, "M"],
        "colour": ["b", "a", None, "b"],
        "y": [0, 1, 0, 1],
    }
    data = aner.table(
        frame, target="y", categorical="one_hot", ordinal={"size": ["S", "M", "L"]}, missing="mean"
    )
    gap = np.nan
    np.testing.assert_array_equal(data.load().features, [[1, 0, 0, 1], [0, 2, 1, 0], [gap] * 4, [1, 1, 0, 1]])


# ---------------------------------------------------------------- missing values, from training rows alone


def test_the_mean_of_training_rows_fills_gaps_everywhere() -> None:
    x = np.arange(50.0)
    x[::7] = np.nan
    source = aner.table({"x": x, "y": [0, 1] * 25}, target="y", missing="mean").load()
    parts = split(source)
    prepared = prepare(source, parts, dtype="float64", normalize=False)
    mean = np.nanmean(x[parts.train])
    for part in ("train", "validation", "test"):
        rows, ready = getattr(parts, part), getattr(prepared, part).features[:, 0]
        np.testing.assert_allclose(ready, np.where(np.isnan(x[rows]), mean, x[rows]), rtol=1e-15)


def test_values_of_validation_and_test_rows_have_no_say() -> None:
    rows = np.arange(60)
    frame = pandas.DataFrame({"x": rows / 3, "c": np.array(["a", "b", "c"])[rows % 3], "y": rows % 2})
    frame.loc[rows % 11 == 0, ["x", "c"]] = None
    options: Any = {"target": "y", "missing": "mean", "categorical": "one_hot"}
    source = aner.table(frame, **options).load()
    parts = split(source)
    changed = frame.copy()
    changed.loc[np.r_[parts.validation, parts.test], "x"] *= 100
    other = aner.table(changed, **options).load()
    one, two = (prepare(each, parts, dtype="float64") for each in (source, other))
    assert one.fingerprints["train"] == two.fingerprints["train"]
    assert one.fingerprints["test"] != two.fingerprints["test"]
    np.testing.assert_array_equal(one.train.features, two.train.features)
    np.testing.assert_array_equal(one.normalization.mean, two.normalization.mean)


def test_the_most_frequent_value_fills_gaps_ties_to_the_smallest() -> None:
    frame = {"x": [2.0, 1.0, 2.0, 1.0, np.nan, 9.0], "c": ["b", "b", "a", None, "a", "a"], "y": [0, 1] * 3}
    source = aner.table(frame, target="y", missing="most_frequent", categorical="one_hot").load()
    from aner_nb.filling import fit_filling

    filling = fit_filling(source.spans, lambda: iter([source.features]), 3)
    assert filling is not None
    np.testing.assert_array_equal(filling.values, [1.0, 1.0, 0.0])


def test_a_category_that_no_training_row_has_is_all_zeros() -> None:
    colours = ["a", "b"] * 10 + ["c"]
    source = aner.table(
        {"c": colours, "when": np.arange(21), "y": [0, 1] * 10 + [0]},
        target="y",
        order="when",
        categorical="one_hot",
    ).load()
    prepared = prepare(source, split(source), dtype="float64")
    assert not prepared.test.features[-1][2]
    raw = prepare(source, split(source), dtype="float64", normalize=False)
    np.testing.assert_array_equal(raw.test.features[-1], [0, 0, 0])


def test_a_column_without_a_value_in_training_is_refused() -> None:
    frame = {"x": [np.nan] * 15 + [1.0] * 5, "when": np.arange(20), "z": np.arange(20.0), "y": [0, 1] * 10}
    source = aner.table(frame, target="y", order="when", missing="mean").load()
    with pytest.raises(CaseError, match="the column 'x' has no value in any training row. Leave"):
        prepare(source, split(source), dtype="float64")


def test_dropped_rows_are_counted() -> None:
    frame = mixed()
    frame.loc[[1, 5], "size"] = np.nan
    frame.loc[7, "kind"] = None
    data = aner.table(frame, target="kind", categorical="one_hot", missing="drop")
    assert (data.rows, data.rows_left_out) == (57, 3)


# ---------------------------------------------------------------- the description


def test_a_table_that_changed_is_refused(tmp_path: Path) -> None:
    frame = mixed()
    data = aner.table(frame, target="kind", categorical="one_hot")
    data.load()
    frame.loc[0, "size"] = 99
    with pytest.raises(CaseError, match="data 'table': the table changed after it was described"):
        data.load()
    path = tmp_path / "a.csv"
    mixed().to_csv(path, index=False)
    kept = aner.table(path, target="kind", categorical="one_hot")
    path.write_text(path.read_text().replace("rot", "rosa"))
    with pytest.raises(CaseError, match="the table changed"):
        kept.load()


def test_the_record_depends_on_what_was_stated() -> None:
    frame = mixed()
    base: dict[str, Any] = {"target": "kind", "categorical": "one_hot"}
    variants = [
        base,
        {**base, "missing": "mean"},
        {**base, "groups": "colour"},
        {**base, "order": "size"},
        {**base, "ordinal": {"colour": ["rot", "grün", "blau"]}},
        {**base, "name": "other"},
    ]
    records = [msgspec.json.encode(aner.table(frame, **options).to_record()) for options in variants]
    assert len(set(records)) == len(records)
    renamed = frame.rename(columns={"size": "length"})
    assert aner.table(frame, **base) == aner.table(frame.copy(), **base)
    assert aner.table(frame, **base) != aner.table(renamed, **base)
    assert aner.table(frame, **base).to_record() != aner.table(renamed, **base).to_record()


def test_a_receipt_keeps_the_names_and_its_public_view_has_none(tmp_path: Path) -> None:
    frame = mixed().rename(columns={"size": "secret-size", "colour": "secret-colour", "kind": "secret-kind"})
    frame["secret-group"] = np.arange(60) % 9
    path = tmp_path / "secret-file.csv"
    frame.to_csv(path, index=False)
    data = aner.table(path, target="secret-kind", categorical="one_hot", groups="secret-group", name="fruit")
    receipt = trained(data, 2).trial.receipt
    assert receipt.data["class_names"] == ["Birnen", "Äpfel"]
    assert decode_receipt(encode_receipt(receipt)) == receipt
    public = msgspec.json.encode(public_view(receipt)).decode()
    for word in ("secret", "pfel", "grün", str(tmp_path)):
        assert word not in public
    assert '"fruit"' in public and '"split_by":"groups"' in public
    assert "secret" not in repr(data).replace("secret-kind", "").replace("secret-group", "")


def test_a_bundle_of_a_table_names_no_column_no_class_and_no_file(tmp_path: Path) -> None:
    frame = mixed().rename(columns={"size": "secret-size", "colour": "secret-colour", "kind": "secret-kind"})
    path = tmp_path / "secret-file.csv"
    frame.to_csv(path, index=False)
    data = aner.table(path, target="secret-kind", categorical="one_hot", name="fruit")
    case = aner.Case("fruit", data=data, layers=[4, 2], batch=16, epochs=1, ranks=["numpy"], channel="inline")
    study = make_study(tmp_path / "results", chosen=aner.Suite("own", (case,)), repetitions=1)
    bundle = study.publish(tmp_path / "public")
    assert not verify(bundle)
    texts = {
        file.name: file.read_text("utf-8")
        for file in bundle.rglob("*")
        if file.suffix != ".png" and file.is_file()
    }
    assert '"fruit"' in texts["trials.jsonl"]
    for name, text in texts.items():
        for word in ("secret", "Äpfel", "Birnen", "grün", str(tmp_path)):
            assert word not in text, name
    kept = next((tmp_path / "results" / "receipts" / "fruit").glob("trial-1.json")).read_text("utf-8")
    assert "secret-size" in kept and "Äpfel" in kept


def test_the_description_survives_in_a_kept_study_without_the_rows() -> None:
    data = aner.table(mixed(), target="kind", categorical="one_hot")
    case = aner.Case("mine", data=data, layers=[2], batch=8, epochs=1)
    kept = case_of_record(case.to_record())
    assert kept.contract_id == case.contract_id
    with pytest.raises(CaseError, match="results keep the fingerprint of your own rows"):
        kept.data.load()
    with pytest.raises(CaseError, match=r"rows of a table live in the program.*table\(path"):
        data_from_record(data.to_record())


def test_the_schema_is_told_by_its_digest() -> None:
    record = aner.table({"x": [1.5, 2.5, 3.5], "y": ["a", "b", "a"]}, target="y").to_record()
    text = (
        b'{"class_names": ["a", "b"], "columns": [["x", "number", []]], "groups": null, "order": null, '
        b'"targets": ["y"]}'
    )
    assert record["schema_sha256"] == hashlib.sha256(text).hexdigest()


# ---------------------------------------------------------------- predictions


def test_predictions_take_frames_with_columns_in_any_order_and_fill_gaps() -> None:
    frame = mixed()
    frame.loc[3, "size"] = np.nan
    fitted = trained(aner.table(frame, target="kind", categorical="one_hot", missing="mean"), 2)
    whole = fitted.outputs(frame)
    turned = frame[["good", "colour", "size"]].head(10)
    np.testing.assert_array_equal(fitted.outputs(turned), whole[:10])
    rows = {name: turned[name].tolist() for name in turned}
    np.testing.assert_array_equal(fitted.outputs(rows), whole[:10])
    with pytest.raises(CaseError, match="predict: the column 'colour' is missing"):
        fitted.predict(frame.drop(columns="colour"))
    with pytest.raises(
        CaseError, match="the category 'lila' in row 0, which is none of its 3. Known: blau, gr"
    ):
        fitted.predict({"size": [1.0], "colour": ["lila"], "good": [True]})
    with pytest.raises(CaseError, match="holds text values where numbers were"):
        fitted.predict({"size": ["big"], "colour": ["rot"], "good": [True]})


def test_predictions_of_a_table_of_numbers_take_plain_rows() -> None:
    frame = {"a": np.arange(40.0), "b": np.arange(40.0) ** 2, "y": [0, 1] * 20}
    fitted = trained(aner.table(frame, target="y"), 2)
    rows = np.column_stack([frame["a"], frame["b"]])
    np.testing.assert_array_equal(fitted.outputs(rows), fitted.outputs(frame))
    with pytest.raises(CaseError, match=r"features of shape \(40, 3\) don't fit the model"):
        fitted.predict(np.zeros((40, 3)))
    with pytest.raises(CaseError, match="the column 'a' has no value in row 0"):
        fitted.predict([[np.nan, 1.0]])
