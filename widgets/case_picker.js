// @ts-check
// Pick cases: presets, filters, a list of any length, and the ranks of the case at hand.

import { button, el, form, freshId, labelled, panel, settled } from "./dom.js";
import { counted } from "./format.js";
import { marks, readColumns } from "./columns.js";
import { Grid } from "./grid.js";
import { EVERYTHING, shownRows } from "./filters.js";

/** @typedef {import("./dom.js").Model} Model */

/** @param {{model: Model, el: HTMLElement}} view */
function render({ model, el: host }) {
  const { body, note, changes } = panel({ model, el: host }, "aner-picker", "Cases");
  let rows = readColumns(model.get("rows"));
  let chosen = marks(model.get("selected"), rows.count);

  const describe = settled(60, (/** @type {number} */ row) => model.send({ do: "describe", row }));
  const grid = new Grid({
    label: "Cases; space or click selects",
    columns: [
      { title: "" },
      { title: "Case" },
      { title: "Ranks" },
      { title: "dtype", wide: true },
      { title: "Work", wide: true },
    ],
    cells: (row) => [
      chosen[row] ? "✓" : "",
      rows.names[row],
      rows.text("ranks", row) + (rows.text("reason", row) ? " — unavailable" : ""),
      rows.text("dtype", row),
      rows.text("work", row),
    ],
    chosen: (row) => Boolean(chosen[row]),
    mark: (row) => (rows.text("reason", row) ? "aner-unavailable" : ""),
    choose: (which, on) => {
      for (const row of which) chosen[row] = Number(on ?? !chosen[row]);
      send();
    },
    activate: describe,
  });

  /** Tell the kernel what is chosen. */
  function send() {
    model.set("selected", new DataView(chosen.slice().buffer));
    model.save_changes();
    grid.refresh();
    count();
  }

  function count() {
    const picked = chosen.reduce((sum, mark) => sum + mark, 0);
    note.textContent = `${picked.toLocaleString("en")} of ${counted(rows.count, "case")} selected`;
  }

  const filters = filterBar(model, () => list());
  const shownNote = el("span", { class: "aner-note", role: "status" });
  function list() {
    const order = shownRows(rows, model.get("filters"), chosen);
    grid.show(order);
    shownNote.textContent = order.length === rows.count ? "" : `${order.length.toLocaleString("en")} shown`;
  }

  const preset = el("select", {
    onchange: () => {
      model.set("preset", preset.value);
      model.save_changes();
    },
  });
  const about = el("span", { class: "aner-note aner-about" });
  const detail = detailPane(model);
  body.append(
    el("div", { class: "aner-bar" }, labelled("Suite", preset), about),
    filters.element,
    el(
      "div",
      { class: "aner-bar" },
      button("Select all shown", () => mark(1)),
      button("Clear all shown", () => mark(0)),
      shownNote,
    ),
    el("div", { class: "aner-split" }, grid.element, detail.element),
  );

  /** @param {number} on */
  function mark(on) {
    for (const row of Array.from(grid.order)) chosen[row] = on;
    send();
  }

  changes.show(["rows"], () => {
    rows = readColumns(model.get("rows"));
    chosen = marks(model.get("selected"), rows.count);
    filters.offer(rows);
    list();
    count();
  });
  changes.show(["selected"], () => {
    chosen = marks(model.get("selected"), rows.count);
    grid.refresh();
    count();
  });
  changes.show(["filters"], () => {
    filters.read();
    list();
  });
  changes.show(["preset", "presets"], () => {
    preset.replaceChildren(
      ...model.get("presets").map((/** @type {string} */ name) => el("option", { value: name }, name)),
    );
    preset.value = model.get("preset");
  });
  changes.show(["about"], () => {
    about.textContent = model.get("about");
  });
  changes.show(["detail", "placements"], () => detail.read());
  return () => {
    changes.stop();
    grid.remove();
  };
}

/**
 * @param {Model} model
 * @param {() => void} changed
 */
function filterBar(model, changed) {
  /** @param {Record<string, any>} some */
  function set(some) {
    model.set("filters", { ...EVERYTHING, ...model.get("filters"), ...some });
    model.save_changes();
    changed();
  }
  const text = el("input", { type: "search", placeholder: "name or placement", size: 16 });
  text.addEventListener("input", settled(150, () => set({ text: text.value })));
  const dtype = el("select", { onchange: () => set({ dtype: dtype.value }) });
  const kind = el("select", { onchange: () => set({ kind: kind.value }) });
  for (const value of ["", "standalone", "group"]) kind.append(el("option", { value }, value || "any"));
  const backends = el("span", { role: "group", "aria-label": "Backends", class: "aner-chips" });
  const available = checkbox("can run here", (on) => set({ available: on }));
  const chosen = checkbox("selected", (on) => set({ chosen: on }));
  const element = el(
    "div",
    { class: "aner-bar", role: "search", "aria-label": "Filter cases" },
    labelled("Find", text),
    backends,
    labelled("dtype", dtype),
    labelled("Kind", kind),
    available.element,
    chosen.element,
  );
  return {
    element,
    /** @param {import("./columns.js").Columns} rows */
    offer(rows) {
      const names = [...new Set(rows.levels("backends").flatMap((level) => level.split(" ")))].filter(Boolean).sort();
      backends.replaceChildren(
        ...names.map((name) =>
          button(
            name,
            () => {
              const now = new Set(model.get("filters").backends);
              if (!now.delete(name)) now.add(name);
              set({ backends: [...now] });
              this.read();
            },
            { class: "aner-chip", "data-name": name },
          ),
        ),
      );
      dtype.replaceChildren(
        ...["", ...[...rows.levels("dtype")].sort()].map((value) => el("option", { value }, value || "any")),
      );
      this.read();
    },
    read() {
      const filters = { ...EVERYTHING, ...model.get("filters") };
      if (document.activeElement !== text) text.value = filters.text;
      dtype.value = filters.dtype;
      kind.value = filters.kind;
      available.input.checked = filters.available;
      chosen.input.checked = filters.chosen;
      for (const chip of backends.children) {
        chip.setAttribute("aria-pressed", String(filters.backends.includes(chip.dataset.name)));
      }
    },
  };
}

/**
 * @param {string} label
 * @param {(on: boolean) => void} changed
 */
function checkbox(label, changed) {
  const input = el("input", { type: "checkbox", onchange: () => changed(input.checked) });
  return { input, element: el("label", { class: "aner-check" }, input, label) };
}

/** @param {Model} model */
function detailPane(model) {
  const element = el("section", { class: "aner-detail", "aria-label": "Case at hand" });
  const offers = el("datalist", { id: freshId() });
  return {
    element,
    read() {
      const detail = model.get("detail");
      if (detail?.name == null) {
        element.replaceChildren(el("p", { class: "aner-note" }, "Move to a case to see it and to change its ranks."));
        return;
      }
      offers.replaceChildren(
        ...model.get("placements").map((/** @type {string} */ value) => el("option", { value })),
      );
      const reason = el("p", { class: "aner-warning" }, `Cannot run here: ${detail.reason}`);
      reason.hidden = !detail.reason;
      element.replaceChildren(
        el("h4", {}, detail.name),
        reason,
        el(
          "dl",
          {},
          ...detail.facts.flatMap((/** @type {[string, string]} */ [label, value]) => [
            el("dt", {}, label),
            el("dd", {}, value),
          ]),
        ),
        rankEditor(model, detail, offers),
      );
    },
  };
}

/**
 * @param {Model} model
 * @param {{row: number, name: string, copy: string, ranks: [string, number][]}} detail
 * @param {HTMLDataListElement} offers
 */
function rankEditor(model, detail, offers) {
  const list = el("tbody");
  /** @param {string} placement @param {number} weight */
  function add(placement, weight) {
    const number = list.children.length;
    const where = el("input", { value: placement, list: offers.id, size: 12, "aria-label": `Placement of rank ${number}` });
    const share = el("input", { type: "number", value: weight, min: 1, step: 1, "aria-label": `Weight of rank ${number}` });
    const row = el(
      "tr",
      {},
      el("td", {}, where),
      el("td", {}, share),
      el("td", {}, button("×", () => row.remove(), { "aria-label": `Remove rank ${number}` })),
    );
    list.append(row);
  }
  for (const [placement, weight] of detail.ranks) add(placement, weight);
  const name = el("input", { value: detail.copy, size: 18, spellcheck: "false" });
  const save = () => {
    const ranks = [...list.children].map((row) => {
      const [where, share] = row.querySelectorAll("input");
      return [where.value.trim(), Number(share.value)];
    });
    model.send({ do: "edit", row: detail.row, name: name.value.trim(), ranks });
  };
  return form(
    "aner-editor",
    save,
    el(
      "table",
      {},
      el("caption", {}, "Ranks and weights"),
      el("thead", {}, el("tr", {}, el("th", {}, "Placement"), el("th", {}, "Weight"), el("td"))),
      list,
    ),
    offers,
    el(
      "div",
      { class: "aner-bar" },
      button("Add rank", () => add(detail.ranks.at(-1)?.[0] ?? "cpu:1", 1)),
    ),
    el("div", { class: "aner-bar" }, labelled("Save as", name), el("button", { type: "submit" }, "Save case")),
  );
}

export default { render };
