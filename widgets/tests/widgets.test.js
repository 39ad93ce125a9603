// @vitest-environment jsdom
import { beforeEach, expect, test, vi } from "vitest";
import casePicker from "../case_picker.js";
import clusterPanel from "../cluster_panel.js";
import runMonitor from "../run_monitor.js";
import studyView from "../study_view.js";
import { EVERYTHING } from "../filters.js";
import { HOSTILE, bytes, fakeModel, floatBytes, wireRows } from "./helpers.js";

/** @type {HTMLElement} */
let host;
const byText = (/** @type {string} */ text) =>
  /** @type {HTMLButtonElement} */ ([...host.querySelectorAll("button")].find((one) => one.textContent === text));

beforeEach(() => {
  host = document.createElement("div");
  document.body.replaceChildren(host);
});

/** @param {string[]} names */
function picker(names) {
  const detail = {
    row: 0,
    name: names[0],
    copy: "copy",
    reason: names[0],
    facts: [["data", names[0]]],
    ranks: [["cpu:1", 1]],
  };
  return fakeModel({
    rows: wireRows(names.map((name) => ({ name }))),
    selected: bytes(names.map(() => 1)),
    filters: EVERYTHING,
    preset: names[0],
    presets: names,
    about: names[0],
    detail,
    placements: names,
  });
}

function monitor() {
  return fakeModel({
    state: "ready",
    out: "results",
    can_start: true,
    start_label: "Run",
    live: { counts: {}, seconds_left: null, current: null },
    curves: { loss: bytes([]), validation: bytes([]) },
    lanes: [],
    queue: "",
    marks: bytes([]),
  });
}

/** @param {string} name */
const current = (name) => ({
  case: name,
  role: "warm_up",
  repetition: 1,
  stage: "training",
  ranks: [name, "cpu:1"],
  shares: [0.25, 0.75],
  batch: 40,
  update: 3,
  updates: 10,
  epoch: 1,
  epochs: 2,
  rate: 100,
  loss: 0.5,
  validation_loss: 0.4,
  accuracy: 0.9,
  reason: name,
  ended: false,
});

test("the picker sends what is chosen", () => {
  const model = picker(["one", "two", "three"]);
  casePicker.render({ model, el: host });
  expect(host.textContent).toContain("3 of 3 cases selected");
  /** @type {HTMLElement} */ (host.querySelector('[data-place="1"]')).click();
  expect([...new Uint8Array(model.get("selected").buffer)]).toEqual([1, 0, 1]);
  expect(host.textContent).toContain("2 of 3 cases selected");
  byText("Clear all shown").click();
  expect([...new Uint8Array(model.get("selected").buffer)]).toEqual([0, 0, 0]);
});

test("the rank editor sends ranks and weights", () => {
  const model = picker(["one"]);
  casePicker.render({ model, el: host });
  byText("Add rank").click();
  const [, weight] = [...host.querySelectorAll("tbody input")];
  /** @type {HTMLInputElement} */ (weight).value = "7";
  host.querySelector("form")?.dispatchEvent(new Event("submit", { cancelable: true }));
  expect(model.sent).toEqual([{ do: "edit", row: 0, name: "copy", ranks: [["cpu:1", 7], ["cpu:1", 1]] }]);
});

test("an error is shown, and goes when it is dismissed", () => {
  const model = picker(["one"]);
  casePicker.render({ model, el: host });
  model.set("error", HOSTILE[0]);
  expect(host.querySelector('[role="alert"]')?.textContent).toContain(HOSTILE[0]);
  byText("Dismiss").click();
  expect(model.get("error")).toBe("");
});

test("the monitor enables what can be done", () => {
  const model = monitor();
  runMonitor.render({ model, el: host });
  expect([byText("Run").disabled, byText("Cancel").disabled]).toEqual([false, true]);
  byText("Run").click();
  model.set("state", "running");
  expect([byText("Run").disabled, byText("Cancel").disabled]).toEqual([true, false]);
  byText("Pause after this trial").click();
  model.set("state", "paused");
  byText("Go on").click();
  byText("Cancel").click();
  expect(model.sent.map((one) => one.do)).toEqual(["start", "pause", "resume", "cancel"]);
});

test("the monitor shows figures, lanes, curves and the queue", () => {
  const model = monitor();
  runMonitor.render({ model, el: host });
  model.set("state", "running");
  model.set("queue", "a\twarm-up 1\nb\twarm-up 1");
  model.set("marks", bytes([2, 1]));
  model.set("live", {
    counts: { all: 2, waiting: 0, running: 1, passed: 1, failed: 0, cancelled: 0, not_run: 0 },
    seconds_left: 65,
    current: current("b"),
  });
  model.set("curves", { loss: floatBytes([0, 1, 5, 0.5]), validation: floatBytes([5, 0.4, 0.9]) });
  model.set("lanes", [{ placement: "cpu:1", share: 1, upload: 0, compute: 1, readback: 0, update: 2 }]);
  expect(host.textContent).toContain("1 of 2 trials · about 1 min 5 s left");
  expect(host.textContent).toContain("3 of 10 updates · epoch 1 of 2");
  expect(host.textContent).toContain("75 % of each batch; training, 3,000 rows/s");
  expect(host.textContent).toContain("✓ passed");
  expect(host.querySelector("path")?.getAttribute("d")).toMatch(/^M0\.0/);
});

test("the cluster panel starts, connects, and shows health", () => {
  const model = fakeModel({ state: "none", message: "none", platforms: [], wanted: "cpu:1", address: "" });
  clusterPanel.render({ model, el: host });
  for (const form of host.querySelectorAll("form")) form.dispatchEvent(new Event("submit", { cancelable: true }));
  expect(model.sent).toEqual([
    { do: "start", placements: "cpu:1" },
    { do: "connect", address: "" },
  ]);
  model.set("state", "ready");
  const placements = [{ text: "cpu:1", tensorflow: "no TensorFlow", health: "lost" }];
  model.set("platforms", [{ name: HOSTILE[0], facts: [["cores", "2"]], placements }]);
  expect(host.textContent).toContain("lost; no TensorFlow");
  byText("Check again").click();
  expect(model.sent.at(-1)).toEqual({ do: "check" });
});

const chart = `<svg xmlns="http://www.w3.org/2000/svg"><path aria-label="a" d=""/><path aria-label="b" d=""/></svg>`;

/** @param {string[]} names */
function study(names) {
  const column = { title: "Ranks", texts: names, numbers: bytes([]), wide: false, right: false };
  const fit = { title: "Fit", texts: ["2", "1"], numbers: floatBytes([2, 1]), wide: false, right: true };
  return fakeModel({
    summary: { head: "x", words: "", drawn: 24 },
    charts: [{ id: "duration", title: "Duration", svg: chart }],
    table: { names: names.join("\n"), columns: [column, fit] },
    chosen: [],
  });
}

test("a case that is picked in a chart stands out in all of them and in the table", () => {
  const model = study(["a", "b"]);
  studyView.render({ model, el: host });
  const [a, b] = host.querySelectorAll("path");
  a.dispatchEvent(new MouseEvent("click", { bubbles: true }));
  expect(model.get("chosen")).toEqual(["a"]);
  expect([a, b].map((mark) => mark.classList.contains("aner-dim"))).toEqual([false, true]);
  expect(host.querySelector('[aria-selected="true"]')?.textContent).toContain("a");
  byText("Clear selection").click();
  expect(b.classList.contains("aner-dim")).toBe(false);
});

test("the table sorts by numbers", () => {
  const model = study(["a", "b"]);
  studyView.render({ model, el: host });
  byText("Fit").click();
  expect(host.querySelector("[data-place]")?.textContent).toContain("b");
  expect(host.querySelector('[aria-sort="ascending"]')?.textContent).toBe("Fit");
});

test("downloads are asked for and handed to the browser", () => {
  const model = study(["a", "b"]);
  studyView.render({ model, el: host });
  byText("PNG").click();
  byText("CSV").click();
  expect(model.sent).toEqual([
    { do: "save", file: "png", chart: "duration" },
    { do: "save", file: "csv" },
  ]);
  URL.createObjectURL = vi.fn(() => "blob:x");
  URL.revokeObjectURL = vi.fn();
  const click = vi.spyOn(HTMLAnchorElement.prototype, "click").mockImplementation(() => {});
  model.fire("msg:custom", { do: "file", name: "x.csv", type: "text/csv" }, [bytes([65])]);
  expect(click).toHaveBeenCalledOnce();
});

test("hostile text never becomes markup", () => {
  const views = [
    [casePicker, picker(HOSTILE)],
    [studyView, study(HOSTILE.slice(0, 2))],
    [runMonitor, monitor()],
  ];
  for (const [view, model] of /** @type {any[]} */ (views)) {
    view.render({ model, el: host });
    if (view === runMonitor) {
      model.set("queue", `${HOSTILE[0]}\t${HOSTILE[1]}`);
      model.set("marks", bytes([1]));
      model.set("live", { counts: { all: 1, waiting: 0, running: 1 }, seconds_left: 1, current: current(HOSTILE[0]) });
    }
    model.set("error", HOSTILE[2]);
    expect(host.querySelector("img, script, [onerror], [onload]")).toBeNull();
    expect(host.textContent).toContain(HOSTILE[0]);
  }
  expect(/** @type {any} */ (window).hacked).toBeUndefined();
});

test("a view that goes leaves no listeners", () => {
  const views = [
    [casePicker, picker(["a"])],
    [studyView, study(["a", "b"])],
    [runMonitor, monitor()],
  ];
  for (const [view, model] of /** @type {any[]} */ (views)) {
    const stop = view.render({ model, el: host });
    expect(model.listening()).toBeGreaterThan(0);
    stop();
    expect(model.listening()).toBe(0);
  }
});
