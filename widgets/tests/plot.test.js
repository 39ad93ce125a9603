// @vitest-environment jsdom
import { expect, test } from "vitest";
import { linePath, linePlot, span } from "../plot.js";

test("a path spans the box and leaves out what is not finite", () => {
  const box = { left: 0, right: 10, bottom: 0, top: 2 };
  expect(linePath([[0, 0], [5, Number.NaN], [10, 2]], box)).toBe("M0.0 100.0L300.0 0.0");
  expect(linePath([], box)).toBe("");
});

test("the span of one value has room around it", () => {
  expect(span([])).toBeNull();
  const [low, high] = span([2]) ?? [0, 0];
  expect(low).toBeLessThan(2);
  expect(high).toBeGreaterThan(2);
});

test("a plot says its last values", () => {
  const plot = linePlot("Loss", [{ name: "batch", className: "x" }]);
  plot.draw([[[0, 1], [1, 0.5]]], 2);
  expect(plot.element.querySelector("svg").getAttribute("aria-label")).toBe("Loss: batch 0.5");
});
