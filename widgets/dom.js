// @ts-check
// What all widgets share: elements from plain text, the panel around a widget, its error line.

/**
 * @typedef {import("@anywidget/types").AnyModel} Model
 * @typedef {Node | string | number | null | undefined} Child
 */

/**
 * Build an element. Children that are strings become text nodes: text from files never becomes markup.
 *
 * @param {string} tag
 * @param {Record<string, any>} [attributes] `on…` are listeners, true and false set and leave out, null leaves out.
 * @param {...Child} children
 * @returns {any}
 */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, String(value));
  }
  for (const child of children) {
    if (child != null) element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

/**
 * Set an element's text only where it differs, so that nothing is laid out or read aloud for no reason.
 *
 * @param {Element} element
 * @param {string | number} text
 */
export function setText(element, text) {
  if (element.textContent !== String(text)) element.textContent = String(text);
}

let lastId = 0;

/** @returns {string} an id that no other element of the page has */
export function freshId() {
  lastId += 1;
  return `aner-${Date.now().toString(36)}-${lastId}`;
}

/**
 * A labelled control: the label and what it labels.
 *
 * @param {string} label
 * @param {HTMLElement} control
 */
export function labelled(label, control) {
  control.id ||= freshId();
  return el("span", { class: "aner-field" }, el("label", { for: control.id }, label), control);
}

/**
 * Changes of a model, all given up together when the view goes.
 *
 * @param {Model} model
 */
export function watching(model) {
  /** @type {[string, () => void][]} */
  const handlers = [];
  return {
    /**
     * Call now, and at each change of one of the traits.
     *
     * @param {string[]} traits
     * @param {() => void} handler
     */
    show(traits, handler) {
      for (const trait of traits) {
        model.on(`change:${trait}`, handler);
        handlers.push([`change:${trait}`, handler]);
      }
      handler();
    },
    stop() {
      for (const [event, handler] of handlers) model.off(event, handler);
    },
  };
}

/**
 * The frame around a widget: a summary that opens and closes it, and the line for errors.
 *
 * @param {{model: Model, el: HTMLElement}} view
 * @param {string} name of the widget, a CSS class
 * @param {string} title
 */
export function panel({ model, el: host }, name, title) {
  const note = el("span", { class: "aner-note" });
  const error = el("div", { class: "aner-error", role: "alert" });
  const body = el("div", { class: "aner-body" });
  const root = el(
    "details",
    // Lab's own shortcuts (Enter, arrows, letters act on cells) stay away while the focus is in here.
    { class: `aner ${name}`, "data-lm-suppress-shortcuts": "true" },
    el("summary", {}, el("span", { class: "aner-title", role: "heading", "aria-level": 3 }, title), note),
    error,
    body,
  );
  root.addEventListener("toggle", () => {
    if (root.open !== model.get("expanded")) {
      model.set("expanded", root.open);
      model.save_changes();
    }
  });
  const changes = watching(model);
  changes.show(["expanded"], () => {
    root.open = model.get("expanded");
  });
  changes.show(["error"], () => {
    const text = model.get("error");
    error.replaceChildren();
    if (!text) return;
    error.append(
      el("span", {}, text),
      button("Dismiss", () => {
        model.set("error", "");
        model.save_changes();
      }),
    );
  });
  host.replaceChildren(root);
  return { root, body, note, changes };
}

/**
 * @param {string} text
 * @param {() => void} press
 * @param {Record<string, any>} [attributes]
 * @returns {HTMLButtonElement}
 */
export function button(text, press, attributes = {}) {
  return el("button", { type: "button", ...attributes, onclick: press }, text);
}

/**
 * A form that does something when it is sent, by its button or by Enter in a field. JupyterLab keeps Enter from
 * sending forms in its cells, so that it is dealt with here.
 *
 * @param {string} className
 * @param {() => void} send
 * @param {...Child} children
 * @returns {HTMLFormElement}
 */
export function form(className, send, ...children) {
  return el(
    "form",
    {
      class: className,
      onsubmit: (/** @type {Event} */ event) => {
        event.preventDefault();
        send();
      },
      onkeydown: (/** @type {KeyboardEvent} */ event) => {
        if (event.key !== "Enter" || !(event.target instanceof HTMLInputElement)) return;
        event.preventDefault();
        send();
      },
    },
    ...children,
  );
}

/**
 * Call at most once in a while: the last of a burst of calls counts.
 *
 * @template {any[]} T
 * @param {number} milliseconds
 * @param {(...values: T) => void} action
 * @returns {(...values: T) => void}
 */
export function settled(milliseconds, action) {
  /** @type {any} */
  let timer;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...values), milliseconds);
  };
}
