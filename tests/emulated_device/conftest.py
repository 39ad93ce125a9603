"""The plug-in, compiled once for a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.emulated_device.build import build


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plug-in, compiled for this run."""
    return build(tmp_path_factory.mktemp("emulated_device"))
