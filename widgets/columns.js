// @ts-check
// Tables that travel as columns: names as one text, other columns as codes into a short list of levels.

/**
 * @typedef {object} WireColumns what the kernel sends
 * @property {number} count
 * @property {string} names separated by line feeds
 * @property {Record<string, string[]>} levels
 * @property {Record<string, DataView>} codes little-endian uint32, one a row
 */

/**
 * @typedef {object} Columns
 * @property {number} count
 * @property {string[]} names
 * @property {(column: string, row: number) => string} text
 * @property {(column: string) => string[]} levels
 * @property {(column: string, row: number) => number} code
 */

/**
 * @param {WireColumns} wire
 * @returns {Columns}
 */
export function readColumns(wire) {
  const names = wire.count ? wire.names.split("\n") : [];
  /** @type {Record<string, Uint32Array>} */
  const codes = {};
  for (const [column, view] of Object.entries(wire.codes)) codes[column] = words(view);
  return {
    count: wire.count,
    names,
    text: (column, row) => wire.levels[column][codes[column][row]] ?? "",
    levels: (column) => wire.levels[column] ?? [],
    code: (column, row) => codes[column][row],
  };
}

/** @param {DataView} view */
function words(view) {
  return new Uint32Array(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
}

/** @param {DataView | null | undefined} view */
export function floats(view) {
  if (!view?.byteLength) return new Float32Array();
  return new Float32Array(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
}

/**
 * A copy of a trait of bytes, to be changed and sent back.
 *
 * @param {DataView | null | undefined} view
 * @param {number} count
 */
export function marks(view, count) {
  const copy = new Uint8Array(count);
  if (view?.byteLength) {
    copy.set(new Uint8Array(view.buffer, view.byteOffset, Math.min(count, view.byteLength)));
  }
  return copy;
}
