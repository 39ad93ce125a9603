"""The JupyterLab extension: reports from the file browser, palette, launcher, settings, themes, hostile files."""

from __future__ import annotations

import ast
import importlib.resources
import json
import shutil
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]
ARTEFACTS = ROOT / "artefacts"
AXE = importlib.resources.files("axe_playwright_python") / "axe.min.js"
SHIPPED = ROOT / "docs" / "results" / "cpu"
MARKUP = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script>"
HOSTILE = {
    "suite": {"name": MARKUP, "description": MARKUP},
    "summaries": {
        "cases": [
            {"case": MARKUP, "status": "passed", "placements": [MARKUP, 7], "weights": ["x", {}],
             "native_fit": {"median_ns": 1e400, "minimum_ns": "<b>", "maximum_ns": None}, "reason": MARKUP},
            {"case": "two", "status": MARKUP, "native_fit": {"median_ns": 3, "minimum_ns": 2, "maximum_ns": 4},
             "fit_comparison": {"ratio": 2, "baseline": MARKUP}, "agreement": {"agrees": "yes"}, "measured": 3},
        ],
        "warnings": [MARKUP, {"a": 1}],
    },
}  # fmt: skip


def open_lab(lab: tuple[str, Path], page: Any, name: str, tree: str = "") -> Path:
    """Open JupyterLab in an empty workspace, at a folder of its root; return the root."""
    address, work = lab
    page.goto(f"{address}/lab/workspaces/{name}{f'/tree/{tree}' if tree else ''}?reset")
    page.wait_for_selector(".jp-DirListing-content", timeout=60_000)
    return work


def double_click(page: Any, item: str) -> None:
    page.locator(".jp-DirListing-item", has=page.get_by_text(item, exact=True)).dblclick()


def palette(page: Any, command: str) -> None:
    """Run a command from the palette."""
    page.keyboard.press("Control+Shift+c")
    page.locator(".jp-ModalCommandPalette input").fill(command)
    page.locator(".jp-ModalCommandPalette .lm-CommandPalette-item", has_text=command).first.click()


def picture(page: Any, name: str) -> None:
    ARTEFACTS.mkdir(exist_ok=True)
    page.screenshot(path=ARTEFACTS / f"{name}.png")


def serious(page: Any) -> list[str]:
    """Return axe's serious and critical findings in reports."""
    page.evaluate(AXE.read_text("utf-8"))
    result = page.evaluate("axe.run({include: [['.aner-report']]}, {resultTypes: ['violations']})")
    return [finding["id"] for finding in result["violations"] if finding["impact"] in ("serious", "critical")]


def set_settings(address: str, values: dict[str, str]) -> None:
    request = urllib.request.Request(
        f"{address}/lab/api/settings/aner-nb-lab:plugin",
        data=json.dumps({"raw": json.dumps(values)}).encode(),
        method="PUT",
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 204


def running_kernels(address: str) -> list[dict[str, Any]]:
    """Return the server's kernels; while one is just starting, the server answers with an error of its own."""
    deadline = time.monotonic() + 15
    while True:
        try:
            with urllib.request.urlopen(f"{address}/api/kernels", timeout=30) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def test_a_bundle_opens_from_the_file_browser_and_follows_the_theme(lab: Any, page: Any) -> None:
    shutil.copytree(SHIPPED, lab[1] / "bundle", dirs_exist_ok=True)
    open_lab(lab, page, "bundle")
    double_click(page, "bundle")
    double_click(page, "summaries.json")
    page.wait_for_selector(".aner-report table")
    words = page.locator(".aner-report").inner_text()
    groups = [
        case
        for case in json.loads((SHIPPED / "summaries.json").read_text())["cases"]
        if case["fit_comparison"]
    ]
    won = sum(group["fit_comparison"]["ratio"] > 1 for group in groups)
    assert f"{won} of {len(groups)} groups beat their fastest standalone placement" in words
    assert "19 of 19 cases agree" in words
    assert page.locator(".aner-report tbody tr").count() == 19
    assert serious(page) == []
    picture(page, "lab-report-light")

    back = "getComputedStyle(document.querySelector('.aner-report')).backgroundColor"
    light = page.evaluate(back)
    palette(page, "Use Theme: JupyterLab Dark")
    page.wait_for_selector("body[data-jp-theme-light='false']", state="attached")
    page.wait_for_function(f"{back} !== '{light}'")
    page.wait_for_selector("#jupyterlab-splash", state="hidden")
    assert serious(page) == []
    picture(page, "lab-report-dark")
    palette(page, "Use Theme: JupyterLab Light")
    page.wait_for_selector("body[data-jp-theme-light='true']", state="attached")

    page.get_by_role("button", name="Open the whole report").click()
    page.wait_for_selector(".jp-HTMLViewer iframe")
    page.get_by_role("tab", name="summaries.json").click()
    page.get_by_role("button", name="Show as text").click()
    page.wait_for_selector(".jp-FileEditor .cm-content")


def test_hostile_text_stays_text(lab: Any, page: Any) -> None:
    (lab[1] / "hostile.aner.json").write_text(json.dumps(HOSTILE).replace("Infinity", "1e999"))
    (lab[1] / "nothing.aner.json").write_text('{"cases": [1]}')
    (lab[1] / "broken.aner.json").write_text(MARKUP)
    open_lab(lab, page, "hostile")
    double_click(page, "hostile.aner.json")
    page.wait_for_selector(".aner-report table")
    assert page.locator(".aner-report h1").inner_text() == f"Study {MARKUP}"
    assert MARKUP in page.locator(".aner-report tbody").inner_text()
    for name, sentence in (("nothing", "it has no list of cases"), ("broken", "is not JSON")):
        double_click(page, f"{name}.aner.json")
        page.wait_for_selector(f".aner-report [role=alert]:has-text('{sentence}')")
    assert (
        page.evaluate(
            "[...document.querySelectorAll('.aner-report')].some(e => e.querySelector('img, script'))"
        )
        is False
    )
    assert page.evaluate("window.hacked") is None
    picture(page, "lab-report-hostile")


def test_the_palette_makes_a_notebook_from_the_settings(lab: Any, page: Any) -> None:
    address, work = lab
    scheduler = 'tls://scheduler:8786"); import os  # \\'
    set_settings(address, {"scheduler": scheduler, "outputFolder": "results/mine"})
    try:
        (work / "new").mkdir(exist_ok=True)
        open_lab(lab, page, "palette", "new")
        palette(page, "New Aner benchmark notebook")
        page.wait_for_selector(".jp-Notebook .jp-CodeCell")
        picture(page, "lab-notebook")
        (made,) = work.glob("new/*.ipynb")
        code = json.loads(made.read_text())["cells"][1]["source"]
        call = ast.parse("".join(code)).body[1].value  # type: ignore[attr-defined]
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        assert given["cluster"].args[0].value == scheduler
        assert given["out"].value == "results/mine"
    finally:
        set_settings(address, {})
        for kernel in running_kernels(address):
            urllib.request.urlopen(
                urllib.request.Request(f"{address}/api/kernels/{kernel['id']}", method="DELETE"), timeout=30
            )


def test_the_launcher_has_a_card_and_results_open_by_a_dialog(lab: Any, page: Any) -> None:
    (lab[1] / "chosen").mkdir(exist_ok=True)
    shutil.copy(SHIPPED / "summaries.json", lab[1] / "chosen" / "study.aner.json")
    (lab[1] / "chosen" / "other.json").write_text("{}")
    open_lab(lab, page, "launcher", "chosen")
    page.wait_for_selector(".jp-LauncherCard:has-text('Aner benchmark')")
    picture(page, "lab-launcher")
    palette(page, "Open results…")
    dialog = page.locator(".jp-Dialog")
    dialog.locator(".jp-DirListing-item", has_text="study.aner.json").click()
    assert dialog.locator(".jp-DirListing-item", has_text="other.json").count() == 0
    dialog.get_by_role("button", name="Select").click()
    page.wait_for_selector(".aner-report tbody tr >> nth=18")
