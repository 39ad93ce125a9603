// Results of aner_nb as documents of JupyterLab; a launcher card, commands and settings.

import { type JupyterFrontEnd, type JupyterFrontEndPlugin } from "@jupyterlab/application";
import { ICommandPalette } from "@jupyterlab/apputils";
import { IDocumentManager } from "@jupyterlab/docmanager";
import { FileDialog, IDefaultFileBrowser } from "@jupyterlab/filebrowser";
import { ILauncher } from "@jupyterlab/launcher";
import { ISettingRegistry } from "@jupyterlab/settingregistry";
import { LabIcon } from "@jupyterlab/ui-components";

import { INDEX, isResults, ReportFactory, WHOLE_BUNDLE } from "./document";
import { benchmarkNotebook, type Defaults, type Kernel } from "./notebook";

const NAME = "aner-nb-lab:plugin";
const NEW_NOTEBOOK = "aner:new-notebook";
const OPEN_RESULTS = "aner:open-results";
const CATEGORY = "Aner";

const icon = new LabIcon({
  name: "aner:icon",
  svgstr:
    '<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 16 16"><g class="jp-icon3" fill="#616161">' +
    '<rect x="1" y="2" width="14" height="3"/><rect x="1" y="7" width="9" height="3"/>' +
    '<rect x="1" y="12" width="6" height="3"/></g></svg>',
});

const plugin: JupyterFrontEndPlugin<void> = {
  id: NAME,
  description: "Opens results of aner_nb, and starts benchmark notebooks.",
  autoStart: true,
  requires: [IDocumentManager],
  optional: [ISettingRegistry, IDefaultFileBrowser, ILauncher, ICommandPalette],
  activate: (app, documents, registry, browser, launcher, palette) => {
    addDocuments(app);
    const { commands } = app;
    commands.addCommand(NEW_NOTEBOOK, {
      label: (args) => (args.isLauncher ? "Aner benchmark" : "New Aner benchmark notebook"),
      caption: "A notebook that picks cases, runs them and shows the results",
      icon,
      execute: async (args) => {
        const folder = typeof args.cwd === "string" ? args.cwd : (browser?.model.path ?? "");
        return newNotebook(app, folder, await defaults(registry));
      },
    });
    commands.addCommand(OPEN_RESULTS, {
      label: "Open results…",
      caption: "Open the results of a study as a report",
      icon,
      execute: async () => {
        const chosen = await FileDialog.getOpenFiles({
          manager: documents,
          defaultPath: browser?.model.path,
          title: "Open results: summaries.json of a public bundle, or a .aner.json file",
          filter: ({ type, name }) => (type === "directory" || isResults(name) ? {} : null),
        });
        for (const { path, type } of chosen.value ?? []) {
          if (type !== "directory") documents.openOrReveal(path);
        }
      },
    });
    launcher?.add({ command: NEW_NOTEBOOK, args: { isLauncher: true }, category: "Other", rank: 10 });
    for (const command of [NEW_NOTEBOOK, OPEN_RESULTS]) palette?.addItem({ command, category: CATEGORY });
  },
};

function addDocuments(app: JupyterFrontEnd): void {
  const text = { icon, mimeTypes: ["application/json"], fileFormat: "text", contentType: "file" } as const;
  app.docRegistry.addFileType({ ...text, name: WHOLE_BUNDLE, displayName: "Aner results", extensions: [".aner.json"] });
  app.docRegistry.addFileType({ ...text, name: INDEX, displayName: "Aner summaries", pattern: "^summaries\\.json$" });
  const open = (path: string, factory?: string) => void app.commands.execute("docmanager:open", { path, factory });
  app.docRegistry.addWidgetFactory(new ReportFactory(open, icon));
}

async function defaults(registry: ISettingRegistry | null): Promise<Defaults> {
  const settings = await registry?.load(NAME);
  const read = (name: string) => String(settings?.get(name).composite ?? "").trim();
  return { scheduler: read("scheduler"), outputFolder: read("outputFolder") };
}

async function newNotebook(app: JupyterFrontEnd, folder: string, settings: Defaults): Promise<unknown> {
  const { contents, kernelspecs } = app.serviceManager;
  await kernelspecs.ready;
  const name = kernelspecs.specs?.default ?? "python3";
  const found = kernelspecs.specs?.kernelspecs[name];
  const kernel: Kernel = { name, display_name: found?.display_name ?? name, language: found?.language ?? "python" };
  const { path } = await contents.newUntitled({ path: folder, type: "notebook" });
  await contents.save(path, { type: "notebook", format: "json", content: benchmarkNotebook(settings, kernel) });
  return app.commands.execute("docmanager:open", { path, kernel: { name } });
}

export default plugin;
