"""Weights & Biases. It reads WANDB_API_KEY, WANDB_MODE=offline and its other environment variables."""

import os
from collections.abc import Mapping
from typing import Any

import wandb

from .tracker import TrackedRun


class WeightsAndBiases:
    """Logs to a run with the identifier of the training; a resumed training continues it.

    Args:
        project: name of the project.
        entity: user or team; None for the default one.
        run_name: display name of the run; None for the name of the output folder.
        artifacts: whether to upload the exported model and the report at the end.
    """

    _folder: str
    _run: Any

    def __init__(
        self,
        project: str = "partial-fc",
        entity: str | None = None,
        run_name: str | None = None,
        artifacts: bool = False,
    ):
        self._project, self._entity, self._run_name, self._artifacts = project, entity, run_name, artifacts

    def begin(self, run: TrackedRun) -> None:
        """Starts or continues the run; its files are in the output folder."""
        self._folder = run.folder
        self._run = wandb.init(
            project=self._project,
            entity=self._entity,
            name=self._run_name or os.path.basename(run.folder),
            id=run.run_id,
            resume="allow",
            dir=run.folder,
            config={**run.settings, **run.changes},
        )

    def log(self, values: Mapping[str, float], num_update: int) -> None:
        """Logs the values at step ``num_update``."""
        self._run.log(dict(values), step=num_update)

    def close(self) -> None:
        """Uploads the artifacts, and ends the run."""
        for name in ("backbone.onnx", "report.html") if self._artifacts else ():
            path = os.path.join(self._folder, name)
            if os.path.exists(path):
                self._run.log_artifact(path, name=name, type="model")
        self._run.finish()
