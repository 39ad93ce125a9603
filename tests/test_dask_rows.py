"""Rows of Dask collections: the same as in memory, to the bit, however they are cut; none comes to the client."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import distributed
import distributed.comm.tcp
import numpy as np
import pandas
import pytest

import aner_nb as aner
from aner_nb.dask_frames import workers_of
from aner_nb.errors import CaseError, ClusterError
from aner_nb.file_rows import PlacedRows
from aner_nb.work import make_work

arrays: Any = pytest.importorskip("dask.array")
frames: Any = pytest.importorskip("dask.dataframe")
dask: Any = pytest.importorskip("dask")

pytestmark = pytest.mark.cluster

ROWS, WIDTH = 3000, 6


@pytest.fixture(scope="module")
def pair() -> Iterator[aner.Cluster]:
    """Two workers with ranks of the reference: nothing loads TensorFlow."""
    with aner.local_cluster(["numpy:1", "numpy:1"]) as started:
        yield started


def features_of(rows: int = ROWS, width: int = WIDTH) -> np.ndarray:
    return np.random.default_rng(5).normal(size=(rows, width)).astype(np.float32)


def frame_of(rows: int = ROWS) -> pandas.DataFrame:
    values = features_of(rows)
    frame = pandas.DataFrame(values, columns=[f"x{index}" for index in range(WIDTH)])
    frame["where"] = np.array(["Köln", "Aš", "Ōsaka", "Łódź"])[np.arange(rows) * 7 % 4]
    frame.loc[np.arange(rows) % 11 == 3, ["x1", "where"]] = None
    frame["kind"] = np.where(values[:, 0] + values[:, 2] > 0, "Äpfel", "Birnen")
    return frame


OPTIONS: dict[str, Any] = {"target": "kind", "categorical": "one_hot", "missing": "mean"}


def case_of(data: Any, **fields: Any) -> aner.Case:
    given = {
        "layers": [8, 2],
        "batch": 64,
        "epochs": 2,
        "ranks": ["numpy:1", ("numpy:1", 2)],
        "seed": 3,
    }
    return aner.Case("rows", data=data, **{**given, **fields})


def outcome(trial: aner.Trial) -> Any:
    receipt = trial.raise_unless_passed().receipt
    assert receipt.fingerprints is not None
    losses = [(epoch.train_loss, epoch.loss, epoch.accuracy) for epoch in receipt.validation]
    return receipt.fingerprints, receipt.test, losses


def test_a_frame_trains_to_the_same_bits_as_the_table_however_it_is_cut(
    pair: aner.Cluster, tmp_path: Path
) -> None:
    frame = frame_of()
    table = aner.table(frame, **OPTIONS)
    expected = outcome(aner.run(case_of(table, class_weights="balanced"), pair))
    for partitions in (1, 3, 7):
        data = aner.stored(
            frames.from_pandas(frame, npartitions=partitions),
            **OPTIONS,
            cluster=pair,
            cache=tmp_path / str(partitions),
        )
        assert data.sha256 == table.sha256
        assert data.class_names == table.class_names == ("Birnen", "Äpfel")
        case = case_of(data, class_weights="balanced")
        if partitions == 3:  # what the ranks would be given
            work = make_work(case)[0]
            assert tuple(work.fingerprints()) == expected[0].partitions
            continue
        trial = aner.run(case, pair)
        assert outcome(trial) == expected
        assert trial.work is not None and isinstance(trial.work.data.train.features, PlacedRows)


@pytest.mark.parametrize(
    ("chunk", "labels"),
    [
        (700, True),
        pytest.param(ROWS, True, marks=pytest.mark.long),
        pytest.param(900, False, marks=pytest.mark.long),
    ],
)
def test_arrays_train_to_the_same_bits_as_in_memory(
    pair: aner.Cluster, tmp_path: Path, chunk: int, labels: bool
) -> None:
    features = features_of()
    targets = np.digitize(features[:, 0], [-0.5, 0.5]) if labels else features[:, 0] * 2.5 + 1.0
    task: Any = "classification" if labels else "regression"
    fields: dict[str, Any] = {"layers": [8, 3 if labels else 1]}
    expected = outcome(aner.run(case_of(aner.arrays(features, targets), **fields), pair))
    data = aner.stored(
        arrays.from_array(features, chunks=(chunk, 4)),
        target=arrays.from_array(targets, chunks=800),
        task=task,
        cluster=pair.client,
        cache=tmp_path,
    )
    assert outcome(aner.run(case_of(data, **fields), pair)) == expected


def test_the_client_gets_no_training_row(
    pair: aner.Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Count every byte that Dask brings into this process, its scheduler included, while rows are made by workers."""
    rows, width, parts = 6_000, 256, 6

    def made(number: int) -> pandas.DataFrame:
        values = np.random.default_rng(number).normal(size=(rows // parts, width))
        part = pandas.DataFrame(values, columns=[f"x{index}" for index in range(width)])
        part["y"] = values[:, 0] > 0
        return part

    received = 0
    inner = distributed.comm.tcp.from_frames

    async def counted(frames: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal received
        received += sum(len(memoryview(frame).cast("B")) for frame in frames)
        return await inner(frames, *args, **kwargs)

    monkeypatch.setattr(distributed.comm.tcp, "from_frames", counted)
    data = aner.stored(
        frames.from_delayed([dask.delayed(made)(number) for number in range(parts)], meta=made(0)[:0]),
        target="y",
        cluster=pair,
        cache=tmp_path,
    )
    case = case_of(data, batch=512, epochs=1)
    trial = aner.run(case, pair).raise_unless_passed()
    one_reading = rows * width * 8
    print(f"{received:,} bytes came in; one reading of the rows is {one_reading:,}")
    # Targets, the split, digests, and what Dask says of its tasks; a trial reads all rows three times more.
    assert 10_000 < received < one_reading / 10
    with pytest.raises(CaseError, match="lie with the ranks and do not come to this process"):
        trial.work.data.train.features[0:1]  # pyright: ignore[reportOptionalMemberAccess]


def test_a_persisted_frame_is_taken_from_the_workers_memory(pair: aner.Cluster, tmp_path: Path) -> None:
    frame = frame_of(600)
    kept = pair.client.persist(frames.from_pandas(frame, npartitions=2))
    data = aner.stored(kept, **OPTIONS, cluster=pair, cache=tmp_path)
    assert data.sha256 == aner.table(frame, **OPTIONS).sha256
    assert aner.run(case_of(data), pair).raise_unless_passed()


@pytest.mark.skipif(
    not Path("/proc/self/cwd").exists(), reason="needs a path that each process sees as its own"
)
def test_workers_without_a_common_disk_keep_their_ranks_rows_and_send_them_to_each_other(
    tmp_path: Path,
) -> None:
    """Every worker, and this process, has another folder under one path."""
    frame = frame_of()
    expected = None
    with aner.local_cluster(["numpy:1", "numpy:1"]) as cluster:
        workers = workers_of(cluster.client)
        for number, address in enumerate(sorted(workers, key=lambda address: workers[address]["name"])):
            own = tmp_path / f"worker-{number}"
            own.mkdir()
            cluster.client.run(os.chdir, str(own), workers=[address])
        data = aner.stored(
            frames.from_pandas(frame, npartitions=3), **OPTIONS, cluster=cluster, cache="/proc/self/cwd/cache"
        )
        here = Path.cwd()
        try:
            (tmp_path / "client").mkdir()
            os.chdir(tmp_path / "client")
            found = outcome(aner.run(case_of(data), cluster))
        finally:
            os.chdir(here)
    own = {name: sorted(tmp_path.glob(f"{name}/cache/*/*")) for name in ("client", "worker-0", "worker-1")}
    names = {name: {path.name for path in paths} for name, paths in own.items()}
    assert names["client"] == {"validation.features", "validation.targets", "test.features", "test.targets"}
    assert "staged.json" in names["worker-0"]
    assert names["worker-1"] == {"train.features", "train.targets"}
    full, part = (
        next(path for path in own[name] if path.name == "train.features") for name in ("worker-0", "worker-1")
    )
    assert full.stat().st_size == part.stat().st_size
    assert full.read_bytes() != part.read_bytes()  # of the other rank's rows it has none
    expected = outcome(aner.run(case_of(aner.table(frame, **OPTIONS), channel="inline")))
    assert found == expected


@pytest.mark.long
def test_a_calibration_needs_none_of_the_rows(pair: aner.Cluster, tmp_path: Path) -> None:
    data = aner.stored(
        frames.from_pandas(frame_of(600), npartitions=2), **OPTIONS, cluster=pair, cache=tmp_path
    )
    trial = aner.run(case_of(data, balance="auto"), pair).raise_unless_passed()
    assert len(trial.receipt.calibration) == 2


def test_rows_that_changed_are_refused(pair: aner.Cluster, tmp_path: Path) -> None:
    source = tmp_path / "rows.csv"
    frame_of(200).to_csv(source, index=False)

    def made(path: str) -> pandas.DataFrame:
        return pandas.read_csv(path)

    lazy = dask.delayed(made, pure=False)(str(source))
    data = aner.stored(
        frames.from_delayed([lazy], meta=made(str(source))[:0]), **OPTIONS, cluster=pair, cache=tmp_path
    )
    source.write_text(source.read_text().replace("Birnen", "Kirschen"))
    with pytest.raises(CaseError, match="the rows changed after they were described"):
        make_work(case_of(data))


def test_an_inline_rank_is_refused_with_the_way(pair: aner.Cluster, tmp_path: Path) -> None:
    data = aner.stored(
        frames.from_pandas(frame_of(300), npartitions=2), **OPTIONS, cluster=pair, cache=tmp_path
    )
    with pytest.raises(CaseError, match="lie with the ranks.*channel='inline' need stored"):
        aner.run(case_of(data, channel="inline"))


def broken() -> Any:
    def fail() -> pandas.DataFrame:
        raise ValueError("of the person's own")

    return frames.from_delayed([dask.delayed(fail)()], meta=frame_of(2)[:0])


@pytest.mark.parametrize(
    ("make", "options", "error", "sentence"),
    [
        (broken, {}, CaseError, "a partition cannot be computed .ValueError: of the person's own"),
        (lambda: frame_of(10), {}, CaseError, "DataFrame is neither a path nor a Dask DataFrame or array"),
        (
            lambda: frames.from_pandas(frame_of(10), npartitions=1),
            {"cache": None},
            CaseError,
            "need a folder where their workers keep",
        ),
        (
            lambda: frames.from_pandas(frame_of(10), npartitions=1),
            {"target": None},
            CaseError,
            "the target of a Dask DataFrame is no name",
        ),
        (lambda: arrays.zeros((9, 2)), {}, CaseError, "the target of a Dask array is no Dask array"),
        (
            lambda: arrays.zeros((9, 2)),
            {"target": arrays.zeros((8,))},
            CaseError,
            "the targets do not fit the rows of features",
        ),
        (
            lambda: arrays.zeros((9, 2, 2)),
            {"target": arrays.zeros((9,))},
            CaseError,
            "arrays of 3 and 1 dimensions are not .rows, features. and .rows,.",
        ),
        (
            lambda: frames.from_pandas(frame_of(10), npartitions=1),
            {"cluster": None},
            CaseError,
            "Dask rows need the cluster whose workers hold them",
        ),
    ],
)
def test_what_cannot_be_read_is_refused(
    pair: aner.Cluster, tmp_path: Path, make: Any, options: dict[str, Any], error: Any, sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        aner.stored(make(), **{**OPTIONS, "cluster": pair, "cache": tmp_path, **options})


def test_rows_that_no_worker_sees_any_more_are_told(pair: aner.Cluster, tmp_path: Path) -> None:
    from aner_nb.placing import place_rows
    from aner_nb.work import make_setups

    data = aner.stored(
        frames.from_pandas(frame_of(300), npartitions=2), **OPTIONS, cluster=pair, cache=tmp_path
    )
    setups = make_setups(make_work(case_of(data))[0])
    (record,) = tmp_path.glob("*/staged.json")
    record.unlink()
    addresses = list(workers_of(pair.client))
    with pytest.raises(ClusterError, match="no worker sees the rows that were prepared"):
        place_rows(pair.client, setups, addresses)


@pytest.mark.long
def test_a_lost_reader_is_told_and_nobody_waits(tmp_path: Path) -> None:
    def slow() -> pandas.DataFrame:
        time.sleep(60)
        return pandas.DataFrame()

    with aner.local_cluster(["numpy:1", "numpy:1"]) as cluster:
        workers = workers_of(cluster.client)
        first = min(workers, key=lambda address: workers[address]["name"])
        pid = cluster.client.run(os.getpid, workers=[first])[first]
        threading.Timer(1.5, os.kill, (pid, signal.SIGKILL)).start()
        began = time.monotonic()
        with pytest.raises(ClusterError, match="the worker that reads the rows (was lost|could not go on)"):
            aner.stored(
                frames.from_delayed([dask.delayed(slow)()], meta=frame_of(2)[:0]),
                **OPTIONS,
                cluster=cluster,
                cache=tmp_path,
            )
        assert time.monotonic() - began < 20
