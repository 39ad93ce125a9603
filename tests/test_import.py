"""The client stays light: importing the package is quick and loads nothing heavy."""

from __future__ import annotations

import pkgutil
import statistics
import subprocess
import sys

import aner_nb as aner

HEAVY = ("tensorflow", "distributed", "altair", "pandas", "ipywidgets", "numpy")


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_importing_the_package_loads_nothing_heavy() -> None:
    loaded = run_python(f"import sys, aner_nb; print([n for n in {HEAVY!r} if n in sys.modules])")
    assert loaded == "[]"


def test_importing_the_package_takes_less_than_half_a_second() -> None:
    code = "import time; t = time.perf_counter(); import aner_nb; print(time.perf_counter() - t)"
    assert statistics.median(float(run_python(code)) for _ in range(3)) < 0.5


def test_running_a_trial_here_does_not_load_tensorflow() -> None:
    code = """
import sys
import aner_nb as aner
case = aner.Case("iris", data=aner.iris(), layers=[3], batch=30, epochs=1, ranks=["numpy"], channel="inline")
print(aner.run(case).receipt.status, "tensorflow" in sys.modules, "distributed" in sys.modules)
"""
    assert run_python(code) == "passed False False"


def test_every_public_name_can_be_loaded() -> None:
    code = "import aner_nb; print(all(getattr(aner_nb, name) is not None for name in aner_nb.__all__))"
    assert run_python(code) == "True"


def test_no_module_hides_a_public_name() -> None:
    modules = {module.name for module in pkgutil.iter_modules(aner.__path__)}
    assert modules.isdisjoint(aner.__all__)
