"""Trackio: a local dashboard, ``trackio show``. Its variables TRACKIO_DIR, ... act as its documentation says."""

import os
from collections.abc import Mapping
from typing import Any

import trackio

from .tracker import TrackedRun


class TrackioRuns:
    """Logs to a run named after the output folder and the identifier of the training; a resumed one continues it.

    Args:
        project: name of the project.
        run_name: of the run; None for the name of the output folder.
    """

    def __init__(self, project: str = "partial-fc", run_name: str | None = None):
        self._project, self._run_name = project, run_name
        self._run: Any = None

    def begin(self, run: TrackedRun) -> None:
        """Starts or continues the run."""
        name = f"{self._run_name or os.path.basename(run.folder)}-{run.run_id}"
        self._run = trackio.init(
            project=self._project, name=name, config={**run.settings, **run.changes}, resume="allow"
        )

    def log(self, values: Mapping[str, float], num_update: int) -> None:
        """Logs the values at the step ``num_update``."""
        self._run.log(dict(values), step=num_update)

    def close(self) -> None:
        """Ends the run."""
        self._run.finish()
