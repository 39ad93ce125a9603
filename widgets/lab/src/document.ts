// The document that JupyterLab opens for a file with results.

import { PathExt } from "@jupyterlab/coreutils";
import { ABCWidgetFactory, type DocumentRegistry, DocumentWidget } from "@jupyterlab/docregistry";
import { Widget } from "@lumino/widgets";

import { reportElement } from "./report";
import { readResults } from "./results";

export const FACTORY = "Aner report";
export const WHOLE_BUNDLE = "aner-results";
export const INDEX = "aner-summaries";

/** Opens another view of a file. */
export type Open = (path: string, factory?: string) => void;

/** Whether a file is one that the report opens, by its name. */
export function isResults(name: string): boolean {
  return name === "summaries.json" || name.endsWith(".aner.json");
}

class Report extends Widget {
  constructor(
    private readonly context: DocumentRegistry.Context,
    private readonly open: Open,
  ) {
    super();
    this.addClass("aner-report");
    this.node.tabIndex = 0;
    void context.ready.then(() => {
      if (this.isDisposed) return;
      this.show_results();
      context.model.contentChanged.connect(this.show_results, this);
    });
  }

  private show_results(): void {
    const { path } = this.context;
    const inBundle = PathExt.basename(path) === "summaries.json";
    const report = PathExt.join(PathExt.dirname(path), "report.html");
    const element = reportElement(readResults(this.context.model.toString()), {
      asText: () => this.open(path, "Editor"),
      wholeReport: inBundle ? () => this.open(report) : null,
    });
    this.node.replaceChildren(element);
  }
}

/** Makes reports of files. */
export class ReportFactory extends ABCWidgetFactory<DocumentWidget<Report>> {
  constructor(
    private readonly open: Open,
    icon: DocumentRegistry.IFileType["icon"],
  ) {
    super({
      name: FACTORY,
      fileTypes: [WHOLE_BUNDLE, INDEX],
      defaultFor: [WHOLE_BUNDLE, INDEX],
      modelName: "text",
      readOnly: true,
    });
    this.icon = icon;
  }

  private readonly icon: DocumentRegistry.IFileType["icon"];

  protected createNewWidget(context: DocumentRegistry.Context): DocumentWidget<Report> {
    const widget = new DocumentWidget({ content: new Report(context, this.open), context });
    widget.title.icon = this.icon;
    return widget;
  }
}
