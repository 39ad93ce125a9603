// @ts-check
// Numbers as people read them.

/**
 * @param {number | null | undefined} value
 * @param {number} digits significant ones
 */
export function number(value, digits = 3) {
  if (value == null || !Number.isFinite(value)) return "–";
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e7)) return value.toExponential(digits - 1);
  return value.toLocaleString("en", { maximumSignificantDigits: Math.max(digits, wholeDigits(value)) });
}

/** @param {number} value */
function wholeDigits(value) {
  return Math.max(1, Math.floor(Math.log10(Math.abs(value) || 1)) + 1);
}

/** @param {number | null | undefined} value */
export function percent(value) {
  return value == null ? "–" : `${(100 * value).toFixed(2)} %`;
}

/** @param {number | null | undefined} seconds */
export function duration(seconds) {
  if (seconds == null || !Number.isFinite(seconds)) return "–";
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.round((whole % 3600) / 60)} min`;
}

/**
 * @param {number} count
 * @param {string} one
 * @param {string} [many]
 */
export function counted(count, one, many = `${one}s`) {
  return `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
}
