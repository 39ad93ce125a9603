import sys
sys.path.insert(0,"/work/main/tests/browser")
import pytest
def test_look(notebook, page):
    page = notebook("look", "import aner_nb as aner\napp = aner.app('tiny.yaml', out='results/look')\napp")
    page.wait_for_timeout(1500)
    page.screenshot(path="/work/main/artefacts/look-1.png", full_page=True)
    page.get_by_role("button", name="Run 4 cases").click()
    page.wait_for_timeout(3500)
    page.screenshot(path="/work/main/artefacts/look-2.png")
    page.wait_for_function("document.querySelector('.aner-monitor .aner-note').textContent=='Finished'", timeout=90000)
    page.wait_for_timeout(1500)
    page.screenshot(path="/work/main/artefacts/look-3.png")
    page.locator(".aner-study").scroll_into_view_if_needed()
    page.wait_for_timeout(500)
    page.screenshot(path="/work/main/artefacts/look-4.png")
