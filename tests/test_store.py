"""The results folder: whole files or none, one run at a time, and a sentence for what cannot be read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest

import aner_nb as aner
from aner_nb.files import write_atomically
from aner_nb.receipts import ReceiptError
from aner_nb.store import ResultsFolder, StoreError, is_results_folder


def run(stop: Callable[[], bool] = lambda: False, **changes: Any) -> aner.Trial:
    fields = {"layers": [3], "batch": 45, "epochs": 2, "ranks": ["numpy"], "channel": "inline", **changes}
    return aner.run(aner.Case("tiny", data=aner.iris(), **fields), stop=stop)


@pytest.fixture(scope="module")
def passed() -> aner.Trial:
    return run()


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def fail(error: OSError) -> Callable[..., Any]:
    def failing(*_arguments: object, **_options: object) -> None:
        raise error

    return failing


# ---------------------------------------------------------------- whole or not at all


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_atomically(path, lambda file: file.write(b"first"))
    write_atomically(path, lambda file: file.write(b"second"))
    assert path.read_bytes() == b"second"
    assert files(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("name", ["os.fsync", "pathlib.Path.replace"])
@pytest.mark.parametrize("before", [None, b"before"])
def test_a_write_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, before: bytes | None
) -> None:
    path = tmp_path / "a.txt"
    if before is not None:
        path.write_bytes(before)
    monkeypatch.setattr(name, fail(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left on device"):
        write_atomically(path, lambda file: file.write(b"after"))
    assert files(tmp_path) == ([] if before is None else ["a.txt"])
    assert before is None or path.read_bytes() == before


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt("now")])
def test_whatever_ends_the_filling_nothing_is_left(tmp_path: Path, error: BaseException) -> None:
    def fill(file: BinaryIO) -> None:
        file.write(b"half")
        raise error

    with pytest.raises(type(error), match=str(error)):
        write_atomically(tmp_path / "a.txt", fill)
    assert files(tmp_path) == []


def test_nobody_ever_sees_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"

    def fill(file: BinaryIO) -> None:
        file.write(b"{")
        file.flush()
        assert not path.exists()
        assert list(tmp_path.glob("*.json")) == []
        file.write(b"}")

    write_atomically(path, fill)
    assert path.read_bytes() == b"{}"


# ---------------------------------------------------------------- trials


def test_a_trial_is_three_files_and_its_receipt_is_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passed: aner.Trial
) -> None:
    order: list[str] = []
    replace = Path.replace

    def noting(self: Path, target: Path) -> Path:
        order.append(target.name)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", noting)
    folder = ResultsFolder(tmp_path)
    with folder.writing():
        path = folder.save(passed)
    assert order == ["trial-1.steps.npz", "trial-1.parameters.npy", "trial-1.json"]
    assert files(tmp_path) == [".lock", *(f"receipts/tiny/{name}" for name in sorted(order))]
    assert path == tmp_path / "receipts" / "tiny" / "trial-1.json"
    np.testing.assert_array_equal(folder.vector(passed.receipt), passed.parameters)
    assert is_results_folder(tmp_path)


def test_an_empty_folder_holds_nothing(tmp_path: Path, passed: aner.Trial) -> None:
    folder = ResultsFolder(tmp_path / "none")
    assert folder.receipts() == []
    assert folder.vector(passed.receipt) is None
    assert folder.steps(passed.receipt) is None
    assert folder.document("suite") is None
    assert not is_results_folder(tmp_path)


def test_roles_and_outcomes_have_names_of_their_own(tmp_path: Path, passed: aner.Trial) -> None:
    case = aner.Case(
        "tiny", data=aner.iris(), layers=[3], batch=45, epochs=1, ranks=["numpy"], channel="inline"
    )
    folder = ResultsFolder(tmp_path)
    with folder.writing():
        names = [
            folder.save(aner.run(case, role="warm_up")).name,
            folder.save(run(stop=lambda: True)).name,
            folder.save(passed).name,
        ]
    assert names == ["warmup-1.json", "trial-1.cancelled-1.json", "trial-1.json"]
    assert [receipt.status for receipt in folder.receipts()] == ["cancelled", "passed", "passed"]


@pytest.mark.parametrize("saved", [0, 1, 2])
@pytest.mark.parametrize(
    ("number", "sentence"), [(28, "No space left on device"), (30, "Read-only file system")]
)
def test_a_disk_that_refuses_a_file_leaves_no_receipt_and_no_scrap(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    passed: aner.Trial,
    saved: int,
    number: int,
    sentence: str,
) -> None:
    folder = ResultsFolder(tmp_path)
    replace = Path.replace
    count = iter(range(9))

    def failing(self: Path, target: Path) -> Path:
        if next(count) >= saved:
            raise OSError(number, sentence)
        return replace(self, target)

    with folder.writing():
        monkeypatch.setattr(Path, "replace", failing)
        with pytest.raises(
            StoreError, match=rf"results cannot be written \({sentence}\)\. Free space or make"
        ):
            folder.save(passed)
        assert folder.receipts() == []
        assert not [path for path in files(tmp_path / "receipts") if Path(path).name.startswith(".")]
        monkeypatch.undo()
        folder.save(passed)
    assert folder.receipts() == [passed.receipt]


def test_a_full_device_is_a_sentence(tmp_path: Path, passed: aner.Trial) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    folder = ResultsFolder(tmp_path)
    (tmp_path / "receipts" / "tiny").mkdir(parents=True)
    with folder.writing():
        (tmp_path / "receipts" / "tiny" / f".trial-1.steps.npz.{os.getpid()}").symlink_to("/dev/full")
        with pytest.raises(StoreError, match="No space left on device"):
            folder.save(passed)
    assert folder.receipts() == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file")
    with pytest.raises(
        StoreError, match=r"results: results cannot be written \((Not a directory|File exists)\)"
    ):
        with ResultsFolder(tmp_path / "results").writing():
            pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StoreError, match=r"results cannot be written \(Permission denied\)"):
            with ResultsFolder(tmp_path / "results").writing():
                pass
    finally:
        tmp_path.chmod(0o700)


# ---------------------------------------------------------------- one run at a time

HOLD = """
import sys
from pathlib import Path
from aner_nb.store import ResultsFolder
with ResultsFolder(Path(sys.argv[1])).writing():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_another_process_that_writes_is_named_and_its_end_frees_the_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdin is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(
            StoreError, match=rf"another run writes here \(process {holder.pid}\)\. Wait for it"
        ):
            with ResultsFolder(tmp_path).writing():
                pass
        holder.kill()
        holder.wait()
    with ResultsFolder(tmp_path).writing():
        assert (tmp_path / ".lock").read_text() == f"process {os.getpid()}"


def test_a_folder_can_be_held_again_after_an_error(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="^mine$"):
            with ResultsFolder(tmp_path).writing():
                raise ValueError("mine")


# ---------------------------------------------------------------- reading


def test_only_the_damaged_receipt_is_named(tmp_path: Path, passed: aner.Trial) -> None:
    folder = ResultsFolder(tmp_path)
    with folder.writing():
        path = folder.save(passed)
    path.with_name("trial-2.json").write_bytes(path.read_bytes()[:-40])
    with pytest.raises(
        ReceiptError, match=r"^receipts/tiny/trial-2\.json: not a receipt .* remove it to run its trial"
    ):
        folder.receipts()


def test_a_receipt_in_another_cases_folder_is_refused(tmp_path: Path, passed: aner.Trial) -> None:
    folder = ResultsFolder(tmp_path)
    with folder.writing():
        folder.save(passed).parent.rename(tmp_path / "receipts" / "other")
    with pytest.raises(
        ReceiptError, match=r"other/trial-1\.json: the receipt of case 'tiny' lies in the folder"
    ):
        folder.receipts()


def test_an_oversized_receipt_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "receipts" / "tiny" / "trial-1.json"
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(16 * 2**20 + 1)
    with pytest.raises(ReceiptError, match="a file of over 16777216 bytes is no receipt"):
        ResultsFolder(tmp_path).receipts()


# ---------------------------------------------------------------- documents


def test_a_document_is_sorted_json(tmp_path: Path) -> None:
    folder = ResultsFolder(tmp_path)
    folder.save_document("suite", {"b": 1, "a": ["é"]})
    assert folder.document("suite") == {"a": ["é"], "b": 1}
    assert list(json.loads((tmp_path / "suite.json").read_text())) == ["a", "b"]


@pytest.mark.parametrize("content", ["", "[1]", "{"])
def test_a_damaged_document_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "suite.json").write_text(content)
    with pytest.raises(StoreError, match=r"suite\.json: not a JSON object"):
        ResultsFolder(tmp_path).document("suite")


def test_a_document_that_cannot_be_written_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", fail(OSError(5, "Input/output error")))
    with pytest.raises(StoreError, match=r"results cannot be written \(Input/output error\)"):
        ResultsFolder(tmp_path).save_document("suite", {})
    assert files(tmp_path) == []


def test_every_attempt_that_failed_is_kept(tmp_path: Path) -> None:
    folder = ResultsFolder(tmp_path)
    stopped = run(stop=lambda: True)
    with folder.writing():
        names = [folder.save(stopped).name for _ in range(3)]
    assert names == [f"trial-1.cancelled-{attempt}.json" for attempt in (1, 2, 3)]
    assert folder.receipts() == [stopped.receipt] * 3


def test_the_columns_by_update_are_kept(tmp_path: Path, passed: aner.Trial) -> None:
    folder = ResultsFolder(tmp_path)
    with folder.writing():
        folder.save(passed)
    steps = folder.steps(passed.receipt)
    assert steps is not None and passed.steps is not None
    assert {name: column.shape[:2] for name, column in steps.items()} == {
        "coordinator_ns": (4, 3),
        "ranks_ns": (4, 1),
        "rows": (4, 1),
        "loss": (4,),
    }
    np.testing.assert_array_equal(steps["loss"], passed.steps.loss)


# ---------------------------------------------------------------- nothing measured is lost


def test_a_passed_trial_is_never_overwritten(tmp_path: Path, passed: aner.Trial) -> None:
    folder = ResultsFolder(tmp_path)
    with folder.writing():
        folder.save(passed)
        before = {name: (tmp_path / name).read_bytes() for name in files(tmp_path)}
        with pytest.raises(
            StoreError, match=r"trial-1\.json: tiny has passed measured 1 here already; .* never overwritten"
        ):
            folder.save(run())
    assert {name: (tmp_path / name).read_bytes() for name in files(tmp_path)} == before


def test_scraps_of_a_killed_run_are_swept_and_nothing_else(tmp_path: Path, passed: aner.Trial) -> None:
    folder = ResultsFolder(tmp_path)
    with folder.writing():
        folder.save(passed)
    kept = files(tmp_path)
    (tmp_path / "receipts" / "tiny" / ".trial-2.json.4711").write_text("{")
    (tmp_path / ".suite.json.4711").write_text("{")
    with folder.writing():
        assert files(tmp_path) == kept


@pytest.mark.parametrize("name", ["trial-1.parameters.npy", "trial-1.steps.npz"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: b"\x00" * len(data),
        lambda data: data[:20] + b"\xff" * 30 + data[50:],
        lambda data: data[:-30] + bytes(30),
        lambda data: b"PK\x05\x06" + bytes(18),
        lambda data: b"\x80\x04K\x01.",
    ],
)
def test_a_damaged_array_is_named_and_its_receipt_stays(
    tmp_path: Path, passed: aner.Trial, name: str, damage: Callable[[bytes], bytes]
) -> None:
    folder = ResultsFolder(tmp_path)
    with folder.writing():
        folder.save(passed)
    path = tmp_path / "receipts" / "tiny" / name
    path.write_bytes(damage(path.read_bytes()))
    read = folder.vector if name.endswith("npy") else folder.steps
    with pytest.raises(
        StoreError, match=rf"{name}: the file is damaged \(.+\)\. .*delete it: only the trial's"
    ):
        read(passed.receipt)
    path.unlink()
    assert read(passed.receipt) is None
    assert folder.receipts() == [passed.receipt]


@pytest.mark.parametrize("name", ["trial-1.parameters.npy", "trial-1.steps.npz"])
def test_whatever_byte_of_an_array_changes_only_our_error_comes(
    tmp_path: Path, passed: aner.Trial, name: str
) -> None:
    folder = ResultsFolder(tmp_path)
    with folder.writing():
        folder.save(passed)
    path = tmp_path / "receipts" / "tiny" / name
    whole = path.read_bytes()
    read = folder.vector if name.endswith("npy") else folder.steps
    random = np.random.default_rng(4)
    refused = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(400):
            data = bytearray(whole)
            for position in random.integers(0, len(data), random.integers(1, 5)):
                data[position] = random.integers(256)
            path.write_bytes(data)
            try:
                read(passed.receipt)
            except StoreError:
                refused += 1
    assert refused > (390 if name.endswith("npy") else 100)  # every changed parameter is noticed


def test_parameters_of_another_trial_are_noticed(tmp_path: Path, passed: aner.Trial) -> None:
    folder = ResultsFolder(tmp_path)
    assert passed.parameters is not None
    with folder.writing():
        folder.save(passed)
    np.save(tmp_path / "receipts" / "tiny" / "trial-1.parameters.npy", passed.parameters * 2)
    with pytest.raises(StoreError, match=r"the file is damaged \(not the trial's\)"):
        folder.vector(passed.receipt)
