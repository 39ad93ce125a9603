"""JupyterLab and a headless Chromium, both started here."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sync_api = pytest.importorskip("playwright.sync_api")
pytest.importorskip("jupyterlab")

ROOT = Path(__file__).parents[2]
ARTEFACTS = ROOT / "artefacts"
CHROMIUM = os.environ.get("ANER_NB_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-quic",
    "--no-first-run",
    "--disable-component-update",
    "--disable-sync",
]
FAILED = pytest.StashKey[bool]()
SETTINGS = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "notebook-extension/tracker": {"windowingMode": "none"},
    "docmanager-extension/plugin": {"autosave": False},
}
SUITE = """
name: tiny
description: Iris on NumPy ranks; seconds.
placements: ["numpy:1", "numpy:1"]
warm_ups: 1
repetitions: 1
defaults: {data: iris, layers: [16, 3], batch: 30}
cases:
  - {name: iris-one, epochs: 40, ranks: ["numpy:1"]}
  - {name: iris-pair, epochs: 40, ranks: ["numpy:1", "numpy:1"]}
  - {name: iris-cuda, epochs: 40, ranks: ["cuda:0"]}
  - {name: iris-f64, epochs: 40, dtype: float64, ranks: ["numpy:1"]}
"""
STEADY = SUITE.replace("name: tiny", "name: steady").replace("epochs: 40", "epochs: 600")
LONG = SUITE.replace("name: tiny", "name: long").replace("epochs: 40", "epochs: 12000")


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Address and folder of a JupyterLab that knows nothing of the person's own settings."""
    home = tmp_path_factory.mktemp("home")
    work = tmp_path_factory.mktemp("work")
    for name, settings in SETTINGS.items():
        file = home / "config" / "lab" / "user-settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(settings))
    extension = home / "data" / "labextensions" / "aner-nb-lab"
    shutil.copytree(ROOT / "widgets" / "labextension", extension)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_PATH": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "IPYTHONDIR": str(home / "ipython"),
        "PYTHONPATH": str(ROOT),
    }
    options = ["--no-browser", "--allow-root", f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    options += ["--IdentityProvider.token=", f"--ServerApp.root_dir={work}", "--ServerApp.ip=127.0.0.1"]
    options += ["--ServerApp.disable_check_xsrf=True", "--LabApp.extension_manager=readonly"]
    with (home / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *options],
            cwd=work,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_for(f"{address}/api/status", process, home / "log")
        yield address, work
    finally:
        process.terminate()
        process.wait(20)


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"JupyterLab did not start: {log.read_text()}")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless Chromium."""
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine; name one in ANER_NB_CHROMIUM")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.when == "call" and report.failed:
        item.stash[FAILED] = True
    return report


@pytest.fixture
def page(browser: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A fresh page whose errors fail the test; a failed test leaves a picture of it."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000}, accept_downloads=True)
    context.set_default_timeout(30_000)
    opened = context.new_page()
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    yield opened
    if request.node.stash.get(FAILED, False):
        ARTEFACTS.mkdir(exist_ok=True)
        opened.screenshot(path=ARTEFACTS / f"failed-{request.node.name}.png")
    context.close()
    assert [text for text in problems if "aner" in text.lower()] == []


@pytest.fixture
def notebook(lab: tuple[str, Path], page: Any) -> Iterator[Notebook]:
    """Opens and runs notebooks in the page; their kernels end with the test."""
    address, work = lab
    (work / "tiny.yaml").write_text(SUITE)
    (work / "steady.yaml").write_text(STEADY)
    (work / "long.yaml").write_text(LONG)
    opened = Notebook(address, work, page)
    yield opened
    opened.end_kernels()


class Notebook:
    """A notebook in JupyterLab."""

    def __init__(self, address: str, work: Path, page: Any) -> None:
        self.address, self.work, self.page = address, work, page

    def open(
        self,
        name: str,
        *cells: str,
        until: str = ".aner-monitor",
        page: Any = None,
        run: int | None = None,
    ) -> Any:
        """Open a notebook with these cells, run all or the first ones, and return the page once `until` is there."""
        page = page or self.page
        if cells:
            (self.work / f"{name}.ipynb").write_text(json.dumps(_document(cells)))
        page.goto(f"{self.address}/lab/workspaces/{name}/tree/{name}.ipynb?reset")
        self.ready(page)
        if cells:
            page.locator(".jp-Notebook .jp-Cell .cm-content").first.click()
        for _ in cells[:run]:
            page.keyboard.press("Shift+Enter")
        if until:
            page.wait_for_selector(until, timeout=60_000)
        return page

    def ready(self, page: Any, state: str = "(Idle|Busy)") -> None:
        """Wait for the notebook and its kernel."""
        page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
        page.wait_for_selector(f"#jp-main-statusbar >> text=/\\| {state}/", timeout=60_000)

    def save(self) -> dict[str, Any]:
        """Save the notebook and return the document."""
        file = max(self.work.glob("*.ipynb"), key=lambda path: path.stat().st_mtime)
        before = file.stat().st_mtime_ns
        self.page.locator(".jp-NotebookPanel").click(position={"x": 5, "y": 5})
        self.page.keyboard.press("Control+s")
        eventually(lambda: file.stat().st_mtime_ns > before and file.read_text().endswith("}\n"))
        return json.loads(file.read_text())

    def restart(self) -> None:
        """Restart the kernel by the menu."""
        self.page.get_by_role("menuitem", name="Kernel", exact=True).click()
        self.page.get_by_role("menuitem", name=re.compile("^Restart Kernel…")).click()
        self.page.get_by_role("button", name=re.compile("Confirm.*Restart")).click()
        self.page.wait_for_selector(".jp-Dialog", state="detached")
        self.ready(self.page, "Idle")

    def end_kernels(self) -> None:
        """Shut every kernel down."""
        for kernel in self.ask("kernels"):
            self.ask(f"kernels/{kernel['id']}", "DELETE")

    def ask(self, path: str, method: str = "GET") -> Any:
        """Call the server's interface."""
        request = urllib.request.Request(f"{self.address}/api/{path}", method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None


def _document(cells: tuple[str, ...]) -> dict[str, Any]:
    empty = {"cell_type": "code", "outputs": [], "metadata": {}, "execution_count": None}
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return {
        "cells": [{**empty, "id": f"cell-{number}", "source": cell} for number, cell in enumerate(cells)],
        "metadata": {"kernelspec": kernel},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def eventually(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
