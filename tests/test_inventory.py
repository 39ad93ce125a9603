"""Opaque names are stable, numbered, and kept in a small file."""

from __future__ import annotations

import fcntl
import hashlib
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from aner_nb.errors import ClusterError
from aner_nb.inventory import VARIABLE, configuration_id, inventory_path, platform_names


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "deep" / "inventory.json"))
    return tmp_path / "deep" / "inventory.json"


def test_machines_are_numbered_in_the_order_in_which_they_are_met(path: Path) -> None:
    assert platform_names(["b", "a"]) == {"b": "Atlas-01", "a": "Atlas-02"}
    assert platform_names(["a", "c"]) == {"a": "Atlas-02", "c": "Atlas-03"}
    assert "Atlas-03" in path.read_text()


@pytest.mark.parametrize("content", ["", "[]", '{"a": "box"}', "{"])
def test_a_damaged_inventory_is_named(path: Path, content: str) -> None:
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(ClusterError, match=r"inventory\.json: the inventory of machine names is damaged"):
        platform_names(["a"])


def test_a_configuration_changes_with_hardware_or_software() -> None:
    facts = {"cores": 2, "packages": {"numpy": "2.0"}}
    assert configuration_id(facts) == configuration_id(dict(reversed(facts.items())))
    assert configuration_id(facts) != configuration_id({**facts, "cores": 4})


def test_equal_names_are_one_machine_and_keep_the_order_of_asking(path: Path) -> None:
    assert list(platform_names(["b", "a", "b"]).items()) == [("b", "Atlas-01"), ("a", "Atlas-02")]
    assert json.loads(path.read_text()) == {"b": "Atlas-01", "a": "Atlas-02"}


def test_nothing_is_written_for_machines_that_are_known(path: Path) -> None:
    platform_names(["a"])
    before = path.stat().st_mtime_ns
    assert platform_names(["a"]) == {"a": "Atlas-01"}
    assert platform_names([]) == {}
    assert path.stat().st_mtime_ns == before


def test_numbers_go_on_after_the_largest_and_are_never_used_twice(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('{"a": "Atlas-07", "b": "My-Box-99"}')
    assert platform_names(["c", "d"]) == {"c": "Atlas-100", "d": "Atlas-101"}
    assert platform_names(["a", "b"]) == {"a": "Atlas-07", "b": "My-Box-99"}


def test_processes_that_meet_machines_at_once_number_each_once(path: Path) -> None:
    script = "import sys; from aner_nb.inventory import platform_names\nfor key in sys.argv[1:]: platform_names([key])"
    keys = [str(number) for number in range(20)]
    runs = [
        subprocess.Popen([sys.executable, "-c", script, *order]) for order in (keys, keys[::-1], keys[7:])
    ]
    assert [run.wait(60) for run in runs] == [0, 0, 0]
    names = json.loads(path.read_text())
    assert sorted(names) == sorted(keys)
    assert sorted(names.values()) == [f"Atlas-{number:02d}" for number in range(1, 21)]


@pytest.mark.parametrize(
    "content", ["\xff", "[" * 100_000, "null", '{"a": 5}', '{"a": ["x-1"]}', '{"a": "Atlas-"}']
)
def test_other_damage_is_named_too(path: Path, content: str) -> None:
    path.parent.mkdir()
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(ClusterError, match="is damaged. Mend it, or delete it to number the machines anew"):
        platform_names(["a"])
    assert path.read_bytes() == content.encode("latin-1")


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file" / "inventory.json"))
    with pytest.raises(
        ClusterError,
        match=r"inventory\.json: the inventory of machine names cannot be kept \((Not a directory|File exists)\)\. "
        "Make the folder writable, or name another file in ANER_NB_INVENTORY",
    ):
        platform_names(["a"])


def test_a_write_that_fails_leaves_the_names_that_were_there(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform_names(["a"])

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(ClusterError, match=r"cannot be kept \(No space left on device\)"):
        platform_names(["b"])
    monkeypatch.undo()
    assert json.loads(path.read_text()) == {"a": "Atlas-01"}


def test_the_inventory_lies_where_the_variable_or_the_desktop_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "mine.json"))
    assert inventory_path() == tmp_path / "mine.json"
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert inventory_path() == tmp_path / "aner_nb" / "inventory.json"
    monkeypatch.setenv("XDG_CONFIG_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert inventory_path() == tmp_path / ".config" / "aner_nb" / "inventory.json"


def test_a_configuration_is_pinned() -> None:
    expected = hashlib.sha256(b'{"cores":2,"packages":{"numpy":"2.0"}}').hexdigest()
    assert configuration_id({"packages": {"numpy": "2.0"}, "cores": 2}) == expected


def test_machines_are_numbered_under_a_lock(path: Path) -> None:
    platform_names(["a"])
    found: list[dict[str, str]] = []
    asking = threading.Thread(target=lambda: found.append(platform_names(["b"])))
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        asking.start()
        asking.join(0.2)
        assert found == []
        path.write_text('{"a": "Atlas-01", "c": "Atlas-02"}')
    asking.join(30)
    assert found == [{"b": "Atlas-03"}]
