"""Weights & Biases. Its variables WANDB_API_KEY, WANDB_MODE=offline, ... act as its documentation says."""

import os
from collections.abc import Mapping
from typing import Any

import wandb

from .tracker import TrackedRun

ARTIFACTS = ("backbone.onnx", "report.html")


class WeightsAndBiases:
    """Logs to a run whose identifier is that of the training; a resumed training continues it.

    Args:
        project: name of the project.
        entity: user or team; None for the default one.
        run_name: of the run; None for the name of the output folder.
        artifacts: whether to upload the exported model and the report at the end.
    """

    def __init__(
        self,
        project: str = "partial-fc",
        entity: str | None = None,
        run_name: str | None = None,
        artifacts: bool = False,
    ):
        self._project, self._entity, self._run_name, self._artifacts = project, entity, run_name, artifacts
        self._folder = ""
        self._run: Any = None

    def begin(self, run: TrackedRun) -> None:
        """Starts or continues the run; its files are in the folder of the training."""
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
        """Logs the values at the step ``num_update``."""
        self._run.log(dict(values), step=num_update)

    def close(self) -> None:
        """Uploads what was asked for, and ends the run."""
        files = [os.path.join(self._folder, name) for name in ARTIFACTS]
        for path in filter(os.path.exists, files if self._artifacts else ()):
            self._run.log_artifact(path, name=os.path.basename(path), type="model")
        self._run.finish()
