// @ts-check
// Which rows of the case picker are shown.

/**
 * @typedef {object} Filters
 * @property {string} text part of the name or the ranks
 * @property {string[]} backends every rank's backend is one of them; none: any
 * @property {string} dtype empty: any
 * @property {string} kind "standalone", "group" or empty: any
 * @property {boolean} available only cases that can run here
 * @property {boolean} chosen only chosen cases
 */

/** @type {Filters} */
export const EVERYTHING = { text: "", backends: [], dtype: "", kind: "", available: false, chosen: false };

/**
 * @param {import("./columns.js").Columns} rows
 * @param {Filters} filters
 * @param {Uint8Array} chosen
 * @returns {Uint32Array} numbers of the rows, in order
 */
export function shownRows(rows, filters, chosen) {
  const parts = filters.text.toLowerCase().split(/\s+/).filter(Boolean);
  const dtypes = passing(rows.levels("dtype"), (level) => !filters.dtype || level === filters.dtype);
  const kinds = passing(rows.levels("kind"), (level) => !filters.kind || level === filters.kind);
  const reasons = passing(rows.levels("reason"), (level) => !filters.available || level === "");
  const backends = passing(
    rows.levels("backends"),
    (level) => !filters.backends.length || level.split(" ").every((name) => filters.backends.includes(name)),
  );
  const shown = new Uint32Array(rows.count);
  let count = 0;
  for (let row = 0; row < rows.count; row += 1) {
    const passes =
      dtypes[rows.code("dtype", row)] &&
      kinds[rows.code("kind", row)] &&
      reasons[rows.code("reason", row)] &&
      backends[rows.code("backends", row)] &&
      (!filters.chosen || chosen[row]) &&
      parts.every((part) => `${rows.names[row]} ${rows.text("ranks", row)}`.toLowerCase().includes(part));
    if (passes) {
      shown[count] = row;
      count += 1;
    }
  }
  return shown.subarray(0, count);
}

/**
 * @param {string[]} levels
 * @param {(level: string) => boolean} passes
 */
function passing(levels, passes) {
  return levels.map(passes);
}
