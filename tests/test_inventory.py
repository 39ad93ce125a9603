"""Opaque names are stable, numbered, and kept in a small file."""

from __future__ import annotations

from pathlib import Path

import pytest

from aner_nb.errors import ClusterError
from aner_nb.inventory import VARIABLE, configuration_id, platform_names


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
