"""What all tests share: a private temporary folder and inventory, one session cluster, a look-out for leaks."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

# Sessions that run side by side must not see each other's leftovers; pytest's own folders stay where they were.
# The path is short enough for the address of a Unix socket.
_DEFAULT = tempfile.gettempdir()
_FOLDER = Path(tempfile.mkdtemp(prefix="aner-tests-", dir=_DEFAULT if len(_DEFAULT) < 32 else "/tmp"))
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", _DEFAULT)
os.environ["TMPDIR"] = tempfile.tempdir = str(_FOLDER)
os.environ["ANER_NB_INVENTORY"] = str(_FOLDER / "inventory.json")

import aner_nb as aner


@pytest.fixture(scope="session", autouse=True)
def nothing_outlives_the_session() -> Iterator[None]:
    """Fail if the session leaves processes or folders of ours behind; runs after the session cluster has closed."""
    yield
    processes = psutil.Process().children(recursive=True)
    _, alive = psutil.wait_procs(processes, timeout=10)
    left = [" ".join(process.cmdline()) for process in alive if process.is_running()]
    folders = our_folders()
    shutil.rmtree(_FOLDER, ignore_errors=True)
    assert [line for line in left if "resource_tracker" not in line] == []  # it ends with this process
    assert folders == set()


_DASKS_OWN = 6
"""Descriptors that the session's cluster may open meanwhile: Dask opens connections for its own talk, and drops them."""


def our_folders() -> set[Path]:
    """Return what the package has made in the temporary folder."""
    return set(_FOLDER.glob("aner-*"))


@pytest.fixture(scope="session")
def cluster() -> Iterator[aner.Cluster]:
    """Three one-thread CPU workers, shared by all cluster tests."""
    with aner.local_cluster(["cpu:1", "cpu:1", "cpu:1"]) as started:
        yield started


@pytest.fixture(autouse=True)
def tensorflow_has_one_thread(request: pytest.FixtureRequest) -> None:
    """Set TensorFlow up as inline ranks need it: whichever test of this process comes first, all can follow."""
    if request.node.get_closest_marker("tensorflow") and not request.node.get_closest_marker("cluster"):
        from aner_nb.backends.tensorflow import configure

        configure(aner.Placement.parse("cpu:1"))


@pytest.fixture
def no_leaks() -> Iterator[None]:
    """Fail if a test leaves descriptors, processes or temporary folders of ours behind."""
    process = psutil.Process()
    gc.collect()
    before = process.num_fds()
    children = len(process.children(recursive=True))
    folders = our_folders()
    yield
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        gc.collect()
        now = process.num_fds(), len(process.children(recursive=True))
        if now[0] <= before + _DASKS_OWN and now[1] <= children:
            break
        time.sleep(0.1)
    assert process.num_fds() <= before + _DASKS_OWN
    assert len(process.children(recursive=True)) <= children
    assert our_folders() <= folders
