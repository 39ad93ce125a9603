// @ts-check
// A small line chart in SVG; its labels are HTML, so that it stretches without stretching text.

import { el, setText } from "./dom.js";
import { number } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 300;
const HEIGHT = 100;

/**
 * The `d` of a path through points; points that are not finite are left out.
 *
 * @param {[number, number][]} points
 * @param {{left: number, right: number, bottom: number, top: number}} box in the points' units
 */
export function linePath(points, box) {
  const spanX = box.right - box.left || 1;
  const spanY = box.top - box.bottom || 1;
  return points
    .filter(([x, y]) => Number.isFinite(x) && Number.isFinite(y))
    .map(([x, y], index) => {
      const across = ((x - box.left) / spanX) * WIDTH;
      const down = HEIGHT - ((y - box.bottom) / spanY) * HEIGHT;
      return `${index ? "L" : "M"}${across.toFixed(1)} ${down.toFixed(1)}`;
    })
    .join("");
}

/**
 * The smallest and largest of finite values, with a little room; null where there is none.
 *
 * @param {number[]} values
 */
export function span(values) {
  const finite = values.filter(Number.isFinite);
  if (!finite.length) return null;
  const [low, high] = [Math.min(...finite), Math.max(...finite)];
  return low === high ? [low - Math.abs(low || 1) * 0.05, high + Math.abs(high || 1) * 0.05] : [low, high];
}

/**
 * @param {string} title
 * @param {{name: string, className: string}[]} series
 */
export function linePlot(title, series) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  const paths = series.map(({ className }) => {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("class", className);
    svg.append(path);
    return path;
  });
  const [top, bottom, right] = [0, 1, 2].map(() => el("span", { class: "aner-tick" }));
  const legend = series.map(({ name, className }) => el("span", { class: `aner-key ${className}` }, name));
  const element = el(
    "figure",
    { class: "aner-plot" },
    el("figcaption", {}, el("span", {}, title), ...legend),
    el("div", { class: "aner-ticks" }, top, bottom),
    svg,
    el("div", { class: "aner-across" }, el("span", { class: "aner-tick" }, "0"), right),
  );
  return {
    element,
    /**
     * @param {[number, number][][]} lines one for each series
     * @param {number} updates right end of the x axis
     */
    draw(lines, updates) {
      const range = span(lines.flat().map(([, y]) => y));
      const box = { left: 0, right: updates, bottom: range?.[0] ?? 0, top: range?.[1] ?? 1 };
      lines.forEach((points, index) => paths[index].setAttribute("d", linePath(points, box)));
      setText(top, range ? number(range[1]) : "");
      setText(bottom, range ? number(range[0]) : "");
      setText(right, updates ? `${updates.toLocaleString("en")} updates` : "");
      const last = lines.map((points, index) => `${series[index].name} ${number(points.at(-1)?.[1])}`);
      svg.setAttribute("aria-label", `${title}: ${last.join(", ")}`);
    },
  };
}
