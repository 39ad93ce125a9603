import { expect, test } from "vitest";
import { readColumns } from "../columns.js";
import { EVERYTHING, shownRows } from "../filters.js";
import { wireRows } from "./helpers.js";

const rows = readColumns(
  wireRows([
    { name: "one" },
    { name: "pair", ranks: "cpu:1 + cpu:1", kind: "group" },
    { name: "gpu", ranks: "cuda:0", backends: "cuda", reason: "no CUDA device" },
    { name: "mixed", ranks: "cpu:1 + cuda:0", kind: "group", backends: "cpu cuda", dtype: "float64" },
  ]),
);
const chosen = new Uint8Array([1, 0, 0, 1]);
const names = (/** @type {any} */ some) =>
  Array.from(shownRows(rows, { ...EVERYTHING, ...some }, chosen), (row) => rows.names[row]);

test("everything is shown without a filter", () => {
  expect(names({})).toEqual(["one", "pair", "gpu", "mixed"]);
});

test("each filter leaves out what it says", () => {
  expect(names({ kind: "group" })).toEqual(["pair", "mixed"]);
  expect(names({ dtype: "float64" })).toEqual(["mixed"]);
  expect(names({ backends: ["cpu"] })).toEqual(["one", "pair"]);
  expect(names({ backends: ["cpu", "cuda"] })).toHaveLength(4);
  expect(names({ available: true })).toEqual(["one", "pair", "mixed"]);
  expect(names({ chosen: true })).toEqual(["one", "mixed"]);
});

test("text is looked for in names and ranks, each word on its own", () => {
  expect(names({ text: "CUDA:0" })).toEqual(["gpu", "mixed"]);
  expect(names({ text: "mix cpu" })).toEqual(["mixed"]);
  expect(names({ text: "nothing" })).toEqual([]);
});

test("ten thousand rows are filtered in the blink of an eye", () => {
  const many = readColumns(wireRows(Array.from({ length: 10_000 }, (_, row) => ({ name: `case-${row}` }))));
  const began = performance.now();
  expect(shownRows(many, { ...EVERYTHING, text: "case-99" }, new Uint8Array(10_000))).toHaveLength(111);
  expect(performance.now() - began).toBeLessThan(200);
});
