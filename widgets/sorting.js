// @ts-check
// The order of a table's rows.

/**
 * Row numbers in the order of a column; rows without a value come last in either direction.
 *
 * @param {ArrayLike<number>} rows
 * @param {(row: number) => string | number | null} value
 * @param {boolean} descending
 * @returns {number[]}
 */
export function sortedRows(rows, value, descending) {
  const keyed = Array.from(rows, (row) => ({ row, key: value(row) }));
  keyed.sort((one, other) => {
    const [a, b] = [one.key, other.key];
    if (missing(a) || missing(b)) return Number(missing(a)) - Number(missing(b)) || one.row - other.row;
    const compared = typeof a === "number" ? a - Number(b) : String(a).localeCompare(String(b), "en", { numeric: true });
    return (descending ? -compared : compared) || one.row - other.row;
  });
  return keyed.map(({ row }) => row);
}

/** @param {string | number | null} value */
function missing(value) {
  return value == null || value === "" || (typeof value === "number" && Number.isNaN(value));
}
