"""The widgets: thin faces over the same functions as the command line's."""

from aner_nb.widgets.benchmark_app import App, app
from aner_nb.widgets.case_picker import CasePicker
from aner_nb.widgets.cluster_panel import ClusterPanel
from aner_nb.widgets.run_monitor import RunMonitor
from aner_nb.widgets.study_view import StudyView

__all__ = ["App", "CasePicker", "ClusterPanel", "RunMonitor", "StudyView", "app"]
