// A study as a document: elements from plain text, colours from JupyterLab's theme.

import { button, el } from "../../dom.js";
import { counted, number, percent } from "../../format.js";
import { type CaseResult, type Results, type Spread } from "./results";

/** What can be done from the document. */
export interface Actions {
  /** Show the file as text. */
  asText: () => void;
  /** Open the bundle's own report; null where the file is no part of a bundle. */
  wholeReport: (() => void) | null;
}

const HEADS = ["case", "ranks", "native fit, s", "ratio", "complete command, s", "test", "agreement", "trials"];

/** Build the document of results, or of the sentence that says why there are none. */
export function reportElement(results: Results | string, actions: Actions): HTMLElement {
  const buttons = el(
    "div",
    { class: "aner-bar" },
    actions.wholeReport && button("Open the whole report", actions.wholeReport),
    button("Show as text", actions.asText),
  );
  if (typeof results === "string") {
    return el("div", { class: "aner" }, el("h1", {}, "No results"), el("p", { role: "alert" }, results), buttons);
  }
  return el(
    "div",
    { class: "aner" },
    el("h1", {}, results.title === "Study" ? "Study" : `Study ${results.title}`),
    results.description && el("p", {}, results.description),
    el("h2", {}, "The answer"),
    el("p", {}, answer(results.cases)),
    buttons,
    el("h2", {}, "All cases"),
    table(results.cases),
    el("h2", {}, "How far to trust it"),
    el("ul", {}, ...trust(results.warnings).map((words) => el("li", {}, words))),
  );
}

function answer(cases: CaseResult[]): string {
  const groups = cases.filter((one) => one.ratio != null);
  const won = groups.filter((one) => (one.ratio ?? 0) > 1).length;
  const judged = cases.filter((one) => one.agrees != null);
  const idle = cases.filter((one) => one.status !== "passed");
  const sentences = [
    `${won} of ${counted(groups.length, "group")} beat their fastest standalone placement in native fit.`,
    `${judged.filter((one) => one.agrees).length} of ${counted(judged.length, "case")} agree with the reference of their work.`,
  ];
  if (idle.length > 0) sentences.push(`Not measured: ${idle.map((one) => one.name).join(", ")}.`);
  return sentences.join(" ");
}

function trust(warnings: string[]): string[] {
  return [
    ...(warnings.length > 0 ? warnings : ["No warning was found."]),
    "These are the figures that the file states. aner-nb verify recomputes those of a bundle from its trials.",
  ];
}

function table(cases: CaseResult[]): HTMLElement {
  const longest = Math.max(0, ...cases.map((one) => one.fit?.median ?? 0));
  return el(
    "div",
    { class: "aner-report-scroll", tabindex: 0, role: "region", "aria-label": "All cases" },
    el(
      "table",
      {},
      el("caption", {}, "Durations: median [observed minimum : maximum] of the measured trials. Bars: native fit."),
      el("thead", {}, el("tr", {}, ...HEADS.map((head) => el("th", { scope: "col" }, head)))),
      el("tbody", {}, ...cases.map((one) => row(one, longest))),
    ),
  );
}

function row(one: CaseResult, longest: number): HTMLElement {
  const head = [el("th", { scope: "row" }, one.name), el("td", {}, one.ranks)];
  if (one.fit == null) {
    const words = one.reason ? `${one.status}: ${one.reason}` : one.status;
    return el("tr", {}, ...head, el("td", { colspan: HEADS.length - 2 }, words));
  }
  const width = longest > 0 ? (100 * one.fit.median) / longest : 0;
  const span = el("span", { class: "aner-report-span", style: `width: ${width.toFixed(2)}%`, "aria-hidden": "true" });
  return el(
    "tr",
    {},
    ...head,
    el("td", {}, ...seconds(one.fit), span),
    el("td", {}, one.ratio == null ? "" : `${one.ratio.toFixed(2)} of ${one.baseline}`),
    el("td", {}, ...seconds(one.command)),
    el("td", {}, one.accuracy == null ? `loss ${number(one.loss, 4)}` : percent(one.accuracy)),
    el("td", { class: one.agrees === false ? "aner-report-differs" : null }, agreement(one)),
    el("td", {}, one.measured),
  );
}

function seconds(spread: Spread | null): (HTMLElement | string)[] {
  if (spread == null) return [];
  const [median, minimum, maximum] = [spread.median, spread.minimum, spread.maximum].map((one) => (one / 1e9).toFixed(3));
  return [median, el("span", { class: "aner-report-range" }, ` [${minimum} : ${maximum}]`)];
}

function agreement(one: CaseResult): string {
  if (one.agrees == null) return "no reference";
  return `${one.agrees ? "agrees" : "DIFFERS"}, ${one.difference?.toExponential(1) ?? "–"}`;
}
