import { expect, test } from "vitest";
import { sortedRows } from "../sorting.js";

test("rows without a value come last in both directions", () => {
  const values = [2, null, 1, Number.NaN, 3];
  const by = (/** @type {boolean} */ descending) => sortedRows([0, 1, 2, 3, 4], (row) => values[row], descending);
  expect(by(false)).toEqual([2, 0, 4, 1, 3]);
  expect(by(true)).toEqual([4, 0, 2, 1, 3]);
});

test("texts with numbers are in the order of the numbers", () => {
  const names = ["case-10", "case-9", "case-1"];
  expect(sortedRows([0, 1, 2], (row) => names[row], false)).toEqual([2, 1, 0]);
});
