// Reading the results of a study from a file that anybody may have written.

/** A duration over the measured trials, in nanoseconds. */
export interface Spread {
  median: number;
  minimum: number;
  maximum: number;
}

/** What a study says of one case. */
export interface CaseResult {
  name: string;
  ranks: string;
  status: string;
  reason: string;
  measured: number;
  fit: Spread | null;
  command: Spread | null;
  ratio: number | null;
  baseline: string;
  accuracy: number | null;
  loss: number | null;
  agrees: boolean | null;
  difference: number | null;
}

/** What a study came to. */
export interface Results {
  title: string;
  description: string;
  cases: CaseResult[];
  warnings: string[];
}

type Fields = Record<string, unknown>;

/**
 * Read `summaries.json` of a public bundle, or a whole study in one `.aner.json` file.
 *
 * @returns the results, or a sentence that says why there are none
 */
export function readResults(source: string): Results | string {
  let whole: unknown;
  try {
    whole = JSON.parse(source);
  } catch (error) {
    return `This file is not JSON (${String(error)}).`;
  }
  const document = fields(whole);
  const summaries = "summaries" in document ? fields(document.summaries) : document;
  const cases = summaries.cases;
  if (!Array.isArray(cases) || !cases.every((one) => typeof fields(one).case === "string")) {
    return "This file does not hold the results of a study: it has no list of cases.";
  }
  const suite = fields(document.suite);
  return {
    title: text(suite.name) || "Study",
    description: text(suite.description),
    cases: cases.map((one) => readCase(fields(one))),
    warnings: Array.isArray(summaries.warnings) ? summaries.warnings.map(text) : [],
  };
}

function readCase(own: Fields): CaseResult {
  const comparison = fields(own.fit_comparison);
  const agreement = fields(own.agreement);
  return {
    name: text(own.case),
    ranks: ranks(own.placements, own.weights),
    status: text(own.status).replaceAll("_", " "),
    reason: text(own.reason),
    measured: number(own.measured) ?? 0,
    fit: spread(own.native_fit),
    command: spread(own.complete_command),
    ratio: number(comparison.ratio),
    baseline: text(comparison.baseline),
    accuracy: number(own.test_accuracy),
    loss: number(own.test_loss),
    agrees: typeof agreement.agrees === "boolean" ? agreement.agrees : null,
    difference: number(agreement.maximum_relative),
  };
}

function ranks(placements: unknown, weights: unknown): string {
  if (!Array.isArray(placements)) return "";
  const shares: unknown[] = Array.isArray(weights) ? weights : [];
  const equal = new Set(shares).size < 2;
  return placements.map((one, rank) => (equal ? text(one) : `${text(one)} ×${text(shares[rank])}`)).join(" + ");
}

function spread(value: unknown): Spread | null {
  const { median_ns, minimum_ns, maximum_ns } = fields(value);
  const [median, minimum, maximum] = [median_ns, minimum_ns, maximum_ns].map(number);
  return median == null || minimum == null || maximum == null ? null : { median, minimum, maximum };
}

function fields(value: unknown): Fields {
  return typeof value === "object" && value !== null ? (value as Fields) : {};
}

function text(value: unknown): string {
  return typeof value === "string" || typeof value === "number" ? String(value) : "";
}

function number(value: unknown): number | null {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}
