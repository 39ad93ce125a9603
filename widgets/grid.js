// @ts-check
// A table of any length: only the rows in sight are in the page. Mouse and keyboard do the same.

import { el, freshId, setText } from "./dom.js";

const ROW_HEIGHT = 28;
const MARGIN = 8;

/**
 * @typedef {object} Column
 * @property {string} title
 * @property {boolean} [wide] left out where there is little room
 * @property {boolean} [right] numbers
 * @property {() => void} [sort] called when its title is pressed
 */

/**
 * @typedef {object} GridOptions
 * @property {string} label
 * @property {Column[]} columns
 * @property {(row: number) => string[]} cells the row's texts
 * @property {(row: number) => boolean} [chosen]
 * @property {(rows: number[], on?: boolean) => void} [choose] several rows: set; one row without `on`: toggle
 * @property {(row: number) => void} [activate] the row that keyboard or mouse is on
 * @property {(row: number) => string} [mark] a CSS class for the row
 */

export class Grid {
  /** @param {GridOptions} options */
  constructor(options) {
    this.options = options;
    /** @type {ArrayLike<number>} */
    this.order = [];
    this.at = -1;
    this.anchor = -1;
    this.id = freshId();
    /** @type {Map<number, any>} */
    this.shown = new Map();
    this.body = el("div", { role: "rowgroup", class: "aner-rows" });
    this.titles = options.columns.map((column) => this.title(column));
    this.head = el("div", { role: "row", class: "aner-row aner-head", "aria-rowindex": 1 }, ...this.titles);
    this.element = el(
      "div",
      {
        role: "grid",
        class: "aner-grid",
        tabindex: 0,
        "aria-label": options.label,
        "aria-multiselectable": options.choose ? "true" : null,
        onscroll: () => this.draw(),
        onkeydown: (/** @type {KeyboardEvent} */ event) => this.key(event),
      },
      el("div", { role: "rowgroup", class: "aner-heads" }, this.head),
      this.body,
    );
    this.body.addEventListener("click", (/** @type {MouseEvent} */ event) => this.click(event));
    this.watcher = globalThis.ResizeObserver ? new ResizeObserver(() => this.draw()) : null;
    this.watcher?.observe(this.element);
  }

  /** @param {Column} column */
  title(column) {
    const inside = column.sort ? el("button", { type: "button", onclick: column.sort }, column.title) : column.title;
    return el("span", { role: "columnheader", class: cellClass(column) }, inside);
  }

  /**
   * Say by which column the rows are sorted.
   *
   * @param {number} index
   * @param {boolean} descending
   */
  sorted(index, descending) {
    this.titles.forEach((title, at) => {
      if (at === index) title.setAttribute("aria-sort", descending ? "descending" : "ascending");
      else title.removeAttribute("aria-sort");
    });
  }

  /**
   * Show these rows, in this order; the active row stays where it is still there.
   *
   * @param {ArrayLike<number>} order
   */
  show(order) {
    const active = this.order[this.at];
    this.order = order;
    this.at = active == null ? -1 : Array.prototype.indexOf.call(order, active);
    this.element.setAttribute("aria-rowcount", String(order.length + 1));
    this.body.style.height = `${order.length * ROW_HEIGHT}px`;
    this.refresh();
  }

  /** Draw every row in sight anew. */
  refresh() {
    for (const row of this.shown.values()) row.remove();
    this.shown.clear();
    this.draw();
  }

  draw() {
    const top = Math.floor(this.element.scrollTop / ROW_HEIGHT) - MARGIN;
    const count = Math.ceil((this.element.clientHeight || 280) / ROW_HEIGHT) + 2 * MARGIN;
    const first = Math.max(0, top);
    const last = Math.min(this.order.length, top + count);
    for (const [place, row] of this.shown) {
      if ((place < first || place >= last) && place !== this.at) {
        row.remove();
        this.shown.delete(place);
      }
    }
    for (let place = first; place < last; place += 1) this.put(place);
    if (this.at >= 0) this.put(this.at);
    const active = this.shown.get(this.at);
    if (active) this.element.setAttribute("aria-activedescendant", active.id);
    else this.element.removeAttribute("aria-activedescendant");
  }

  /** @param {number} place */
  put(place) {
    if (this.shown.has(place)) return this.update(place);
    const row = el("div", { role: "row", id: `${this.id}-${place}`, "aria-rowindex": place + 2 });
    row.style.top = `${place * ROW_HEIGHT}px`;
    row.dataset.place = String(place);
    for (const column of this.options.columns) row.append(el("span", { role: "gridcell", class: cellClass(column) }));
    this.shown.set(place, row);
    this.update(place);
    const next = [...this.body.children].find((other) => Number(/** @type {any} */ (other).dataset.place) > place);
    this.body.insertBefore(row, next ?? null);
  }

  /** @param {number} place */
  update(place) {
    const row = this.shown.get(place);
    const index = this.order[place];
    const { cells, chosen, mark } = this.options;
    const wanted = `aner-row${place === this.at ? " aner-active" : ""} ${mark?.(index) ?? ""}`.trim();
    if (row.className !== wanted) row.className = wanted;
    if (chosen) row.setAttribute("aria-selected", String(chosen(index)));
    cells(index).forEach((text, cell) => {
      setText(row.children[cell], text);
      row.children[cell].title = text; // the whole of it, where the cell is too narrow
    });
  }

  /** @param {MouseEvent} event */
  click(event) {
    const row = /** @type {Element} */ (event.target).closest("[data-place]");
    if (!row) return;
    const place = Number(/** @type {HTMLElement} */ (row).dataset.place);
    if (event.shiftKey && this.anchor >= 0) this.extend(place);
    else this.options.choose?.([this.order[place]]);
    this.go(place, event.shiftKey);
  }

  /** @param {number} to */
  extend(to) {
    const [low, high] = [Math.min(this.anchor, to), Math.max(this.anchor, to)];
    this.options.choose?.(Array.from(this.order).slice(low, high + 1), true);
  }

  /**
   * @param {number} place
   * @param {boolean} [keepAnchor]
   */
  go(place, keepAnchor = false) {
    if (!this.order.length) return;
    this.at = Math.max(0, Math.min(this.order.length - 1, place));
    if (!keepAnchor || this.anchor < 0) this.anchor = this.at;
    this.reveal(this.at);
    this.draw();
    this.options.activate?.(this.order[this.at]);
  }

  /** @param {number} place to be scrolled into sight, and no further */
  reveal(place) {
    const top = place * ROW_HEIGHT;
    const height = this.element.clientHeight - this.head.offsetHeight;
    if (top < this.element.scrollTop) this.element.scrollTop = top;
    else if (top + ROW_HEIGHT > this.element.scrollTop + height) this.element.scrollTop = top + ROW_HEIGHT - height;
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.target !== this.element) return;
    const page = Math.max(1, Math.floor(this.element.clientHeight / ROW_HEIGHT) - 2);
    /** @type {Record<string, number>} */
    const moves = {
      ArrowDown: this.at + 1,
      ArrowUp: Math.max(0, this.at - 1),
      PageDown: this.at + page,
      PageUp: this.at - page,
      Home: 0,
      End: this.order.length - 1,
    };
    const { choose } = this.options;
    if (event.key in moves) {
      this.go(moves[event.key], event.shiftKey);
      if (event.shiftKey) this.extend(this.at);
    } else if ((event.key === " " || event.key === "Enter") && this.at >= 0) {
      choose?.([this.order[this.at]]);
    } else if (event.key === "a" && (event.ctrlKey || event.metaKey) && choose) {
      choose(Array.from(this.order), true);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  remove() {
    this.watcher?.disconnect();
  }
}

/** @param {Column} column */
function cellClass(column) {
  return `aner-cell${column.wide ? " aner-wide" : ""}${column.right ? " aner-right" : ""}`;
}
