// The notebook that "New Aner benchmark notebook" makes.

/** What a person set as the beginning of new notebooks. */
export interface Defaults {
  scheduler: string;
  outputFolder: string;
}

/** The kernel that the notebook is for. */
export interface Kernel {
  name: string;
  display_name: string;
  language: string;
}

/** Return the notebook's content. Settings become Python's string literals, whatever is in them. */
export function benchmarkNotebook({ scheduler, outputFolder }: Defaults, kernel: Kernel): object {
  const options = [
    scheduler && `cluster=aner.connect(${JSON.stringify(scheduler)})`,
    outputFolder && `out=${JSON.stringify(outputFolder)}`,
  ].filter(Boolean);
  const code = `import aner_nb as aner\n\napp = aner.app(${options.join(", ")})\napp`;
  const words =
    "# A benchmark\n\nRun the cell below, pick cases, press *Run*. Results stay in the output folder, " +
    "also when the kernel is restarted.";
  return {
    cells: [
      { cell_type: "markdown", id: "about", metadata: {}, source: words },
      { cell_type: "code", id: "app", metadata: {}, source: code, outputs: [], execution_count: null },
    ],
    metadata: { kernelspec: kernel },
    nbformat: 4,
    nbformat_minor: 5,
  };
}
