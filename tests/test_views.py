"""Results in plain notebooks: HTML with a text fall-back, hostile text escaped; and the magics."""

from __future__ import annotations

import html.parser
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.error import UsageError
from IPython.lib.pretty import pretty
from IPython.utils.capture import capture_output

import aner_nb as aner
from aner_nb.background import BackgroundRun
from aner_nb.case import Case, Placement
from aner_nb.cluster import Cluster
from aner_nb.data import iris
from aner_nb.errors import RankLost
from aner_nb.plan import make_plan
from aner_nb.ranks import Offer
from aner_nb.study import Study
from aner_nb.suites import Suite
from aner_nb.trial import Trial
from aner_nb.views import cluster_html, table, text, trial_html

HOSTILE = "\"><script>alert(1)</script><img src=x onerror=alert(1)>'"
CASE = Case(
    "a", data=iris(), layers=[8, 3], batch=30, epochs=2, ranks=["numpy:1", ("numpy:1", 7)], channel="inline"
)


class Tags(html.parser.HTMLParser):
    """Collects the elements of HTML, and checks that they are closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: set[str] = set()
        self.words = ""
        self._open: list[str] = []
        self.feed(page)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.names.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag != "img":
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


@pytest.fixture(scope="module")
def trial() -> Trial:
    return aner.run(CASE).raise_unless_passed()


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    class NoCluster:
        platforms: tuple[Any, ...] = ()

        def open_ranks(self, *_: object, **__: object) -> Any:
            raise AssertionError

    suite = Suite("views", (CASE,), repetitions=1)
    run = BackgroundRun(suite, NoCluster(), out=tmp_path_factory.mktemp("views"))
    run.start()
    assert run.wait(60)
    assert run.study is not None, run.error
    return run.study


def test_text_is_escaped() -> None:
    assert Tags(text(HOSTILE)).names == []
    page = Tags(table(["x", HOSTILE], [[HOSTILE, 1]], HOSTILE))
    assert set(page.names) == {"table", "caption", "thead", "tbody", "tr", "th", "td"}
    assert page.words.count(HOSTILE) == 3


def test_a_case_says_what_it_computes_and_where() -> None:
    page = Tags(CASE._repr_html_())
    assert "numpy:1" in page.words
    assert "8 relu, 3 linear" in page.words
    assert CASE.contract_id[:16] in page.words
    assert "script" not in page.names


def test_a_plan_shows_shares() -> None:
    page = Tags(make_plan(CASE, 90)._repr_html_())
    assert "90 training rows in 3 batches" in page.words
    assert "87.5%" in page.words


def test_a_trial_shows_clocks_ranks_and_checks(trial: Trial) -> None:
    page = Tags(trial._repr_html_())
    for words in ("native fit", "complete command", "test accuracy", "numpy:1", "all of them hold"):
        assert words in page.words
    assert "passed" in repr(trial)


def test_a_failed_trial_says_why(trial: Trial) -> None:
    import msgspec

    from aner_nb.receipts import FailureRecord

    failure = FailureRecord(kind="rank_lost", what=HOSTILE, where="rank 0", remedy="", reason=HOSTILE)
    receipt = msgspec.structs.replace(trial.receipt, status="failed", failure=failure, clocks=None, ranks=())
    page = Tags(trial_html(Trial(receipt, error=RankLost(HOSTILE))))
    assert HOSTILE in page.words
    assert not {"script", "img"} & set(page.names)
    assert not {name for name in page.attributes if name.startswith("on")}


def test_a_cluster_shows_its_platforms() -> None:
    capacity = {"processor": HOSTILE, "usable_cores": 2, "memory_gib": 8}
    platform = SimpleNamespace(name="Atlas-01", configuration_id="0" * 64, capacity=capacity)
    offer = Offer(Placement.parse("Atlas-01/cpu:1"), "w", "id", "2.20.0")
    page = Tags(cluster_html(SimpleNamespace(platforms=(platform,), offers=(offer,))))
    assert HOSTILE in page.words
    assert "cpu:1" in page.words
    assert Cluster._repr_html_ is not None


def test_a_trained_model_shows_its_layers(trial: Trial) -> None:
    assert trial.parameters is not None
    assert trial.work is not None
    page = Tags(aner.Fitted(trial, trial.parameters, trial.work)._repr_html_())
    assert "4 features → 8 relu, 3 linear" in page.words


def test_a_study_shows_still_charts_and_its_table(study: Study) -> None:
    page = Tags(study._repr_html_())
    assert page.names.count("img") >= 3
    assert "1 measured trial of 1 case, medians" in page.words
    assert "script" not in page.names


# The magics.


@pytest.fixture(scope="module")
def shell() -> Iterator[Any]:
    from IPython.core.interactiveshell import InteractiveShell

    made = InteractiveShell.instance()
    made.run_line_magic("load_ext", "aner_nb")
    yield made
    InteractiveShell.clear_instance()


def test_a_cell_in_yaml_runs_and_shows(shell: Any) -> None:
    cell = "{name: cell, data: iris, layers: [8, 3], batch: 30, epochs: 2, ranks: [numpy], channel: inline}"
    trial = shell.run_cell_magic("aner", "", cell)
    assert trial.receipt.status == "passed"
    assert "native fit" in trial._repr_html_()


@pytest.mark.parametrize(
    ("line", "cell", "words"),
    [
        ("", "{name: x}", "the field 'cases' is missing"),
        ("", "a: [", "not YAML"),
        ("--wrong", "{}", "unrecognized arguments"),
    ],
)
def test_a_wrong_cell_is_one_line(shell: Any, line: str, cell: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        shell.run_cell_magic("aner", line, cell)


def test_an_unknown_word_says_what_there_is(shell: Any) -> None:
    with pytest.raises(UsageError, match="%aner doctor"):
        shell.run_line_magic("aner", "dance")


def test_the_doctor_shows_a_table(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from aner_nb.doctor import Diagnosis

    lines = (
        Diagnosis("python", good=True, finding="3.11"),
        Diagnosis("x", good=False, finding=HOSTILE, remedy="mend it"),
    )
    monkeypatch.setattr("aner_nb.magics.diagnose", lambda: lines)
    with capture_output() as captured:
        shell.run_line_magic("aner", "doctor")
    (output,) = captured.outputs
    page = Tags(output.data["text/html"])
    assert HOSTILE in page.words
    assert "mend it" in page.words
    assert "python" in output.data["text/plain"]


@pytest.mark.cluster
def test_a_suite_in_a_cell_runs_into_a_folder(shell: Any, tmp_path: Path) -> None:
    cell = """
placements: ["numpy:1"]
repetitions: 1
cases: [{name: one, data: iris, layers: [3], batch: 30, epochs: 1, ranks: ["numpy:1"]}]
"""
    study = shell.run_cell_magic("aner", f"--out {tmp_path}/out", cell)
    assert study.complete
    with capture_output() as captured:
        shell.run_line_magic("aner", "cluster")
    assert "Atlas-" in captured.outputs[0].data["text/html"]


# Saved notebooks.

SAVED = """
import time
import aner_nb as aner
from IPython.display import display
study = aner.open_study({folder!r})
display(study)
display(aner.StudyView(study))
case = study.suite.cases[0]
display(case)
app = aner.app(study.suite, out={folder!r})
while not app.results.charts:
    time.sleep(0.05)
display(app)
"""


@pytest.mark.slow
def test_a_saved_notebook_shows_its_charts_with_no_kernel(study: Study, tmp_path: Path) -> None:
    client = pytest.importorskip("nbclient")
    import nbformat
    from nbconvert import HTMLExporter

    code = SAVED.format(folder=str(study.folder.path))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    client.NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output["data"] for output in notebook.cells[0].outputs if "data" in output]
    pictures = [data.get("text/html", "").count("data:image/svg+xml") for data in outputs]
    assert [count for count in pictures if count] == [4, 4, 4]  # the study, its view, the app's still copy
    assert all(data["text/plain"].strip() for data in outputs if data.get("text/html"))
    file = tmp_path / "saved.ipynb"
    nbformat.write(notebook, file)
    page, _ = HTMLExporter().from_filename(str(file))
    found = [
        one for one in re.findall(r"<img\b[^>]*>", page) if "data:image/svg+xml" in one and "alt=" in one
    ]
    titles = [title for one in found for title in re.findall(r'alt="([^"]*)"', one)]
    assert titles.count("How long each case takes") == 3, titles  # also where a page cannot load widgets


@pytest.mark.parametrize("which", ["case", "plan", "trial", "study"])
def test_every_result_has_a_text_that_says_what_it_is(which: str, trial: Trial, study: Study) -> None:
    values = {"case": CASE, "plan": make_plan(CASE, 90), "trial": trial, "study": study}
    shown = pretty(values[which])
    assert len(shown) < 2000
    assert str(study.folder.path) not in shown
    assert {"case": "a", "plan": "Plan", "trial": "passed", "study": "native fit"}[which] in shown
