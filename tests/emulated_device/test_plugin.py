"""Tests of the emulated accelerator that other tests train on."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from .build import BuildError, build
from .runtime import PLUGGABLE_DEVICE

_CONFIGURATIONS: Final[dict[str, tuple[dict[str, str], tuple[str, ...]]]] = {
    "plain": (
        {},
        (
            "two_devices_are_listed",
            "gradients_equal_those_of_the_cpu",
            "backing_device_tells_where_a_result_lies",
            "each_device_runs_its_own_kernels",
            "all_operations_are_placed_on_the_device",
            "other_kernels_equal_numpy",
            "a_label_out_of_range_gives_nan",
            "a_variable_lives_on_the_device",
            "memory_info_rises_and_falls",
            "copies_go_through_the_device",
            "many_steps_hold_no_memory",
        ),
    ),
    "kernels omitted": (
        {"ANER_EMULATED_OMIT": "ReluGrad,BiasAddGrad"},
        ("an_omitted_kernel_is_refused", "other_kernels_still_run", "tensors_alone_do_not_show_a_fall_back"),
    ),
    "a wrong kernel": (
        {"ANER_EMULATED_WRONG": "Tanh"},
        ("a_wrong_kernel_is_wrong_and_others_are_right",),
    ),
    "three small devices": (
        {"ANER_EMULATED_DEVICES": "3", "ANER_EMULATED_MEMORY": str(64 << 20)},
        ("three_devices_are_listed", "memory_has_a_limit"),
    ),
}

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("gcc") is None, reason="needs Linux and gcc to build the plug-in"
)


@functools.cache
def _run_checks(library: Path, configuration: str) -> dict[str, str]:
    """Run all checks of a configuration in one process; return the traces of those that failed."""
    settings, checks = _CONFIGURATIONS[configuration]
    finished = _run(library, settings, checks)
    assert finished.returncode == 0, finished.stderr
    failures: dict[str, str] = json.loads(finished.stdout.splitlines()[-1])
    return failures


def _run(
    library: Path, settings: dict[str, str], checks: tuple[str, ...]
) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ANER_")}
    environment = inherited | {PLUGGABLE_DEVICE: str(library), "TF_CPP_MIN_LOG_LEVEL": "2"} | settings
    command = [sys.executable, str(Path(__file__).with_name("checks.py")), *checks]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize(
    ("configuration", "check"),
    [
        # Each configuration is a process of its own; trials omit and spoil kernels too, in test_trials.
        pytest.param(name, check, marks=() if name == "plain" else pytest.mark.long)
        for name, (_, checks) in _CONFIGURATIONS.items()
        for check in checks
    ],
)
def test_check(library: Path, configuration: str, check: str) -> None:
    failures = _run_checks(library, configuration)
    assert check not in failures, failures[check]


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ANER_EMULATED_OMIT": "ReluGard"}, "this device has no kernel named ReluGard"),
        ({"ANER_EMULATED_WRONG": "Relu,Tan"}, "ANER_EMULATED_WRONG: this device has no kernel named Tan"),
        ({"ANER_EMULATED_DEVICES": "two"}, "ANER_EMULATED_DEVICES=two: write a whole number from 0 to 16"),
    ],
)
def test_a_wrong_setting_stops_the_process(library: Path, settings: dict[str, str], message: str) -> None:
    finished = _run(library, settings, ())
    assert finished.returncode != 0
    assert message in finished.stderr


def test_build_reuses_the_compiled_plugin(library: Path) -> None:
    compiled_at = library.stat().st_mtime_ns
    assert build(library.parent) == library
    assert library.stat().st_mtime_ns == compiled_at


def test_build_without_a_compiler_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(BuildError, match="install gcc"):
        build(tmp_path)
