"""What the browser loads for a widget: found inside an installed package or beside it in a checkout."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

NAMES: Final = ("case_picker", "cluster_panel", "run_monitor", "study_view")
"""The widgets that have a front end."""

MISSING: Final = (
    "This installation of aner_nb lacks the widgets' front end, so there is nothing to click here. The command line "
    "and all functions work without it; for the widgets, install aner-nb again from its wheel or from a whole checkout."
)

_PACKAGE: Final = Path(__file__).parent
_PLACES: Final = (_PACKAGE / "static", _PACKAGE.parent / "widgets")
"""Where a wheel has them, and where a checkout does."""

_IMPORT: Final = re.compile(r'^import \{[^}]*\} from "\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT: Final = re.compile(r"^export (?!default)", re.MULTILINE)


def front_end_folder() -> Path | None:
    """Return the folder of the front ends; None where they are missing."""
    files = ["base.css", *(f"{name}.js" for name in NAMES)]
    return next((place for place in _PLACES if all((place / file).exists() for file in files)), None)


def front_end(name: str) -> tuple[str, str]:
    """Return a widget's module and style sheet, the modules that it imports put before it.

    A browser loads a widget's module from a text and cannot resolve relative imports from there. Where the front
    ends are missing, the module says so in the widget's place.
    """
    folder = front_end_folder()
    if folder is None:
        return _notice(MISSING), ""
    module = _module(folder, name, set())
    style = "\n".join((folder / f"{part}.css").read_text("utf-8") for part in ("base", name))
    return module, style


def _module(folder: Path, name: str, known: set[str]) -> str:
    known.add(name)
    text = (folder / f"{name}.js").read_text("utf-8")
    parts = [
        _EXPORT.sub("", _module(folder, needed, known))
        for needed in _IMPORT.findall(text)
        if needed not in known
    ]
    return "\n".join([*parts, _IMPORT.sub("", text)])


def _notice(words: str) -> str:
    """Return a module that shows a sentence."""
    return f"export default {{ render({{ el }}) {{ el.textContent = {json.dumps(words)}; }} }};\n"
