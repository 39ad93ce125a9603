// @ts-check
// A study: charts and table that share one selection, and their files.

import { button, el, labelled, panel, setText, settled } from "./dom.js";
import { counted } from "./format.js";
import { floats } from "./columns.js";
import { Grid } from "./grid.js";
import { sortedRows } from "./sorting.js";
import { marksByCase, safeSvg } from "./svg.js";

/** @typedef {import("./dom.js").Model} Model */

// Charts are sized for paper; all of them are drawn larger by the same factor, so that their letters are of one size.
const SCALE = 1.25;

/**
 * @typedef {object} Shown
 * @property {() => void} read
 * @property {() => void} choose
 * @property {HTMLElement} element
 */

/** @param {{model: Model, el: HTMLElement}} view */
function render({ model, el: host }) {
  const { body, note, changes } = panel({ model, el: host }, "aner-study", "Results");
  const words = el("p", { class: "aner-status", role: "status" });
  /** @param {string[]} cases */
  const choose = (cases) => {
    const now = new Set(model.get("chosen"));
    for (const one of cases) if (!now.delete(one)) now.add(one);
    model.set("chosen", [...now]);
    model.save_changes();
  };
  const charts = chartsView(model, choose);
  const table = tableView(model);
  const files = filesBar(model);
  body.append(words, files, charts.element, table.element);

  const receive = (/** @type {any} */ content, /** @type {DataView[]} */ buffers) => {
    if (content.do === "file") saveFile(content.name, content.type, buffers[0]);
  };
  model.on("msg:custom", receive);
  changes.show(["summary"], () => {
    setText(note, model.get("summary").head ?? "");
    setText(words, model.get("summary").words ?? "");
  });
  changes.show(["charts"], () => charts.read());
  changes.show(["table"], () => {
    table.read();
    charts.choose();
  });
  changes.show(["chosen"], () => {
    charts.choose();
    table.choose();
  });
  return () => {
    changes.stop();
    model.off("msg:custom", receive);
    table.remove();
  };
}

/** @param {Model} model */
function filesBar(model) {
  const ask = (/** @type {string} */ file) => button(file.toUpperCase(), () => model.send({ do: "save", file }));
  return el(
    "div",
    { class: "aner-bar", role: "group", "aria-label": "Download the table" },
    el("span", { class: "aner-note" }, "Download the table:"),
    ask("csv"),
    ask("json"),
  );
}

/**
 * Give the browser a file.
 *
 * @param {string} name
 * @param {string} type
 * @param {DataView} data
 */
function saveFile(name, type, data) {
  const url = URL.createObjectURL(new Blob([/** @type {any} */ (data)], { type }));
  const link = el("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/**
 * @param {Model} model
 * @param {(cases: string[]) => void} choose
 */
function chartsView(model, choose) {
  const element = el("div", { class: "aner-charts" });
  /** @type {Map<string, Element[]>[]} */
  let marks = [];
  return {
    element,
    read() {
      const cases = new Set(model.get("table").names?.split("\n") ?? []);
      marks = [];
      element.replaceChildren(
        ...model.get("charts").map((/** @type {{id: string, title: string, notes: string[], svg: string}} */ chart) => {
          const svg = safeSvg(chart.svg);
          const save = (/** @type {string} */ type) =>
            button(type.toUpperCase(), () => model.send({ do: "save", file: type, chart: chart.id }), {
              "aria-label": `Download ${chart.title} as ${type.toUpperCase()}`,
            });
          if (svg) {
            const width = Number(svg.getAttribute("width"));
            if (width) svg.setAttribute("width", String(SCALE * width));
            svg.removeAttribute("height");
            svg.setAttribute("role", "group");
            svg.setAttribute("aria-label", chart.title);
            const found = marksByCase(svg, cases);
            for (const [name, own] of found) {
              for (const mark of own) {
                mark.classList.add("aner-of-case");
                mark.addEventListener("click", () => choose([name]));
              }
            }
            marks.push(found);
          }
          return el(
            "figure",
            { class: "aner-chart" },
            el("figcaption", {}, el("span", { class: "aner-chart-title" }, chart.title), save("png"), save("svg")),
            ...chart.notes.map((note) => el("p", { class: "aner-note aner-chart-note" }, note)),
            el("div", { class: "aner-chart-area" }, svg ?? "This chart cannot be shown."),
          );
        }),
      );
      this.choose();
    },
    choose() {
      const chosen = new Set(model.get("chosen"));
      for (const found of marks) {
        for (const [name, own] of found) {
          for (const mark of own) {
            mark.classList.toggle("aner-dim", chosen.size > 0 && !chosen.has(name));
          }
        }
      }
    },
  };
}

/** @param {Model} model */
function tableView(model) {
  /** @type {any} */
  let table = {};
  /** @type {string[]} */
  let names = [];
  /** @type {Record<string, Float32Array>} */
  let numbers = {};
  let sort = { column: -1, descending: false };
  let find = "";
  const box = el("div");
  /** @type {Grid | null} */
  let grid = null;
  let chosen = new Set(model.get("chosen"));
  const search = el("input", { type: "search", size: 16, placeholder: "name or placement" });
  search.addEventListener(
    "input",
    settled(150, () => {
      find = search.value.toLowerCase();
      order();
    }),
  );
  const clear = button("Clear selection", () => set([]));
  const draw = button("Draw the selected cases", () => model.send({ do: "draw" }));
  const words = el("span", { class: "aner-note", role: "status" });

  /** @param {string[]} cases */
  function set(cases) {
    model.set("chosen", cases);
    model.save_changes();
  }

  /** @param {number} row @param {number} column */
  const text = (row, column) => table.columns[column].texts[row] ?? "";

  function order() {
    const rows = names.map((_, row) => row).filter((row) => {
      return !find || `${names[row]} ${text(row, 0)}`.toLowerCase().includes(find);
    });
    const { column, descending } = sort;
    const key = (/** @type {number} */ row) => {
      if (column === 0) return names[row];
      const own = numbers[table.columns[column - 1].title];
      return own ? own[row] : text(row, column - 1);
    };
    grid?.show(column < 0 ? rows : sortedRows(rows, key, descending));
    if (column >= 0) grid?.sorted(column + 1, descending);
  }

  /** @param {number} column */
  function sortBy(column) {
    sort = { column, descending: sort.column === column ? !sort.descending : false };
    order();
  }

  return {
    element: el(
      "section",
      { "aria-label": "Table of cases" },
      el("div", { class: "aner-bar" }, labelled("Find", search), clear, draw, words),
      box,
    ),
    read() {
      table = model.get("table");
      names = table.names ? table.names.split("\n") : [];
      numbers = {};
      for (const column of table.columns ?? []) {
        if (column.numbers?.byteLength) numbers[column.title] = floats(column.numbers);
      }
      draw.hidden = names.length <= (model.get("summary").drawn ?? 0);
      grid?.remove();
      grid = new Grid({
        label: "Cases of the study; space or click selects",
        columns: [
          { title: "" },
          { title: "Case", sort: () => sortBy(0) },
          ...(table.columns ?? []).map((/** @type {any} */ column, /** @type {number} */ index) => ({
            title: column.title,
            wide: column.wide,
            right: column.right,
            sort: () => sortBy(index + 1),
          })),
        ],
        cells: (row) => [
          chosen.has(names[row]) ? "✓" : "",
          names[row],
          ...table.columns.map((/** @type {any} */ _, /** @type {number} */ column) => text(row, column)),
        ],
        chosen: (row) => chosen.has(names[row]),
        choose: (rows, on) => {
          const now = new Set(chosen);
          for (const row of rows) {
            if (on ?? !now.has(names[row])) now.add(names[row]);
            else now.delete(names[row]);
          }
          set([...now]);
        },
      });
      box.replaceChildren(grid.element);
      order();
    },
    choose() {
      chosen = new Set(model.get("chosen"));
      clear.disabled = !chosen.size;
      draw.disabled = !chosen.size;
      setText(words, chosen.size ? `${counted(chosen.size, "case")} selected` : "");
      grid?.refresh();
    },
    remove: () => grid?.remove(),
  };
}

export default { render };
