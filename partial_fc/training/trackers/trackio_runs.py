"""Trackio: a local dashboard, ``trackio show``. It reads TRACKIO_DIR and its other environment variables."""

import os
from collections.abc import Mapping
from typing import Any

import trackio

from .tracker import TrackedRun


class TrackioRuns:
    """Logs to a run named after the output folder and the training's identifier; a resumed training continues it.

    Args:
        project: name of the project.
        run_name: replaces the name of the output folder in the run's name.
    """

    _run: Any

    def __init__(self, project: str = "partial-fc", run_name: str | None = None):
        self._project, self._run_name = project, run_name

    def begin(self, run: TrackedRun) -> None:
        """Starts or continues the run."""
        name = f"{self._run_name or os.path.basename(run.folder)}-{run.run_id}"
        config = {**run.settings, **run.changes}
        self._run = trackio.init(project=self._project, name=name, config=config, resume="allow")

    def log(self, values: Mapping[str, float], num_update: int) -> None:
        """Logs the values at step ``num_update``."""
        self._run.log(dict(values), step=num_update)

    def close(self) -> None:
        """Ends the run."""
        self._run.finish()
