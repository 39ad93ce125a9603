"""Checkpoints: round trip, readable by the safetensors library, refused when damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from aner_nb.checkpoints import Checkpoint, CheckpointError, load_checkpoint, save_checkpoint


def make(updates: int = 7) -> Checkpoint:
    return Checkpoint("w" * 64, updates, np.arange(5.0), (np.ones(5), np.full(5, 2.0)))


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "state.safetensors"
    save_checkpoint(path, make())
    found = load_checkpoint(path)
    assert (found.work_id, found.updates) == ("w" * 64, 7)
    np.testing.assert_array_equal(found.parameters, np.arange(5.0))
    np.testing.assert_array_equal(found.slots[1], np.full(5, 2.0))


def test_other_tools_read_it(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    save_checkpoint(path, make())
    assert sorted(safetensors.numpy.load_file(path)) == ["optimizer_slot_0", "optimizer_slot_1", "parameters"]


def test_a_later_one_replaces_an_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    save_checkpoint(path, make(1))
    save_checkpoint(path, make(2))
    assert load_checkpoint(path).updates == 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.safetensors"]


@pytest.mark.parametrize("position", [3, 40, -1, -60])
def test_a_changed_byte_is_found(tmp_path: Path, position: int) -> None:
    path = tmp_path / "state.safetensors"
    save_checkpoint(path, make())
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="checkpoint"):
        load_checkpoint(path)


def test_a_cut_or_missing_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    with pytest.raises(CheckpointError, match="not a readable checkpoint"):
        load_checkpoint(path)
    save_checkpoint(path, make())
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match="not a readable checkpoint"):
        load_checkpoint(path)
