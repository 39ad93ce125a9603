// @vitest-environment jsdom
import { beforeEach, expect, test, vi } from "vitest";
import { Grid } from "../grid.js";
import { HOSTILE } from "./helpers.js";

/** @type {Grid} */
let grid;
const choose = vi.fn();
const activate = vi.fn();
const key = (/** @type {string} */ name, /** @type {any} */ more = {}) =>
  grid.element.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true, ...more }));

beforeEach(() => {
  choose.mockClear();
  activate.mockClear();
  grid = new Grid({
    label: "Numbers",
    columns: [{ title: "Number" }],
    cells: (row) => [`number ${row}`],
    chosen: (row) => row % 2 === 0,
    choose,
    activate,
  });
  document.body.replaceChildren(grid.element);
  grid.show(Uint32Array.from({ length: 10_000 }, (_, row) => row));
});

test("ten thousand rows are a few dozen elements", () => {
  expect(grid.element.querySelectorAll("[data-place]").length).toBeLessThan(60);
  expect(grid.element.getAttribute("aria-rowcount")).toBe("10001");
});

test("the keyboard moves, selects, extends, and selects all", () => {
  key("ArrowDown");
  key("ArrowDown");
  expect(activate).toHaveBeenLastCalledWith(1);
  key(" ");
  expect(choose).toHaveBeenLastCalledWith([1]);
  key("ArrowDown", { shiftKey: true });
  expect(choose).toHaveBeenLastCalledWith([1, 2], true);
  key("End");
  expect(activate).toHaveBeenLastCalledWith(9999);
  const active = grid.element.getAttribute("aria-activedescendant");
  expect(document.getElementById(/** @type {string} */ (active))?.textContent).toBe("number 9999");
  key("a", { ctrlKey: true });
  expect(choose.mock.lastCall?.[0]).toHaveLength(10_000);
});

test("a click selects its row, with shift all rows up to it", () => {
  const row = (/** @type {number} */ place) => grid.element.querySelector(`[data-place="${place}"]`);
  row(3).click();
  expect(choose).toHaveBeenLastCalledWith([3]);
  row(5).dispatchEvent(new MouseEvent("click", { bubbles: true, shiftKey: true }));
  expect(choose).toHaveBeenLastCalledWith([3, 4, 5], true);
});

test("other keys are left to the page", () => {
  const event = new KeyboardEvent("keydown", { key: "x", bubbles: true, cancelable: true });
  grid.element.dispatchEvent(event);
  expect(event.defaultPrevented).toBe(false);
});

test("hostile text stays text", () => {
  const hostile = new Grid({ label: "x", columns: [{ title: "x" }], cells: (row) => [HOSTILE[row]] });
  document.body.replaceChildren(hostile.element);
  hostile.show(HOSTILE.map((_, row) => row));
  expect(document.querySelector("img, script, svg")).toBeNull();
  expect(hostile.element.textContent).toContain(HOSTILE[0]);
});
