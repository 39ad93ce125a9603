"""What is said of CUDA and Metal without either: the driver's answers, numbers of devices, who may offer what.

The driver is a fake at the seam where `pynvml` is imported, the Mac a record of facts: nothing here ran on hardware.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from aner_nb import cuda, hardware, machine
from aner_nb.case import Case, Placement, case_from_record
from aner_nb.data import Iris
from aner_nb.errors import BackendUnavailable, CaseError
from aner_nb.inventory import configuration_id
from aner_nb.matching import match_offers
from aner_nb.ranks import Offer
from aner_nb.suites import suite

ROOT = Path(__file__).parent.parent
CARDS = (("Alpha", 16, (8, 0)), ("Beta", 24, (8, 9)), ("Gamma", 80, (9, 0)))


class FakeDriver(ModuleType):
    """Three cards, and the processes that the driver would list on each."""

    class NVMLError(Exception):
        """As the library's."""

    NVMLError.__module__ = "pynvml"

    def __init__(self, processes: dict[int, list[Any]] | None = None, *, works: bool = True) -> None:
        super().__init__("pynvml")
        self.processes = processes or {}
        self.works = works
        self.open = 0

    def nvmlInit(self) -> None:
        if not self.works:
            raise self.NVMLError("driver not loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(CARDS)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{'abc'[handle]}{handle}"

    def nvmlDeviceGetName(self, handle: int) -> str:
        return CARDS[handle][0]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=CARDS[handle][1] * 2**30)

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return CARDS[handle][2]

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.1"

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        if handle not in self.processes:
            raise self.NVMLError("Not Supported")
        return self.processes[handle]


@pytest.fixture
def plug(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeDriver], FakeDriver]:
    monkeypatch.delenv(cuda.VISIBLE_VARIABLE, raising=False)
    monkeypatch.setattr(cuda, "in_container", lambda: False)

    def plug_in(driver: FakeDriver) -> FakeDriver:
        monkeypatch.setitem(sys.modules, "pynvml", driver)
        return driver

    return plug_in


def process(pid: int, used: int | None) -> Any:
    return SimpleNamespace(pid=pid, usedGpuMemory=used)


@pytest.mark.parametrize(
    ("setting", "chosen"),
    [
        (None, (0, 1, 2)),
        ("", ()),
        ("2,0", (2, 0)),
        ("1, 2", (1, 2)),
        ("GPU-bb,0", (1, 0)),
        ("GPU-b", ()),  # begins two of them
        ("0,-1,1", (0,)),
        ("0,7,1", (0,)),
        ("1,1", ()),
        ("NoDevFiles", ()),
    ],
)
def test_the_variable_chooses_devices_as_cuda_does(setting: str | None, chosen: tuple[int, ...]) -> None:
    assert cuda.visible_devices(["GPU-aa", "GPU-bb", "GPU-bc"], setting) == chosen


def test_devices_are_those_that_are_visible_in_the_variables_order(
    plug: Callable[[FakeDriver], FakeDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = plug(FakeDriver())
    assert [card["model"] for card in cuda.devices()] == ["Alpha", "Beta", "Gamma"]
    monkeypatch.setenv(cuda.VISIBLE_VARIABLE, "2,GPU-a")
    assert cuda.devices() == [
        {"model": "Gamma", "memory_gib": 80, "driver": "570.1", "compute_capability": "9.0"},
        {"model": "Alpha", "memory_gib": 16, "driver": "570.1", "compute_capability": "8.0"},
    ]
    assert driver.open == 0
    assert machine.devices(machine.capacity()) == ("cpu", "cuda:0", "cuda:1")


def test_every_fact_of_a_card_changes_the_configuration(plug: Callable[[FakeDriver], FakeDriver]) -> None:
    plug(FakeDriver())
    facts = machine.capacity()
    known = {configuration_id(facts)}
    for name, value in (("model", "X"), ("memory_gib", 1), ("driver", "571"), ("compute_capability", "1.0")):
        first, *others = facts["gpus"]
        known.add(configuration_id({**facts, "gpus": [{**first, name: value}, *others]}))
    assert len(known) == 5


def test_the_memory_of_this_process_is_found_by_its_number(
    plug: Callable[[FakeDriver], FakeDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = os.getpid()
    driver = plug(FakeDriver({0: [process(own + 1, 7)], 1: [process(own + 1, 7), process(own, 4096)]}))
    assert cuda.process_vram_bytes(1) == (4096, "")
    monkeypatch.setenv(cuda.VISIBLE_VARIABLE, "1")
    assert cuda.process_vram_bytes(0) == (4096, "")
    assert driver.open == 0


def test_where_there_is_no_figure_there_is_a_reason(
    plug: Callable[[FakeDriver], FakeDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = os.getpid()
    plug(FakeDriver({0: [process(own + 1, 7)], 1: [process(own, None)]}))
    assert cuda.process_vram_bytes(0) == (None, "the driver lists no process with this PID")
    assert cuda.process_vram_bytes(1) == (None, "the driver hides memory by process")
    assert cuda.process_vram_bytes(2) == (None, "the driver answered: Not Supported")
    assert cuda.process_vram_bytes(3) == (None, "the driver shows 3 devices to this process")
    plug(FakeDriver(works=False))
    assert cuda.devices() == []
    assert cuda.process_vram_bytes(0) == (None, "nvidia-ml-py is not installed, or there is no driver")
    plug(FakeDriver({0: [process(own, 7)]}))
    monkeypatch.setattr(cuda, "in_container", lambda: True)
    found, reason = cuda.process_vram_bytes(0)
    assert found is None
    assert "in a container, and the driver numbers processes as the machine does" in reason


def test_an_emulated_accelerator_is_another_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = configuration_id(machine.capacity())
    monkeypatch.setenv("ANER_NB_PLUGGABLE_DEVICE", "library.so")
    facts = machine.capacity()
    assert machine.EMULATED in facts["packages"]
    assert configuration_id(facts) != plain


# Metal: not verified on hardware.


def mac(monkeypatch: pytest.MonkeyPatch, *, plug_in: bool = True) -> dict[str, Any]:
    """Return the facts of a Mac with Apple silicon, as this code would find them there."""
    versions = {"tensorflow": "2.18.1", **({"tensorflow-metal": "1.2.0"} if plug_in else {})}
    found = importlib.metadata.version

    def version(name: str) -> str:
        if name in versions:
            return versions[name]
        if name.startswith("tensorflow"):
            raise importlib.metadata.PackageNotFoundError(name)
        return found(name)

    monkeypatch.setattr("platform.system", lambda: "Darwin")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    monkeypatch.setattr("importlib.metadata.version", version)
    monkeypatch.setattr(cuda, "devices", list)
    return machine.capacity()


def test_a_mac_with_the_plug_in_offers_metal_once(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = mac(monkeypatch)
    assert machine.devices(facts) == ("cpu", "metal")
    here = suite("portable").on_one_host(machine.devices(facts), 8)
    assert [name for name in here.placements if not name.startswith("cpu")] == ["metal"]
    assert machine.devices(mac(monkeypatch, plug_in=False)) == ("cpu",)
    assert machine.devices({**facts, "machine": "x86_64"}) == ("cpu",)


def offer(text: str, worker: str, tensorflow: str = "2.18.1") -> Offer:
    return Offer(Placement.parse(text), worker, "0" * 64, tensorflow)


@pytest.mark.parametrize("device", ["metal", "cuda:0"])
def test_an_accelerator_takes_one_rank_however_many_workers_offer_it(device: str) -> None:
    offers = [
        offer(f"Atlas-01/{device}", "a"),
        offer(f"Atlas-01/{device}", "b"),
        offer("Atlas-01/cpu:1", "c"),
    ]
    named, any_machine = Placement.parse(f"Atlas-01/{device}"), Placement.parse(device)
    with pytest.raises(BackendUnavailable, match=device):
        match_offers([named, any_machine], offers)
    more = [*offers, offer(f"Atlas-02/{device}", "d")]
    assert [found.worker for found in match_offers([named, any_machine], more)] == ["a", "d"]


def test_two_cards_of_a_machine_take_a_rank_each() -> None:
    offers = [offer(f"Atlas-01/cuda:{index}", worker) for worker in "ab" for index in (0, 1)]
    matched = match_offers([Placement.parse("cuda:0"), Placement.parse("cuda:1")], offers)
    assert {str(found.placement) for found in matched} == {"Atlas-01/cuda:0", "Atlas-01/cuda:1"}
    assert len({found.worker for found in matched}) == 2


# TensorFloat-32


def case(**changes: Any) -> Case:
    return Case(
        "x", data=Iris(), layers=[3], batch=30, epochs=1, **{"ranks": ["cuda:0", "cuda:1"], **changes}
    )


def test_tf32_is_part_of_the_work_and_absent_while_off() -> None:
    plain, rounded = case(), case(tf32=True)
    assert "tf32" not in plain.to_record()
    assert rounded.to_record() == {**plain.to_record(), "tf32": True}
    assert rounded.work_id != plain.work_id
    assert case_from_record(rounded.to_record()) == rounded


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"dtype": "float64"},
            r"tf32: float64 has no TensorFloat-32\. Leave it out, or write dtype: float32",
        ),
        ({"ranks": ["cuda:0", "Atlas-02/cpu:2"]}, r"tf32: Atlas-02/cpu:2 has no TensorFloat-32"),
        ({"ranks": ["metal"]}, r"tf32: metal has no TensorFloat-32"),
        ({"tf32": "yes"}, r"tf32: 'yes' is neither true nor false"),
    ],
)
def test_tf32_elsewhere_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CaseError, match=message):
        case(**{"tf32": True, **changes})


# What is supported


def test_the_page_has_the_table_of_the_code() -> None:
    assert hardware.table() in (ROOT / "docs" / "hardware.md").read_text("utf-8")


def test_the_extras_are_those_that_the_commands_name() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    oldest, newest = hardware.TENSORFLOW_VERSIONS
    span = f">={oldest[0]}.{oldest[1]},<{newest[0]}.{newest[1] + 1}"
    own = [line for line in project["dependencies"] if line.startswith("tensorflow")]
    assert own and all(span in line for line in own)
    for one in (hardware.CUDA, hardware.METAL):
        assert one.install == f"pip install 'aner-nb[{one.backend}]'"
    extras = project["optional-dependencies"]
    assert f"tensorflow[and-cuda]{span}" in extras["cuda"][0]
    assert f"tensorflow=={hardware.METAL.tensorflow[0]}.*" in extras["metal"][0]
