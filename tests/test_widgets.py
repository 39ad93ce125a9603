"""The widgets without a browser: their state, their commands, and how much they send."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

import aner_nb as aner
from aner_nb.background import BackgroundRun
from aner_nb.case import Case, Placement
from aner_nb.data import iris
from aner_nb.errors import CaseError, ClusterError
from aner_nb.ranks import Offer
from aner_nb.study import Study
from aner_nb.suites import Suite
from aner_nb.widgets import App, CasePicker, ClusterPanel, RunMonitor, StudyView
from aner_nb.widgets.benchmark_app import placements_for
from aner_nb.widgets.panel import Panel, coded

HOSTILE = "<img src=x onerror=alert(1)>"


class NoCluster:
    """Stands for a cluster in runs whose ranks are in this process."""

    platforms: tuple[Any, ...] = ()
    offers: tuple[Any, ...] = ()

    def open_ranks(self, *_: object, **__: object) -> Any:
        raise AssertionError("inline ranks need no cluster")


def inline_suite(count: int = 2, *, epochs: int = 3, repetitions: int = 1) -> Suite:
    cases = [
        Case(
            f"case-{index}",
            data=iris(),
            layers=[8, 3],
            batch=30,
            epochs=epochs,
            ranks=["numpy:1"],
            channel="inline",
        )
        for index in range(count)
    ]
    return Suite("inline", tuple(cases), repetitions=repetitions)


def offers(*texts: str, tensorflow: str = "2.20.0") -> list[Offer]:
    return [
        Offer(Placement.parse(f"Atlas-01/{text}"), f"worker-{index}", "id", tensorflow)
        for index, text in enumerate(texts)
    ]


def press(widget: Panel, **content: Any) -> None:
    """Do as the browser does when a button is pressed."""
    widget._handle_custom_msg(content, [])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Study:
    run = BackgroundRun(inline_suite(), NoCluster(), out=tmp_path_factory.mktemp("study"))
    run.start()
    assert run.wait(60)
    assert run.study is not None, run.error
    return run.study


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    import ipywidgets

    yield
    ipywidgets.Widget.close_all()


def test_coded_columns_are_small() -> None:
    levels, codes = coded(["a", "b", "a"])
    assert levels == ["a", "b"]
    assert np.frombuffer(codes, "<u4").tolist() == [0, 1, 0]


# Every widget.


def test_an_error_in_a_command_is_shown() -> None:
    picker = CasePicker("quick")
    press(picker, do="describe", row=10_000)
    assert "IndexError" in picker.error
    press(picker, do="dance")
    assert "not known" in picker.error
    picker._handle_custom_msg("no mapping", [])
    assert "not known" in picker.error


def test_public_names_are_there() -> None:
    for name in ("app", "CasePicker", "ClusterPanel", "RunMonitor", "StudyView"):
        assert getattr(aner, name) is not None


# CasePicker.


def test_a_picker_yields_the_selected_cases() -> None:
    picker = CasePicker("quick")
    assert len(picker.cases) == 6
    assert picker.suite.name == "quick"
    picker.select(["iris-pair-f64"])
    assert [case.name for case in picker.cases] == ["iris-pair-f64"]
    assert picker.suite.name == "quick-picked"
    assert picker.suite.placements == aner.suite("quick").placements
    picker.select([])
    with pytest.raises(CaseError, match="no cases"):
        _ = picker.suite


def test_the_browser_sends_the_selection_as_bytes() -> None:
    picker = CasePicker("quick")
    picker.set_state({"selected": memoryview(bytes([0, 1, 0, 0, 0, 0]))})
    assert [case.name for case in picker.cases] == ["iris-pair-f64"]


def test_a_preset_brings_its_cases_and_a_wrong_one_an_error() -> None:
    picker = CasePicker("quick", more=[inline_suite()])
    assert "inline" in picker.presets
    picker.preset = "inline"
    assert [case.name for case in picker.cases] == ["case-0", "case-1"]
    picker.preset = "no such"
    assert "no suite" in picker.error


def test_what_cannot_run_says_why() -> None:
    cases = [
        Case("gpu", data=iris(), layers=[3], batch=30, epochs=1, ranks=["cuda:0"]),
        Case("pair", data=iris(), layers=[3], batch=30, epochs=1, ranks=["cpu:1", "cpu:1"]),
        Case("one", data=iris(), layers=[3], batch=30, epochs=1, ranks=["cpu:1"]),
    ]
    picker = CasePicker(cases, offers=offers("cpu:1"))
    reasons = picker.rows["levels"]["reason"]
    codes = np.frombuffer(picker.rows["codes"]["reason"], "<u4")
    told = [reasons[code] for code in codes]
    assert "no CUDA device" in told[0]
    assert "2 ranks ask for cpu:1; the cluster has 1 of it" in told[1]
    assert told[2] == ""
    picker.offered(None)
    assert picker.rows["levels"]["reason"] == [""]


def test_ranks_and_weights_are_edited_into_a_new_case() -> None:
    picker = CasePicker("quick")
    press(picker, do="describe", row=1)
    assert picker.detail["ranks"] == [["cpu:1", 1], ["cpu:1", 1]]
    press(picker, do="edit", row=1, name=picker.detail["copy"], ranks=[["cpu:1", 1], ["numpy:1", 7]])
    assert picker.error == ""
    edited = next(case for case in picker.cases if case.name == "iris-pair-f64-2")
    assert edited.weights == (1, 7)
    assert "iris-pair-f64" not in [case.name for case in picker.cases]
    press(picker, do="edit", row=2, name="iris-pair-f64-2", ranks=[["cpu:1", 3]])
    assert next(case for case in picker.cases if case.name == "iris-pair-f64-2").weights == (3,)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ranks": [["cpu:1", 0]]}, "is not a whole number"),
        ({"ranks": [[HOSTILE, 1]]}, "is not a placement"),
        ({"ranks": []}, "at least one rank"),
        ({"name": HOSTILE}, "not a usable name"),
        ({"name": "iris-cpu-f64"}, "another case is named"),
    ],
)
def test_a_wrong_edit_is_shown_and_changes_nothing(change: dict[str, Any], words: str) -> None:
    picker = CasePicker("quick")
    before = picker.cases
    press(picker, **{"do": "edit", "row": 1, "name": "new", "ranks": [["cpu:1", 1]], **change})
    assert words in picker.error
    assert picker.cases == before


def test_ten_thousand_cases_are_quick_and_compact() -> None:
    first = aner.suite("quick").cases[0]
    cases = [dataclasses.replace(first, name=f"case-{number}", seed=number) for number in range(10_000)]
    began = time.perf_counter()
    picker = CasePicker(cases, offers=offers("cpu:1", "cpu:1"))
    assert time.perf_counter() - began < 2
    buffers = sum(map(len, picker.rows["codes"].values()))
    assert buffers + len(picker.rows["names"]) + len(json.dumps(picker.rows["levels"])) < 500_000


# ClusterPanel.


def fake_cluster(texts: list[str]) -> Any:
    capacity = {"processor": HOSTILE, "usable_cores": 2, "cores": 4, "memory_gib": 8, "gpus": []}
    platform = SimpleNamespace(name="Atlas-01", configuration_id="0" * 64, capacity=capacity)
    cluster = SimpleNamespace(platforms=(platform,), offers=tuple(offers(*texts)), closed=False)
    cluster.refresh = lambda: None
    cluster.close = lambda: setattr(cluster, "closed", True)
    return cluster


def eventually(condition: Any, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def test_a_cluster_is_shown_with_its_capacity() -> None:
    panel = ClusterPanel(fake_cluster(["cpu:1", "cuda:0"]))
    (platform,) = panel.platforms
    assert panel.state == "ready"
    assert ["processor", HOSTILE] in platform["facts"]
    assert [placement["text"] for placement in platform["placements"]] == ["cpu:1", "cuda:0"]
    assert {placement["health"] for placement in platform["placements"]} == {"answers"}


def test_a_check_finds_what_is_lost() -> None:
    cluster = fake_cluster(["cpu:1", "cpu:1"])
    panel = ClusterPanel(cluster)
    cluster.refresh = lambda: setattr(cluster, "offers", cluster.offers[:1])
    press(panel, do="check")
    eventually(lambda: panel.state == "ready" and panel.message)
    assert "placements lost: 1" in panel.message
    assert sorted(one["health"] for one in panel.platforms[0]["placements"]) == ["answers", "lost"]

    def gone() -> None:
        raise ClusterError("the cluster has no workers.")

    cluster.refresh = gone
    press(panel, do="check")
    eventually(lambda: "no workers" in panel.error)
    assert {one["health"] for one in panel.platforms[0]["placements"]} == {"lost"}


def test_a_given_cluster_is_left_open_and_an_own_one_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    given = fake_cluster(["cpu:1"])
    panel = ClusterPanel(given)
    press(panel, do="close")
    assert (panel.cluster, panel.state, given.closed) == (None, "none", False)
    started: list[Any] = []

    def local_cluster(placements: Any) -> Any:
        started.append(fake_cluster(list(placements)))
        return started[-1]

    monkeypatch.setattr("aner_nb.launch.local_cluster", local_cluster)
    press(panel, do="start", placements="cpu:1, cpu:1")
    eventually(lambda: panel.state == "ready")
    press(panel, do="close")
    eventually(lambda: started[0].closed)
    one = panel.cluster_for(["cpu:1"])
    assert panel.cluster_for(["cpu:1"]) is one
    assert panel.cluster_for(["cpu:1", "cpu:1"]) is not one
    eventually(lambda: started[1].closed)


def test_an_address_that_is_wrong_is_an_error_in_the_panel() -> None:
    panel = ClusterPanel()
    press(panel, do="connect", address=" ")
    assert "no address" in panel.error
    press(panel, do="start", placements=HOSTILE)
    eventually(lambda: "is not a placement" in panel.error)
    assert panel.state == "none"


# RunMonitor.


def test_a_monitor_follows_a_run_to_its_end(tmp_path: Path) -> None:
    monitor = RunMonitor(BackgroundRun(inline_suite(), NoCluster(), out=tmp_path))
    ended: list[BackgroundRun] = []
    monitor.on_end(ended.append)
    assert (monitor.state, monitor.can_start) == ("ready", True)
    press(monitor, do="start")
    eventually(lambda: ended)
    assert (monitor.state, monitor.error) == ("finished", "")
    assert monitor.queue.splitlines()[0].split("\t")[1] == "warm-up 1"
    assert set(monitor.marks) == {2}
    assert monitor.live["counts"]["passed"] == 4
    current = monitor.live["current"]
    assert (current["update"], current["updates"]) == (9, 9)
    assert len(np.frombuffer(monitor.curves["validation"], "<f4")) == 9
    assert monitor.lanes[0]["share"] == 1.0


def test_pause_and_cancel_are_told_to_the_run(tmp_path: Path) -> None:
    run = BackgroundRun(inline_suite(3), NoCluster(), out=tmp_path)
    monitor = RunMonitor(run)
    press(monitor, do="start")
    press(monitor, do="pause")
    eventually(lambda: monitor.state == "paused")
    press(monitor, do="resume")
    press(monitor, do="cancel")
    eventually(lambda: monitor.state in ("cancelled", "finished"))


def test_the_error_of_a_run_is_shown(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    monitor = RunMonitor(BackgroundRun(inline_suite(1), NoCluster(), out=blocked))
    press(monitor, do="start")
    eventually(lambda: monitor.error)
    assert monitor.state == "failed"
    assert "cannot be written" in monitor.error


def test_a_monitor_sends_few_and_small_messages_whatever_the_number_of_updates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = BackgroundRun(inline_suite(1, epochs=3000), NoCluster(), out=tmp_path)
    monitor = RunMonitor(run)
    sent: list[int] = []
    monkeypatch.setattr(
        monitor,
        "_send",
        lambda msg, buffers=None: sent.append(len(json.dumps(msg)) + sum(map(len, buffers or []))),
    )
    began = time.monotonic()
    press(monitor, do="start")
    eventually(lambda: monitor.state == "finished", 60)
    seconds = time.monotonic() - began
    assert run.progress.current is not None
    assert run.progress.current.started.update_count == 9000
    assert len(sent) <= 10 * seconds + 5
    assert max(sent) < 20_000


def test_no_widget_of_the_app_sends_more_than_ten_messages_in_any_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: dict[str, list[float]] = {}
    real = Panel._send

    def send(self: Panel, msg: Any, buffers: Any = None) -> None:
        sent.setdefault(type(self).__name__, []).append(time.monotonic())
        real(self, msg, buffers)

    monkeypatch.setattr(Panel, "_send", send)
    made = aner.app(inline_suite(8, epochs=100, repetitions=3), NoCluster(), out=tmp_path)  # type: ignore[arg-type]
    sent.clear()
    press(made.monitor, do="start")
    eventually(lambda: made.results.expanded, 60)
    for row in range(8):  # as fast as a person can go through the cases
        press(made.picker, do="describe", row=row)
        time.sleep(0.1)
    assert {"RunMonitor", "StudyView", "CasePicker"} <= set(sent)
    for name, times in sent.items():
        most = max(sum(begin <= at < begin + 1 for at in times) for begin in times)
        assert most <= 10, f"{name}: {most} messages in a second"
    made.close()


# StudyView.


def test_a_study_is_shown_with_charts_and_table(finished: Study) -> None:
    view = StudyView(finished)
    assert [chart["id"] for chart in view.charts] == ["duration", "validation", "memory"]
    for chart in view.charts:
        assert 'aria-label="case-0"' in chart["svg"]
    assert view.table["names"].split("\n") == ["case-0", "case-1"]
    fit = next(column for column in view.table["columns"] if column["title"] == "Fit, s")
    assert np.isfinite(np.frombuffer(fit["numbers"], "<f4")).all()
    assert view.still_copy()["text/html"].count("data:image/svg+xml") == 3
    assert StudyView().still_copy() == {"text/html": "", "text/plain": ""}


def test_files_of_a_study(finished: Study) -> None:
    view = StudyView(finished)
    assert view.file("png", "duration").startswith(b"\x89PNG")
    assert view.file("svg", "memory").startswith(b"<svg")
    assert b"case-1" in view.file("csv")
    assert {row["case"] for row in json.loads(view.file("json"))} == {"case-0", "case-1"}
    with pytest.raises(CaseError, match="there is no"):
        view.file("png", "nothing")
    sent: list[Any] = []
    view.send = lambda content, buffers=None: sent.append((content, buffers))  # type: ignore[method-assign]
    press(view, do="save", file="png", chart="duration")
    assert sent[0][0]["name"] == "inline-duration.png"
    assert sent[0][0]["type"] == "image/png"


def test_only_some_cases_are_drawn_on_request(finished: Study) -> None:
    view = StudyView(finished)
    press(view, do="draw")
    assert "1 to 24" in view.error
    view.chosen = ["case-1"]
    press(view, do="draw")
    assert view.error == ""
    assert 'aria-label="case-0"' not in view.charts[0]["svg"]
    assert view.summary["words"].startswith("The charts show 1 of 2 cases.")


def many(finished: Study, cases: int) -> Study:
    """A study of so many cases, four trials each, made from one that was run."""
    model = next(one for one in finished.receipts if one.role == "measured")
    first = finished.suite.cases[0]
    receipts = [
        msgspec.structs.replace(
            model, case_name=f"c-{case}", contract_id=str(case), repetition=number, role=role, round=number
        )
        for case in range(cases)
        for number, role in ((1, "warm_up"), (1, "measured"), (2, "measured"), (3, "measured"))
    ]
    suite = dataclasses.replace(
        finished.suite, cases=tuple(dataclasses.replace(first, name=f"c-{case}") for case in range(cases))
    )
    return dataclasses.replace(finished, suite=suite, receipts=tuple(receipts))


def test_ten_thousand_trials_open_quickly(finished: Study) -> None:
    study = many(finished, 2500)
    StudyView(finished)  # whatever is loaded at the first chart
    began = time.perf_counter()
    view = StudyView(study)
    took = time.perf_counter() - began
    assert len(view.table["names"].split("\n")) == 2500
    assert took < 2, took
    eventually(lambda: view.charts, 60)
    assert view.summary["words"].startswith("The charts show 24 of 2,500 cases.")


# The app.


def test_the_app_joins_them(tmp_path: Path) -> None:
    made = aner.app(inline_suite(), NoCluster(), out=tmp_path / "out")  # type: ignore[arg-type]
    assert made.monitor.start_label == "Run 2 cases, 4 trials"
    press(made.monitor, do="start")
    assert made.run is not None
    eventually(lambda: made.results.expanded and made.study is not None, 60)
    assert [child.error for child in made.children] == ["", "", "", ""]
    assert made.study is not None
    assert made.study.complete
    assert not made.picker.expanded
    made.close()


def test_an_app_that_is_shown_again_joins_the_run(tmp_path: Path) -> None:
    first = aner.app(inline_suite(1, epochs=20_000), NoCluster(), out=tmp_path)  # type: ignore[arg-type]
    press(first.monitor, do="start")
    again = aner.app(inline_suite(1, epochs=20_000), NoCluster(), out=tmp_path)  # type: ignore[arg-type]
    assert again.run is first.run
    eventually(lambda: again.monitor.state == "running")
    press(again.monitor, do="cancel")
    eventually(lambda: again.monitor.state == "cancelled" == first.monitor.state)


def test_nothing_to_run_cannot_be_started(tmp_path: Path) -> None:
    made = App(inline_suite(), NoCluster(), tmp_path, ())  # type: ignore[arg-type]
    made.picker.select([])
    assert not made.monitor.can_start
    press(made.monitor, do="start")
    assert "no cases" in made.monitor.error


def test_the_folder_follows_the_suite_until_it_is_chosen() -> None:
    made = aner.app("quick", NoCluster(), more=[inline_suite()])  # type: ignore[arg-type]
    assert made.monitor.out == "results/quick"
    made.picker.preset = "inline"
    assert made.monitor.out == "results/inline"
    made.monitor.out = "elsewhere"
    made.picker.preset = "quick"
    assert made.monitor.out == "elsewhere"


def test_a_new_app_shows_what_the_folder_holds(finished: Study) -> None:
    made = aner.app(finished.suite, NoCluster(), out=finished.folder.path)  # type: ignore[arg-type]
    eventually(lambda: made.study is not None, 30)


def test_a_local_cluster_has_what_the_cases_need() -> None:
    def suite(*ranks: str) -> Suite:
        case = Case("x", data=iris(), layers=[3], batch=30, epochs=1, ranks=list(ranks))
        return Suite("x", (case,), placements=("cpu:1",))

    assert placements_for(suite("cpu:1")) == ("cpu:1",)
    assert placements_for(suite("cpu:1", "cpu:1")) == ("cpu:1", "cpu:1")
    assert placements_for(suite("numpy:1", "numpy:1")) == ("cpu:1", "numpy:1", "numpy:1")
    assert placements_for(suite("cuda:0")) == ("cpu:1",)
    assert placements_for(suite("Atlas-02/cpu:1")) == ("cpu:1",)
