"""Which machines, alone or together, train a Dense model fastest, and whether to believe the numbers.

Use it as ``import aner_nb as aner``. Public names are loaded when they are first used, so that the import is
quick and never brings in TensorFlow, Dask or the charts by itself.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

__version__ = "0.1.0"

if TYPE_CHECKING:
    from aner_nb.advisor import Advice as Advice
    from aner_nb.advisor import advise as advise
    from aner_nb.case import Case as Case
    from aner_nb.case import Placement as Placement
    from aner_nb.cluster import Cluster as Cluster
    from aner_nb.data import arrays as arrays
    from aner_nb.data import digits as digits
    from aner_nb.data import iris as iris
    from aner_nb.data import stored as stored
    from aner_nb.data import table as table
    from aner_nb.data import teacher as teacher
    from aner_nb.durability import Durability as Durability
    from aner_nb.errors import AnerError as AnerError
    from aner_nb.execution import run as run
    from aner_nb.fitting import DenseNetwork as DenseNetwork
    from aner_nb.fitting import Developed as Developed
    from aner_nb.fitting import Fitted as Fitted
    from aner_nb.fitting import develop as develop
    from aner_nb.fitting import fit as fit
    from aner_nb.keras_models import keras_model as keras_model
    from aner_nb.launch import connect as connect
    from aner_nb.launch import local_cluster as local_cluster
    from aner_nb.layers import Dense as Dense
    from aner_nb.layers import Dropout as Dropout
    from aner_nb.layers import LayerNorm as LayerNorm
    from aner_nb.loggers import log_to_mlflow as log_to_mlflow
    from aner_nb.loggers import log_to_tensorboard as log_to_tensorboard
    from aner_nb.optimizers import SGD as SGD
    from aner_nb.optimizers import Adam as Adam
    from aner_nb.optimizers import AdamW as AdamW
    from aner_nb.optimizers import RMSprop as RMSprop
    from aner_nb.plan import make_plan as make_plan
    from aner_nb.predictions import Predictions as Predictions
    from aner_nb.predictions import predict_suite as predict_suite
    from aner_nb.results import compare as compare
    from aner_nb.schedules import CosineDecay as CosineDecay
    from aner_nb.schedules import ExponentialDecay as ExponentialDecay
    from aner_nb.schedules import PiecewiseConstant as PiecewiseConstant
    from aner_nb.stopping import EarlyStopping as EarlyStopping
    from aner_nb.study import Study as Study
    from aner_nb.study import open_study as open_study
    from aner_nb.study import run_suite as run_suite
    from aner_nb.suites import Suite as Suite
    from aner_nb.suites import suite as suite
    from aner_nb.suites import suite_names as suite_names
    from aner_nb.trial import Trial as Trial
    from aner_nb.widgets import CasePicker as CasePicker
    from aner_nb.widgets import ClusterPanel as ClusterPanel
    from aner_nb.widgets import RunMonitor as RunMonitor
    from aner_nb.widgets import StudyView as StudyView
    from aner_nb.widgets import app as app

_HOME: Final = {
    "Case": "case",
    "Dense": "layers",
    "Dropout": "layers",
    "LayerNorm": "layers",
    "Placement": "case",
    "Cluster": "cluster",
    "connect": "launch",
    "local_cluster": "launch",
    "arrays": "data",
    "digits": "data",
    "iris": "data",
    "stored": "data",
    "table": "data",
    "teacher": "data",
    "AnerError": "errors",
    "SGD": "optimizers",
    "Adam": "optimizers",
    "AdamW": "optimizers",
    "RMSprop": "optimizers",
    "CosineDecay": "schedules",
    "ExponentialDecay": "schedules",
    "PiecewiseConstant": "schedules",
    "make_plan": "plan",
    "DenseNetwork": "fitting",
    "Developed": "fitting",
    "Fitted": "fitting",
    "develop": "fitting",
    "fit": "fitting",
    "EarlyStopping": "stopping",
    "compare": "results",
    "keras_model": "keras_models",
    "log_to_mlflow": "loggers",
    "log_to_tensorboard": "loggers",
    "Study": "study",
    "open_study": "study",
    "run_suite": "study",
    "Predictions": "predictions",
    "predict_suite": "predictions",
    "Suite": "suites",
    "suite": "suites",
    "suite_names": "suites",
    "Advice": "advisor",
    "advise": "advisor",
    "Durability": "durability",
    "Trial": "trial",
    "run": "execution",
    "CasePicker": "widgets",
    "ClusterPanel": "widgets",
    "RunMonitor": "widgets",
    "StudyView": "widgets",
    "app": "widgets",
}

__all__ = ["__version__", *sorted(_HOME)]  # noqa: PLE0604  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'aner_nb' has no attribute {name!r}")
    return getattr(importlib.import_module(f"aner_nb.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__


def load_ipython_extension(shell: Any) -> None:
    """Bring ``%aner`` and ``%%aner`` to IPython; called by ``%load_ext aner_nb``."""
    from aner_nb.magics import register

    register(shell)
