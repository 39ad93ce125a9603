"""Picking cases: suites, filters, a list of any length, and an editor of ranks and weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import traitlets

from aner_nb.case import Case, Placement
from aner_nb.errors import BackendUnavailable, CaseError
from aner_nb.front_ends import front_end
from aner_nb.layers import Dense
from aner_nb.matching import match_offers
from aner_nb.ranks import Offer
from aner_nb.records import in_words, told
from aner_nb.suites import Suite, suite, suite_names
from aner_nb.widgets.panel import Command, Panel, coded, one_line

_NO_FILTERS: Final[dict[str, Any]] = {
    "text": "",
    "backends": [],
    "dtype": "",
    "kind": "",
    "available": False,
    "chosen": False,
}
_BITS: Final = {"sync": True, "from_json": lambda value, _widget: bytes(value)}


class CasePicker(Panel):
    """A list of cases to choose from.

    Parameters
    ----------
    which
        A suite (name, path of a YAML file, or `Suite`), or cases; what is shown first.
    more
        Further suites to offer, beside those of the package.
    offers
        What the cluster offers, for saying which cases cannot run; None: not known.

    Examples
    --------
    >>> picker = CasePicker("quick")
    >>> len(picker.cases)
    6
    """

    _esm, _css = front_end("case_picker")

    preset = traitlets.Unicode(help="Name of the suite that is shown.").tag(sync=True)
    presets = traitlets.List(traitlets.Unicode(), help="Suites on offer.").tag(sync=True)
    about = traitlets.Unicode(help="What the suite is for.").tag(sync=True)
    rows = traitlets.Dict(help="The cases, as columns; see `columns.js`.").tag(sync=True)
    selected = traitlets.Bytes(help="1 for each selected case, 0 for others.").tag(**_BITS)
    filters = traitlets.Dict(dict(_NO_FILTERS), help="What is shown.").tag(sync=True)
    detail = traitlets.Dict(help="The case at hand.").tag(sync=True)
    placements = traitlets.List(traitlets.Unicode(), help="What the cluster offers.").tag(sync=True)

    def __init__(
        self,
        which: str | Path | Suite | Iterable[Case] = "quick",
        *,
        more: Sequence[str | Path | Suite] = (),
        offers: Sequence[Offer] | None = None,
    ) -> None:
        self._suites: dict[str, Suite | None] = dict.fromkeys(suite_names())
        for item in more:
            self._add(item if isinstance(item, Suite) else suite(item))
        if not isinstance(which, str | Path | Suite):
            which = Suite("cases", tuple(which))
        first = which if isinstance(which, Suite) else suite(which)
        self._add(first)
        self._offers = None if offers is None else tuple(offers)
        self._suite = first
        self._cases: list[Case] = []
        super().__init__(preset=first.name, presets=list(self._suites))
        self._show(first)
        self.observe(self._turn_to, "preset")

    def _add(self, one: Suite) -> None:
        self._suites[one.name] = one

    @property
    def cases(self) -> tuple[Case, ...]:
        """The selected cases, in the suite's order."""
        return tuple(case for case, on in zip(self._cases, self.selected, strict=True) if on)

    @property
    def suite(self) -> Suite:
        """The suite of the selected cases; the preset itself while all of it, unchanged, is selected.

        Raises
        ------
        CaseError
            If no case is selected.
        """
        chosen = self.cases
        if chosen == self._suite.cases:
            return self._suite
        return dataclasses.replace(self._suite, name=f"{self._suite.name}-picked", cases=chosen)

    def select(self, names: Iterable[str]) -> None:
        """Select the cases with these names, and no others."""
        wanted = set(names)
        self.selected = bytes(case.name in wanted for case in self._cases)

    def offered(self, offers: Sequence[Offer] | None) -> None:
        """Say what the cluster offers now; None: not known."""
        with self.lock:
            self._offers = None if offers is None else tuple(offers)
            self._refresh()

    def commands(self) -> Mapping[str, Command]:
        return {"describe": lambda content: self._describe(content["row"]), "edit": self._edit}

    def _turn_to(self, change: Mapping[str, Any]) -> None:
        def show() -> None:
            name = change["new"]
            known = self._suites.get(name)
            self._show(known if known is not None else suite(name))

        self.guarded(show)

    def _show(self, shown: Suite) -> None:
        with self.lock:
            self._suites[shown.name] = shown
            self._suite = shown
            self._cases = list(shown.cases)
            with self.hold_sync():
                self.about = shown.description
                self.selected = b"\1" * len(self._cases)
                self.detail = {}
                self.filters = dict(_NO_FILTERS)
                self._refresh()

    def _refresh(self) -> None:
        offers = self._offers or ()
        own = [placement for case in self._cases for placement in case.placements]
        names = dict.fromkeys([str(offer.placement) for offer in offers] + [str(one) for one in own])
        with self.hold_sync():
            self.placements = list(names)[:200]
            self.rows = columns(self._cases, self._offers)

    def _describe(self, row: int) -> None:
        case = self._cases[row]
        reason = unavailable(case.placements, self._offers)
        self.detail = {
            "row": row,
            "name": case.name,
            "copy": self._free_name(case.name),
            "reason": reason,
            "facts": [[label, text] for label, text in facts(case)],
            "ranks": [
                [str(placement), weight]
                for placement, weight in zip(case.placements, case.weights, strict=True)
            ],
        }

    def _free_name(self, name: str) -> str:
        taken = {case.name for case in self._cases}
        number = 2
        while f"{name}-{number}" in taken:
            number += 1
        return f"{name}-{number}"

    def _edit(self, content: Mapping[str, Any]) -> None:
        """Save the case at hand with other ranks: under a new name beside it, under its own in its place."""
        with self.lock:
            row = content["row"]
            ranks = tuple((placement, weight) for placement, weight in content["ranks"])
            changed = dataclasses.replace(self._cases[row], name=content["name"], ranks=ranks)
            others = [case.name for case in self._cases if case is not self._cases[row]]
            if changed.name in others:
                raise CaseError(f"another case is named {changed.name!r}.", remedy="Choose another name.")
            if changed.name == self._cases[row].name:
                self._cases[row] = changed
                selected = self.selected[:row] + b"\1" + self.selected[row + 1 :]
            else:
                self._cases.insert(row + 1, changed)
                selected = self.selected[:row] + b"\0\1" + self.selected[row + 1 :]
            with self.hold_sync():
                self.error = ""
                self.selected = selected
                self._refresh()
                self._describe(self._cases.index(changed))


def columns(cases: Sequence[Case], offers: Sequence[Offer] | None) -> dict[str, Any]:
    """Return cases as compact columns: 10,000 of them are a few hundred kilobytes."""
    texts: dict[str, list[str]] = {
        "ranks": [],
        "dtype": [],
        "kind": [],
        "backends": [],
        "work": [],
        "reason": [],
    }
    reasons: dict[tuple[Placement, ...], str] = {}
    for case in cases:
        placements = case.placements
        if placements not in reasons:
            reasons[placements] = unavailable(placements, offers)
        texts["ranks"].append(rank_text(case))
        texts["dtype"].append(case.dtype)
        texts["kind"].append("group" if case.is_group else "standalone")
        texts["backends"].append(" ".join(sorted({placement.backend for placement in placements})))
        texts["work"].append(work_text(case))
        texts["reason"].append(reasons[placements])
    coded_columns = {name: coded(column) for name, column in texts.items()}
    return {
        "count": len(cases),
        "names": "\n".join(one_line(case.name) for case in cases),
        "levels": {name: levels for name, (levels, _) in coded_columns.items()},
        "codes": {name: codes for name, (_, codes) in coded_columns.items()},
    }


def unavailable(placements: Sequence[Placement], offers: Sequence[Offer] | None) -> str:
    """Return why the ranks cannot run on these offers; empty: they can, or it is not known."""
    if offers is None:
        return ""
    try:
        match_offers(placements, offers)
    except BackendUnavailable as error:
        return str(error)
    return ""


def rank_text(case: Case) -> str:
    """Return the ranks of a case in few words, with weights where they differ."""
    equal = len(set(case.weights)) == 1
    return " + ".join(
        str(placement) if equal else f"{placement} ×{weight}"
        for placement, weight in zip(case.placements, case.weights, strict=True)
    )


def work_text(case: Case) -> str:
    """Return what a case trains, in few words."""
    units = "-".join(str(layer.units) for layer in case.stack if isinstance(layer, Dense))
    source = str(case.data.to_record().get("source", "data"))
    return f"{source}, {units or case.layers_text}, batch {case.batch}, {case.epochs} epochs"


def facts(case: Case) -> list[tuple[str, str]]:
    """Return what there is to say about a case beside its ranks, as label and text."""
    record = case.data.to_record()
    source = str(record.pop("source", "data"))
    options = ", ".join(f"{name} {value}" for name, value in record.items())
    return [
        ("data", f"{source} ({options})" if options else source),
        ("layers", case.layers_text),
        ("dtype", case.dtype),
        ("batch", f"{case.batch} rows over all ranks"),
        ("epochs", str(case.epochs)),
        ("optimizer", in_words(case.optimizer.to_record()).replace("_", " ")),
        *(
            (name.replace("_", " "), told(value).replace("_", " "))
            for name, value in case.training_record().items()
        ),
        ("seed", str(case.seed)),
    ]
