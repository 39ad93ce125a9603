"""Suites of cases, read from YAML, and the seeded order in which their trials run."""

from __future__ import annotations

import fnmatch
import importlib.resources
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

from aner_nb.case import Case, canonical_json, case_from_record
from aner_nb.counter import permutation
from aner_nb.errors import CaseError
from aner_nb.keras_models import MAX_BYTES
from aner_nb.plain import read_yaml
from aner_nb.receipts import Role
from aner_nb.user_arrays import OWN_SOURCES, KeptArrays

_MAX_FILE_BYTES: Final = 2**20
LARGEST_COUNT: Final = 1000
"""Of warm-ups and of repetitions."""
_COUNTS: Final = (("warm_ups", 0), ("repetitions", 1), ("seed", 0))
"""Each with the least that it may be."""
_FIELDS: Final = ("name", "description", "placements", "warm_ups", "repetitions", "seed", "defaults", "cases")


@dataclass(frozen=True, slots=True)
class Slot:
    """One trial to be run."""

    case: Case
    role: Role
    repetition: int
    round: int
    """0 for the warm-ups."""
    position: int
    """Place in the round, from 0."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """What the order of trials follows from: the seed, and the cases' names in the suite's order."""

    seed: int
    names: tuple[str, ...]

    def places(self, warm_ups: int, repetitions: int) -> list[tuple[str, Role, int, int, int]]:
        """Return case, role, repetition, round and position of all trials in the order in which they run."""
        counts: dict[Role, int] = {"warm_up": warm_ups, "measured": repetitions}
        return [
            (self.names[index], role, repetition, 0 if role == "warm_up" else repetition, position)
            for role, count in counts.items()
            for repetition in range(1, count + 1)
            for position, index in enumerate(
                permutation(self.seed, f"{role} {repetition}", len(self.names)).tolist()
            )
        ]


@dataclass(frozen=True, slots=True)
class Suite:
    """Cases that are measured together."""

    name: str
    cases: tuple[Case, ...]
    description: str = ""
    placements: tuple[str, ...] = ("cpu:1", "cpu:1")
    """What the embedded local cluster offers when no other cluster is given."""
    warm_ups: int = 1
    repetitions: int = 3
    seed: int = 0
    """Of the order of trials within a round."""
    earlier: tuple[Schedule, ...] = ()
    """Other schedules by which trials of one results folder ran: see `merged`."""

    def __post_init__(self) -> None:
        names = [case.name for case in self.cases]
        twice = sorted(name for name, count in Counter(names).items() if count > 1)
        if not names or twice:
            raise CaseError(
                f"the name {twice[0]!r} is used twice." if twice else "there are no cases.",
                where=f"suite {self.name!r}",
                remedy="Give every case a name of its own." if twice else "List at least one.",
            )
        for field, least in _COUNTS:
            _count(getattr(self, field), least, f"suite {self.name!r}: {field}")

    def only(self, keep: Callable[[Case], bool]) -> Suite:
        """Return the suite with the cases for which `keep` is true.

        Examples
        --------
        >>> groups = suite("quick").only(lambda case: case.is_group)
        """
        return replace(self, cases=tuple(case for case in self.cases if keep(case)))

    def select(
        self, *, names: Sequence[str] = (), dtype: str = "", backend: str = "", kind: str = ""
    ) -> Suite:
        """Return the suite with the cases that meet every condition that is given.

        Parameters
        ----------
        names
            Patterns such as ``iris*``; one of them must match.
        dtype
            ``float32`` or ``float64``.
        backend
            Of every rank: ``cpu``, ``cuda``, ``metal`` or ``numpy``.
        kind
            ``standalone`` or ``group``.

        Raises
        ------
        CaseError
            If no case is left.
        """
        chosen = [
            case
            for case in self.cases
            if (not names or any(fnmatch.fnmatchcase(case.name, pattern) for pattern in names))
            and dtype in ("", case.dtype)
            and all(backend in ("", placement.backend) for placement in case.placements)
            and kind in ("", "group" if case.is_group else "standalone")
        ]
        if not chosen:
            raise CaseError(
                "no case is left.",
                where=f"suite {self.name!r}",
                remedy=f"Its cases: {', '.join(case.name for case in self.cases)}.",
            )
        return replace(self, cases=tuple(chosen))

    def on_one_host(self, devices: Sequence[str], cores: int) -> Suite:
        """Return the suite with all ranks on one host: platforms are dropped; of cases that are then equal, one stays.

        Parameters
        ----------
        devices
            The host's, such as ``("cpu", "cuda:0")``; see `aner_nb.machine.devices`.
        cores
            Of the host; CPU ranks that run together share them evenly.
        """
        moved = [
            replace(
                case,
                ranks=[
                    (str(replace(placement, platform="")), weight)
                    for placement, weight in zip(case.placements, case.weights, strict=True)
                ],
            )
            for case in self.cases
        ]
        distinct: dict[bytes, Case] = {}
        for case in moved:
            distinct.setdefault(canonical_json({**case.to_record(), "name": ""}), case)
        kept = tuple(distinct.values())
        together: Counter[str] = Counter()
        for case in kept:
            together |= Counter(map(str, case.placements))
        threads = max(1, cores // max(1, together["cpu"]))
        placements = [
            f"cpu:{threads}" if name == "cpu" else name
            for name, count in together.items()
            for _ in range(count)
            if name in devices or name.startswith(("cpu", "numpy"))
        ]
        return replace(self, cases=kept, placements=tuple(placements))

    def own_schedule(self) -> Schedule:
        """Return what the order of this suite's trials follows from."""
        return Schedule(self.seed, tuple(case.name for case in self.cases))

    def schedule(self) -> tuple[Slot, ...]:
        """Return all trials in the order in which they run: rounds of one trial a case, in seeded order."""
        cases = {case.name: case for case in self.cases}
        return tuple(
            Slot(cases[name], role, repetition, number, position)
            for name, role, repetition, number, position in self.own_schedule().places(
                self.warm_ups, self.repetitions
            )
        )

    def merged(self, earlier: Suite) -> Suite:
        """Return the suite of a results folder that held `earlier` and into which this one runs as well.

        It has the cases of both and remembers every schedule that trials ran by.
        """
        known = {case.name for case in earlier.cases}
        cases = (*earlier.cases, *(case for case in self.cases if case.name not in known))
        whole = replace(
            self,
            cases=cases,
            warm_ups=max(self.warm_ups, earlier.warm_ups),
            repetitions=max(self.repetitions, earlier.repetitions),
        )
        schedules = dict.fromkeys((*earlier.earlier, earlier.own_schedule(), self.own_schedule()))
        schedules.pop(whole.own_schedule(), None)
        return replace(whole, earlier=tuple(schedules))

    def to_record(self) -> dict[str, Any]:
        """Return the suite as plain JSON values."""
        earlier = [{"seed": one.seed, "names": list(one.names)} for one in self.earlier]
        return {
            "name": self.name,
            "description": self.description,
            "placements": list(self.placements),
            "warm_ups": self.warm_ups,
            "repetitions": self.repetitions,
            "seed": self.seed,
            "cases": [case.to_record() for case in self.cases],
            **({"earlier": earlier} if earlier else {}),
        }


def suite_names() -> tuple[str, ...]:
    """Return the names of the suites in the package."""
    folder = importlib.resources.files("aner_nb") / "suites"
    return tuple(sorted(entry.name[:-5] for entry in folder.iterdir() if entry.name.endswith(".yaml")))


def suite(name: str | Path) -> Suite:
    """Return a suite of the package by name, or a person's own by its file's path.

    Raises
    ------
    CaseError
        If there is none, or its file is wrong; a YAML error gives line and column.
    """
    if str(name) in suite_names():
        text = (importlib.resources.files("aner_nb") / "suites" / f"{name}.yaml").read_text()
        return parse_suite(text, str(name))
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        raise CaseError(
            f"there is no suite {str(name)!r}.",
            remedy=f"Name one of {', '.join(suite_names())}, or a .yaml file of your own.",
        )
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise CaseError(f"the file is over {_MAX_FILE_BYTES} bytes.", where=str(path))
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise CaseError(
            f"the file cannot be read ({error.strerror}).", where=str(path), remedy="Check the path."
        ) from error
    except UnicodeDecodeError as error:
        raise CaseError(
            f"the file is not UTF-8 text (byte {error.start}).", where=str(path), remedy="Save it as UTF-8."
        ) from error
    return parse_suite(text, str(path), default_name=path.stem, folder=path.parent)


def parse_suite(text: str, where: str, default_name: str = "", folder: Path = Path()) -> Suite:
    """Read a suite, or a single case, from YAML text.

    Parameters
    ----------
    folder
        Where files are looked for that the text names without a folder: JSON of Keras models.

    Raises
    ------
    CaseError
        If the text is not YAML, or not a suite.
    """
    record = _mapping(read_yaml(text, where), where)
    if "cases" not in record and "data" in record:
        record = {"name": record.get("name", default_name), "cases": [record]}
    unknown = sorted(set(map(str, record)) - set(_FIELDS))
    if unknown or "cases" not in record:
        raise CaseError(
            f"unknown field {unknown[0]!r}." if unknown else "the field 'cases' is missing.",
            where=where,
            remedy=f"A suite has {', '.join(_FIELDS)}; a single case has 'data' and its other fields.",
        )
    defaults = _mapping(record.get("defaults", {}), f"{where}: defaults")
    cases: list[Case] = []
    for index, item in enumerate(_sequence(record["cases"], f"{where}: cases")):
        own = _mapping(item, f"{where}: cases[{index}]")
        name = own.get("name", index)
        here = f"{where}: case {name!r}"
        cases.append(case_from_record(_with_model({**defaults, **own}, folder, here), where=here))
    placements = _sequence(record.get("placements", ["cpu:1", "cpu:1"]), f"{where}: placements")
    return Suite(
        name=str(record.get("name", default_name or where)),
        cases=tuple(cases),
        description=str(record.get("description", "")),
        placements=tuple(map(str, placements)),
        warm_ups=_count(record.get("warm_ups", 1), 0, f"{where}: warm_ups"),
        repetitions=_count(record.get("repetitions", 3), 1, f"{where}: repetitions"),
        seed=_count(record.get("seed", 0), 0, f"{where}: seed"),
    )


def _with_model(record: dict[str, Any], folder: Path, where: str) -> dict[str, Any]:
    """Return a case's record with the Keras model whose file it names in place of the name."""
    model = record.get("model")
    if not isinstance(model, str) or not model.endswith(".json"):
        return record
    path = folder / model
    try:
        if path.stat().st_size > MAX_BYTES:
            raise CaseError(f"{model} is over {MAX_BYTES:,} bytes.", where=f"{where}: model")
        return {**record, "model": path.read_text(encoding="utf-8")}
    except (OSError, UnicodeDecodeError) as error:
        raise CaseError(
            f"{model} cannot be read ({getattr(error, 'strerror', None) or error}).",
            where=f"{where}: model",
            remedy="Write what model.to_json() returns into that file, beside the suite.",
        ) from error


def suite_from_record(record: Any, where: str = "suite") -> Suite:
    """Read back what `Suite.to_record` wrote, without the data of private arrays.

    Raises
    ------
    CaseError
        If it is not such a record.
    """
    try:
        values: dict[str, Any] = dict(record, placements=tuple(record["placements"]))
        values["cases"] = tuple(case_of_record(case, where) for case in record["cases"])
        values["earlier"] = tuple(
            Schedule(int(one["seed"]), tuple(map(str, one["names"]))) for one in record.get("earlier", ())
        )
        return Suite(**values)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CaseError(
            f"not the record of a suite ({type(error).__name__}: {error}).",
            where=where,
            remedy="It was changed or damaged.",
        ) from error


def case_of_record(record: Mapping[str, Any], where: str = "case") -> Case:
    """Read a case back from its record; of private data only the description was kept.

    Raises
    ------
    CaseError
        If it is not the record of a case.
    """
    try:
        data: object = record["data"]
        if isinstance(data, Mapping) and cast("Mapping[str, Any]", data).get("source") in OWN_SOURCES:
            kept = KeptArrays(canonical_json(data).decode())
            return replace(case_from_record({**record, "data": "iris"}, where), data=kept)
        return case_from_record(record, where)
    except (KeyError, TypeError, ValueError) as error:
        raise CaseError(
            f"not the record of a case ({type(error).__name__}: {error}).",
            where=where,
            remedy="It was changed or damaged.",
        ) from error


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise CaseError(
            f"{str(value)[:60]!r} is not a mapping.", where=where, remedy="Write lines of 'field: value'."
        )
    return cast("Mapping[str, Any]", value)


def _sequence(value: object, where: str) -> Sequence[Any]:
    if not isinstance(value, list) or not value:
        raise CaseError(
            f"{str(value)[:60]!r} is not a list.", where=where, remedy="Write lines that begin with '- '."
        )
    return cast("list[Any]", value)


def _count(value: object, least: int, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST_COUNT:
        raise CaseError(
            f"{value!r} is not a whole number from {least} to {LARGEST_COUNT}.",
            where=where,
            remedy="Correct the value.",
        )
    return value
