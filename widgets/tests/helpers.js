// @ts-check
// A model as the browser has it, without a kernel; and columns as the kernel sends them.

/** @param {Record<string, any>} state */
export function fakeModel(state) {
  const values = { expanded: true, error: "", ...state };
  /** @type {Record<string, Set<(...values: any[]) => void>>} */
  const handlers = {};
  return {
    /** @type {any[]} */
    sent: [],
    /** @param {string} name */
    get: (name) => values[name],
    /** @param {string} name @param {any} value */
    set(name, value) {
      values[name] = value;
      for (const handler of [...(handlers[`change:${name}`] ?? [])]) handler();
    },
    save_changes() {},
    /** @param {any} content */
    send(content) {
      this.sent.push(content);
    },
    /** @param {string} event @param {any} handler */
    on(event, handler) {
      (handlers[event] ??= new Set()).add(handler);
    },
    /** @param {string} event @param {any} handler */
    off(event, handler) {
      handlers[event]?.delete(handler);
    },
    /** @param {string} event @param {...any} parts */
    fire(event, ...parts) {
      for (const handler of handlers[event] ?? []) handler(...parts);
    },
    listening: () => Object.values(handlers).reduce((sum, some) => sum + some.size, 0),
  };
}

/** @param {string[]} texts */
export function coded(texts) {
  const levels = [...new Set(texts)];
  const codes = new Uint32Array(texts.map((text) => levels.indexOf(text)));
  return { levels, codes: new DataView(codes.buffer) };
}

/** @param {{name: string, ranks?: string, dtype?: string, kind?: string, backends?: string, reason?: string}[]} cases */
export function wireRows(cases) {
  const columns = { ranks: "cpu:1", dtype: "float32", kind: "standalone", backends: "cpu", work: "iris", reason: "" };
  /** @type {any} */
  const wire = { count: cases.length, names: cases.map((one) => one.name).join("\n"), levels: {}, codes: {} };
  for (const [name, usual] of Object.entries(columns)) {
    const { levels, codes } = coded(cases.map((/** @type {any} */ one) => one[name] ?? usual));
    wire.levels[name] = levels;
    wire.codes[name] = codes;
  }
  return wire;
}

/** @param {number[]} values */
export function bytes(values) {
  return new DataView(new Uint8Array(values).buffer);
}

/** @param {number[]} values */
export function floatBytes(values) {
  return new DataView(new Float32Array(values).buffer);
}

/** Names that would do harm as markup. */
export const HOSTILE = [
  "<img src=x onerror=window.hacked=1>",
  "<script>window.hacked=1</script>",
  "\"><svg onload=window.hacked=1>",
  "javascript:window.hacked=1",
];
