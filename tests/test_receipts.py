"""Receipts: every field declared, read back equal, and nothing private in what is published."""

from __future__ import annotations

import platform
import typing
import warnings
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import aner_nb as aner
from aner_nb import receipts as module
from aner_nb.errors import AnerError, BackendUnavailable, Cancelled, ClusterError, RankLost
from aner_nb.facts import Record, fact, private, public_view
from aner_nb.receipts import ReceiptError, TrialReceipt, decode_receipt, encode_receipt, json_schema
from aner_nb.recording import failure_of, status_of

RECORDS = sorted(
    (
        kind
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Record) and kind is not Record
    ),
    key=lambda kind: kind.__name__,
)


def receipt(**changes: Any) -> TrialReceipt:
    fields = {"layers": [3], "batch": 45, "epochs": 2, "ranks": ["numpy"], "channel": "inline", **changes}
    return aner.run(aner.Case("tiny", data=aner.iris(), **fields)).receipt


@pytest.fixture(scope="module")
def passed() -> TrialReceipt:
    return receipt(ranks=["numpy", ("numpy", 2)])


class Inner(Record, frozen=True):
    shown: typing.Annotated[int, fact("Shown.")]
    hidden: typing.Annotated[str, private("Hidden.")]


class Outer(Record, frozen=True):
    several: typing.Annotated[tuple[Inner, ...], fact("Several.")]
    named: typing.Annotated[dict[str, Inner], fact("Named.")]
    none: typing.Annotated[Inner | None, fact("None.")] = None


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
def test_every_field_declares_meaning_unit_and_privacy(kind: type[Record]) -> None:
    hints = typing.get_type_hints(kind, include_extras=True)
    for name in kind.__struct_fields__:
        (meta,) = [item for item in hints[name].__metadata__ if isinstance(item, msgspec.Meta)]
        assert meta.description is not None and meta.description.endswith("."), name
        assert meta.extra is not None and sorted(meta.extra) == ["public", "unit"], name
        assert isinstance(meta.extra["public"], bool)
        if name.endswith(("_ns", "_bytes", "_s", "_seconds", "_mhz")):
            assert meta.extra["unit"], name


def test_a_field_without_declaration_is_refused() -> None:
    class Loose(Record, frozen=True):
        size: typing.Annotated[int, "bytes"]

    with pytest.raises(TypeError, match="declares no unit and privacy"):
        public_view(Loose(3))


def test_only_public_fields_are_seen_at_every_depth() -> None:
    inner = Inner(1, "secret")
    assert public_view(Outer((inner,), {"a": inner})) == {
        "several": [{"shown": 1}],
        "named": {"a": {"shown": 1}},
        "none": None,
    }


def test_a_receipt_is_read_back_equal(passed: TrialReceipt) -> None:
    data = encode_receipt(passed)
    assert decode_receipt(data) == passed
    assert encode_receipt(decode_receipt(data)) == data
    assert data.startswith(b'{\n  "schema_version": 1,\n')
    assert data.endswith(b"}\n")


@pytest.mark.parametrize(
    ("path", "where"),
    [
        ([], "`surprise`"),
        (["counts"], r"`surprise` - at `\$\.counts`"),
        (["clocks"], r"`\$\.clocks`"),
        (["ranks", 0, "proof"], r"`\$\.ranks\[0\]\.proof`"),
    ],
)
def test_an_unknown_field_is_refused_with_its_place(
    passed: TrialReceipt, path: list[Any], where: str
) -> None:
    document = msgspec.json.decode(encode_receipt(passed))
    place = document
    for step in path:
        place = place[step]
    place["surprise"] = 1
    with pytest.raises(
        ReceiptError, match=rf"one\.json: not a receipt of schema version 1 \(.*unknown field.*{where}"
    ):
        decode_receipt(msgspec.json.encode(document), "one.json")


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("schema_version", 2, r"schema version 1 \(it has 2\)"),
        ("status", "excellent", r"Invalid enum value 'excellent' - at `\$\.status`"),
        ("repetition", "1", r"Expected `int`, got `str` - at `\$\.repetition`"),
        ("counts", {}, "missing required field `parameters`"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(
    passed: TrialReceipt, field: str, value: Any, sentence: str
) -> None:
    document = {**msgspec.json.decode(encode_receipt(passed)), field: value}
    with pytest.raises(ReceiptError, match=f"{sentence}.*remove it to run its trial again"):
        decode_receipt(msgspec.json.encode(document))


def test_the_public_view_names_no_host_and_no_process(passed: TrialReceipt) -> None:
    view = public_view(passed)
    assert "host" not in view
    assert passed.host["name"] == platform.node()
    assert view["case_name"] == "tiny"
    assert view["ranks"][1]["weight"] == 2
    assert set(view) == set(TrialReceipt.__struct_fields__) - {"host", "data"}


def test_a_published_failure_has_its_kind_and_a_reason_alone() -> None:
    failed = aner.run(
        aner.Case(
            "tiny", data=aner.iris(), layers=[3], batch=45, epochs=2, ranks=["numpy"], channel="inline"
        ),
        stop=lambda: True,
    ).receipt
    assert public_view(failed)["failure"] == {"kind": "cancelled", "reason": "cancelled on request."}


def test_a_path_of_the_users_is_not_published(tmp_path: Path) -> None:
    path = tmp_path / "secret" / "state.safetensors"
    cases = [
        aner.Case(
            "tiny",
            data=aner.iris(),
            layers=[3],
            batch=45,
            epochs=1,
            ranks=["numpy"],
            channel="inline",
            seed=seed,
        )
        for seed in (0, 1)
    ]
    aner.run(cases[0], durability=aner.Durability(path))
    refused = aner.run(cases[1], durability=aner.Durability(path)).receipt
    assert refused.failure is not None
    assert "secret" in refused.failure.where
    assert public_view(refused)["failure"] == {"kind": "checkpoint_error", "reason": "checkpoint error"}
    assert b"secret" not in msgspec.json.encode(public_view(refused))


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (RankLost("Bob's laptop is gone.", where="rank 3"), "failed", "rank lost: rank 3"),
        (RankLost("gone.", where="rank 0, 12"), "failed", "rank lost: rank 0, 12"),
        (RankLost("gone.", where="10.0.0.7:4711"), "failed", "rank lost"),
        (RankLost("gone.", where="rank 3 on bob"), "failed", "rank lost"),
        (ClusterError("no answer.", where="tls://bob:8786"), "failed", "cluster error"),
        (BackendUnavailable("there is no cuda:0.", where="bob"), "not_run", "there is no cuda:0."),
        (Cancelled("interrupted from the keyboard."), "cancelled", "interrupted from the keyboard."),
    ],
)
def test_a_reason_names_ranks_and_never_machines(error: AnerError, status: str, reason: str) -> None:
    failure = failure_of(error)
    assert failure is not None
    assert (failure.reason, failure.kind, failure.what) == (reason, error.kind, error.what)
    assert status_of(error) == status


def test_without_error_there_is_no_failure() -> None:
    assert failure_of(None) is None
    assert status_of(None) == "passed"


def test_a_training_that_diverged_leaves_a_readable_receipt() -> None:
    features = np.random.default_rng(0).standard_normal((60, 3))
    data = aner.arrays(features, features.sum(axis=1))
    case = aner.Case(
        "diverges",
        data=data,
        layers=[8, 1],
        batch=12,
        epochs=200,
        ranks=["numpy"],
        channel="inline",
        optimizer=aner.SGD(100),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        trial = aner.run(case)
    assert str(trial) == "diverges, measured 1: failed: finite: losses and final parameters."
    assert decode_receipt(encode_receipt(trial.receipt)) == trial.receipt
    assert trial.receipt.test is not None and trial.receipt.test.loss is None
    assert trial.receipt.validation[-1].loss is None
    assert trial.receipt.validation[-1].train_loss is None
    assert trial.receipt.validation[0].loss is not None
    assert [check.name for check in trial.receipt.checks if not check.passed] == ["finite"]


def test_the_schema_has_units_and_privacy_and_closes_every_record() -> None:
    schema = json_schema()["$defs"]
    assert sorted(schema) == [kind.__name__ for kind in RECORDS]
    assert schema["Clocks"]["properties"]["native_fit_ns"] == {
        "description": "First request to last update applied, plus the epochs' validation.",
        "type": "integer",
        "unit": "ns",
        "public": True,
    }
    assert schema["TrialReceipt"]["properties"]["host"]["public"] is False
    assert all(record["additionalProperties"] is False for record in schema.values())
