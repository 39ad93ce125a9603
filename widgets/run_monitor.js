// @ts-check
// A run as it goes on: queue, current trial, ranks, curves, time left; pause and cancel.

import { button, el, labelled, panel, setText } from "./dom.js";
import { counted, duration, number, percent } from "./format.js";
import { floats } from "./columns.js";
import { Grid } from "./grid.js";
import { linePlot } from "./plot.js";

/** @typedef {import("./dom.js").Model} Model */

const STATES = {
  ready: "Ready",
  starting: "Starting",
  running: "Running",
  pausing: "Pausing: the current trial goes on to its end",
  paused: "Paused between trials",
  cancelling: "Cancelling",
  finished: "Finished",
  cancelled: "Cancelled; what was measured is kept",
  failed: "Failed",
};
const MARKS = ["waiting", "▶ running", "✓ passed", "✗ failed", "– cancelled", "– not run"];
const IN_PROGRESS = ["starting", "running", "pausing", "paused", "cancelling"];

/** @param {{model: Model, el: HTMLElement}} view */
function render({ model, el: host }) {
  const { body, note, changes } = panel({ model, el: host }, "aner-monitor", "Run");
  const tools = toolbar(model);
  const whole = meter("Trials");
  const trial = trialView(model);
  const lanes = el("section", { class: "aner-lanes", "aria-label": "Ranks" });
  const queue = queueView(model);
  body.append(tools.element, whole.element, trial.element, lanes, queue.element);

  changes.show(["state", "out", "start_label", "can_start"], () => {
    tools.read();
    const state = /** @type {keyof typeof STATES} */ (model.get("state"));
    setText(note, STATES[state] ?? state);
  });
  changes.show(["live"], () => {
    const { counts, seconds_left: left, current } = model.get("live");
    whole.element.hidden = !counts?.all;
    if (counts?.all) {
      const done = counts.all - counts.waiting - counts.running;
      const others = ["failed", "cancelled", "not_run"].filter((name) => counts[name]);
      const words = [
        `${done} of ${counted(counts.all, "trial")}`,
        ...others.map((name) => `${counts[name]} ${name.replace("_", " ")}`),
      ];
      if (left != null && IN_PROGRESS.includes(model.get("state"))) words.push(`about ${duration(left)} left`);
      whole.set(done, counts.all, words.join(" · "));
    }
    trial.read(current);
    showLanes(lanes, current, model.get("lanes"), model.get("state"));
  });
  changes.show(["curves"], () => trial.draw());
  changes.show(["lanes"], () => showLanes(lanes, model.get("live").current, model.get("lanes"), model.get("state")));
  changes.show(["queue"], () => queue.read());
  changes.show(["marks"], () => queue.marked());
  return () => {
    changes.stop();
    queue.remove();
  };
}

/** @param {Model} model */
function toolbar(model) {
  const start = button("Start", () => model.send({ do: "start" }), { class: "aner-primary" });
  const pause = button("Pause", () => model.send({ do: model.get("state").startsWith("paus") ? "resume" : "pause" }));
  const cancel = button("Cancel", () => model.send({ do: "cancel" }));
  const out = el("input", { size: 22, spellcheck: "false" });
  out.addEventListener("change", () => {
    model.set("out", out.value.trim());
    model.save_changes();
  });
  const status = el("span", { class: "aner-status", role: "status" });
  return {
    element: el("div", { class: "aner-bar" }, start, pause, cancel, labelled("Results folder", out), status),
    read() {
      const state = model.get("state");
      const active = IN_PROGRESS.includes(state);
      start.disabled = active || !model.get("can_start");
      setText(start, model.get("start_label"));
      pause.disabled = !active || state === "cancelling";
      setText(pause, state.startsWith("paus") ? "Go on" : "Pause after this trial");
      cancel.disabled = !active || state === "cancelling";
      out.disabled = active;
      if (document.activeElement !== out) out.value = model.get("out");
      setText(status, active && state !== "running" ? STATES[/** @type {keyof typeof STATES} */ (state)] : "");
    },
  };
}

/** @param {string} label */
function meter(label) {
  const bar = el("progress", { "aria-label": label, max: 1, value: 0 });
  const words = el("span", { class: "aner-meter-words" });
  return {
    element: el("div", { class: "aner-meter" }, bar, words),
    /** @param {number} value @param {number} max @param {string} text */
    set(value, max, text) {
      bar.max = max || 1;
      bar.value = value;
      setText(words, text);
    },
  };
}

/** @param {Model} model */
function trialView(model) {
  const title = el("h4", {});
  const reason = el("p", { class: "aner-warning" });
  const updates = meter("Updates of the current trial");
  const figures = ["updates/s", "batch loss", "validation loss", "validation accuracy"].map((name) => {
    const value = el("span", { class: "aner-value" }, "–");
    return { value, element: el("div", { class: "aner-figure" }, value, el("span", { class: "aner-note" }, name)) };
  });
  const losses = linePlot("Loss", [
    { name: "batch", className: "aner-line-1" },
    { name: "validation", className: "aner-line-2" },
  ]);
  const accuracy = linePlot("Validation accuracy", [{ name: "accuracy", className: "aner-line-2" }]);
  const element = el(
    "section",
    { class: "aner-trial", "aria-label": "Current trial" },
    title,
    reason,
    updates.element,
    el("div", { class: "aner-figures" }, ...figures.map((figure) => figure.element)),
    el("div", { class: "aner-plots" }, losses.element, accuracy.element),
  );
  return {
    element,
    /** @param {any} current */
    read(current) {
      element.hidden = !current;
      if (!current) return;
      setText(title, `${current.case}, ${current.role.replace("_", "-")} ${current.repetition}: ${current.stage}`);
      setText(reason, current.reason);
      reason.hidden = !current.reason || current.stage === "cancelled";
      const epochs = `epoch ${current.epoch.toLocaleString("en")} of ${current.epochs.toLocaleString("en")}`;
      updates.set(current.update, current.updates, `${current.update.toLocaleString("en")} of ${counted(current.updates, "update")} · ${epochs}`);
      const values = [number(current.rate), number(current.loss, 4), number(current.validation_loss, 4), percent(current.accuracy)];
      values.forEach((value, index) => setText(figures[index].value, value));
    },
    draw() {
      const { loss, validation } = model.get("curves");
      const total = model.get("live").current?.update ?? 0;
      const batch = groups(floats(loss), 2);
      const epochs = groups(floats(validation), 3);
      losses.draw([batch, epochs], total);
      accuracy.draw([epochs.map(([update, , share]) => [update, share])], total);
      if (epochs.length) accuracy.element.hidden = !epochs.some(([, , share]) => Number.isFinite(share));
    },
  };
}

/**
 * @param {Float32Array} values
 * @param {number} width
 * @returns {any[]}
 */
function groups(values, width) {
  return Array.from({ length: values.length / width }, (_, index) =>
    Array.from(values.subarray(index * width, (index + 1) * width)),
  );
}

/**
 * @param {HTMLElement} element
 * @param {any} current
 * @param {any[]} last
 * @param {string} state
 */
function showLanes(element, current, last, state) {
  element.hidden = !current;
  if (!current) return;
  const rows = current.ranks.map((/** @type {string} */ placement, /** @type {number} */ rank) => {
    const busy = IN_PROGRESS.includes(state) && !current.ended;
    const speed = current.rate != null && current.batch ? current.rate * current.batch * current.shares[rank] : null;
    const words = !busy ? "idle" : speed != null ? `${current.stage}, ${number(speed)} rows/s` : current.stage;
    return lane(`rank ${rank}`, placement, current.shares[rank], words);
  });
  const heading = el("h4", {}, "Ranks now");
  const done = last.length
    ? [
        el("h4", {}, "Last passed trial: a rank's median update"),
        ...last.map((one, rank) => phases(rank, one)),
        el(
          "div",
          { class: "aner-keys" },
          ...["upload", "compute", "readback", "rest"].map((name) => el("span", { class: `aner-key aner-phase-${name}` }, name)),
        ),
      ]
    : [];
  element.replaceChildren(heading, ...rows, ...done);
}

/** @param {string} name @param {string} placement @param {number} share @param {string} words */
function lane(name, placement, share, words) {
  const bar = el("span", { class: "aner-share" });
  bar.style.width = `${(100 * share).toFixed(1)}%`;
  return el(
    "div",
    { class: "aner-lane" },
    el("span", { class: "aner-lane-name" }, `${name} · ${placement}`),
    el("span", { class: "aner-track" }, bar),
    el("span", { class: "aner-lane-words" }, `${(100 * share).toFixed(0)} % of each batch; ${words}`),
  );
}

/** @param {number} rank @param {any} one */
function phases(rank, one) {
  const rest = Math.max(0, one.update - one.upload - one.compute - one.readback);
  const parts = { upload: one.upload, compute: one.compute, readback: one.readback, rest };
  const bars = Object.entries(parts).map(([name, milliseconds]) => {
    const bar = el("span", { class: `aner-phase aner-phase-${name}` });
    bar.style.width = `${(100 * milliseconds) / (one.update || 1)}%`;
    return bar;
  });
  const words = `${number(one.compute)} ms computing of ${number(one.update)} ms`;
  return el(
    "div",
    { class: "aner-lane" },
    el("span", { class: "aner-lane-name" }, `rank ${rank} · ${one.placement}`),
    el("span", { class: "aner-track" }, ...bars),
    el("span", { class: "aner-lane-words" }, words),
  );
}

/** @param {Model} model */
function queueView(model) {
  /** @type {string[][]} */
  let slots = [];
  let status = new Uint8Array();
  const grid = new Grid({
    label: "Queue of trials",
    columns: [{ title: "Trial" }, { title: "Case" }, { title: "State" }],
    cells: (row) => [slots[row][1], slots[row][0], MARKS[status[row]] ?? ""],
    mark: (row) => `aner-mark-${status[row]}`,
  });
  const element = el("details", { class: "aner-queue", open: true }, el("summary", {}, "Queue"), grid.element);
  return {
    element,
    read() {
      const text = model.get("queue");
      slots = text ? text.split("\n").map((/** @type {string} */ line) => line.split("\t")) : [];
      element.hidden = !slots.length;
      this.marked();
      grid.show(slots.map((_, index) => index));
    },
    marked() {
      const view = model.get("marks");
      status = view?.byteLength ? new Uint8Array(view.buffer, view.byteOffset, view.byteLength) : new Uint8Array();
      const running = status.indexOf(1);
      if (running >= 0 && !element.contains(document.activeElement)) grid.reveal(running);
      grid.refresh();
    },
    remove: () => grid.remove(),
  };
}

export default { render };
