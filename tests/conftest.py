"""What all tests share: a private inventory, one session cluster, and a look-out for leaks."""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

os.environ["ANER_NB_INVENTORY"] = str(Path(tempfile.mkdtemp(prefix="aner-tests-")) / "inventory.json")

import aner_nb as aner


@pytest.fixture(scope="session")
def cluster() -> Iterator[aner.Cluster]:
    """Three one-thread CPU workers, shared by all cluster tests."""
    with aner.local_cluster(["cpu:1", "cpu:1", "cpu:1"]) as started:
        yield started


@pytest.fixture
def no_leaks() -> Iterator[None]:
    """Fail if a test leaves descriptors, processes or temporary folders of ours behind."""
    process = psutil.Process()
    gc.collect()
    before = process.num_fds()
    children = len(process.children(recursive=True))
    folders = set(Path(tempfile.gettempdir()).glob("aner-*"))
    yield
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        gc.collect()
        now = process.num_fds(), len(process.children(recursive=True))
        if now[0] <= before + 2 and now[1] <= children:
            break
        time.sleep(0.1)
    assert process.num_fds() <= before + 2
    assert len(process.children(recursive=True)) <= children
    assert set(Path(tempfile.gettempdir()).glob("aner-*")) <= folders
