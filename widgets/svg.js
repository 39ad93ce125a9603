// @ts-check
// A chart's SVG as safe elements, its marks tied to their cases.

const ALLOWED = new Set(["svg", "g", "path", "line", "rect", "circle", "text", "tspan", "defs", "clipPath", "title"]);

/**
 * Read SVG text and keep only shapes and words: no scripts, links, styles, foreign content or listeners.
 *
 * @param {string} text
 * @returns {SVGSVGElement | null} null where it is not SVG
 */
export function safeSvg(text) {
  const parsed = new DOMParser().parseFromString(text, "image/svg+xml");
  const root = parsed.documentElement;
  if (root.localName !== "svg" || parsed.querySelector("parsererror")) return null;
  clean(root);
  return /** @type {any} */ (document.importNode(root, true));
}

/** @param {Element} element */
function clean(element) {
  for (const { name } of [...element.attributes]) {
    const local = name.toLowerCase();
    if (local.startsWith("on") || local.endsWith("href") || local === "style") element.removeAttribute(name);
  }
  for (const child of [...element.children]) {
    if (ALLOWED.has(child.localName)) clean(child);
    else child.remove();
  }
}

/**
 * Find the marks of each case: elements whose label is a case's name, and the axis labels with that text.
 *
 * @param {SVGSVGElement} svg
 * @param {Set<string>} cases
 * @returns {Map<string, Element[]>}
 */
export function marksByCase(svg, cases) {
  /** @type {Map<string, Element[]>} */
  const found = new Map();
  const candidates = [
    ...[...svg.querySelectorAll("[aria-label]")].map((mark) => [mark, mark.getAttribute("aria-label")]),
    ...[...svg.querySelectorAll(".role-axis-label text, .role-legend-label text, .role-header text")].map((words) => [
      words,
      words.textContent,
    ]),
  ];
  for (const [mark, label] of /** @type {[Element, string][]} */ (candidates)) {
    if (!cases.has(label)) continue;
    const own = found.get(label);
    if (own) own.push(mark);
    else found.set(label, [mark]);
  }
  return found;
}
