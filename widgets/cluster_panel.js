// @ts-check
// The cluster: machines, what each offers, and whether it answers.

import { button, el, form, labelled, panel } from "./dom.js";
import { counted } from "./format.js";

/** @typedef {import("./dom.js").Model} Model */

/** @param {{model: Model, el: HTMLElement}} view */
function render({ model, el: host }) {
  const { body, note, changes } = panel({ model, el: host }, "aner-cluster", "Cluster");
  const status = el("p", { class: "aner-status", role: "status" });
  const platforms = el("div", { class: "aner-platforms" });
  const check = button("Check again", () => model.send({ do: "check" }));
  const close = button("Disconnect", () => model.send({ do: "close" }));
  const tools = el("div", { class: "aner-bar" }, check, close);
  const start = startForm(model);
  body.append(status, start, platforms, tools);

  changes.show(["state", "platforms", "message"], () => {
    const state = model.get("state");
    const all = model.get("platforms");
    const busy = state === "starting" || state === "checking";
    start.hidden = state !== "none";
    tools.hidden = state === "none" || state === "starting";
    check.disabled = busy || state === "running";
    close.disabled = busy || state === "running";
    status.textContent = model.get("message");
    platforms.replaceChildren(...all.map(platformCard));
    const count = all.reduce((/** @type {number} */ sum, /** @type {any} */ one) => sum + one.placements.length, 0);
    note.textContent = all.length
      ? `${counted(all.length, "platform")}, ${counted(count, "placement")}`
      : state === "starting"
        ? "starting…"
        : "none yet";
  });
  return () => changes.stop();
}

/** @param {Model} model */
function startForm(model) {
  const placements = el("input", { value: model.get("wanted"), size: 24, spellcheck: "false" });
  const address = el("input", { value: model.get("address"), size: 24, placeholder: "tls://scheduler:8786", spellcheck: "false" });
  return el(
    "div",
    {},
    form(
      "aner-bar",
      () => model.send({ do: "start", placements: placements.value }),
      labelled("On this machine", placements),
      el("button", { type: "submit" }, "Start local cluster"),
    ),
    form(
      "aner-bar",
      () => model.send({ do: "connect", address: address.value }),
      labelled("Dask scheduler", address),
      el("button", { type: "submit" }, "Connect"),
    ),
  );
}

/**
 * @param {{name: string, facts: [string, string][], placements: {text: string, tensorflow: string, health: string}[]}} platform
 */
function platformCard(platform) {
  return el(
    "section",
    { class: "aner-card", "aria-label": platform.name },
    el("h4", {}, platform.name),
    el(
      "dl",
      {},
      ...platform.facts.flatMap(([label, value]) => [el("dt", {}, label), el("dd", {}, value)]),
    ),
    el(
      "ul",
      { class: "aner-offers", "aria-label": `Placements on ${platform.name}` },
      ...platform.placements.map((offer) =>
        el(
          "li",
          { class: offer.health === "answers" ? "aner-good" : "aner-bad" },
          el("span", { class: "aner-offer" }, offer.text),
          el("span", { class: "aner-note" }, `${offer.health}; ${offer.tensorflow}`),
        ),
      ),
    ),
  );
}

export default { render };
