// @vitest-environment jsdom
import { expect, test } from "vitest";
import { marksByCase, safeSvg } from "../svg.js";

test("only shapes and words are left of an SVG", () => {
  const svg = safeSvg(`<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" onload="x()">
    <script>window.hacked = 1</script><style>* { display: none }</style>
    <a xlink:href="javascript:x()"><path d="M0,0"/></a><foreignObject><b>x</b></foreignObject>
    <g onclick="x()"><path aria-label="one" d="M0,0h1" fill="red"/><image href="http://example.org/x"/></g></svg>`);
  const text = svg?.outerHTML ?? "";
  expect(text).not.toMatch(/script|style|onload|onclick|href=|foreignObject|image/);
  expect(svg?.querySelector("path")?.getAttribute("fill")).toBe("red");
});

test("what is no SVG is refused", () => {
  expect(safeSvg("<p>no</p>")).toBeNull();
  expect(safeSvg("<svg")).toBeNull();
});

test("marks and axis labels are found by their case, even where its name looks like markup", () => {
  const svg = safeSvg(`<svg xmlns="http://www.w3.org/2000/svg"><g class="role-axis-label"><text>a&lt;b</text></g>
    <path aria-label="a&lt;b" d=""/><path aria-label="c" d=""/><path aria-label="axis" d=""/></svg>`);
  const found = marksByCase(/** @type {any} */ (svg), new Set(["a<b", "c"]));
  expect(found.get("a<b")).toHaveLength(2);
  expect(found.get("c")).toHaveLength(1);
});
