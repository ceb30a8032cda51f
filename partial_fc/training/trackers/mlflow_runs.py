"""MLflow. The environment variable MLFLOW_TRACKING_URI selects the server or folder, see its documentation."""

import os
import time
from collections.abc import Mapping

from mlflow import MlflowClient
from mlflow.entities import Metric

from .tracker import TrackedRun

TAG = "partial_fc.run_id"


class MlflowRuns:
    """Logs to a run tagged with the identifier of the training; a resumed training continues the run.

    The status of the run only shows whether logging goes on: it is FINISHED even if the training failed.

    Args:
        project: name of the experiment.
        run_name: display name of the run; None for the name of the output folder.
        artifacts: whether to upload the exported model and the report at the end.
    """

    _client: MlflowClient
    _folder: str
    _run_id: str

    def __init__(self, project: str = "partial-fc", run_name: str | None = None, artifacts: bool = False):
        self._project, self._run_name, self._artifacts = project, run_name, artifacts

    def begin(self, run: TrackedRun) -> None:
        """Starts or continues the run, with the settings as parameters."""
        self._folder, client = run.folder, MlflowClient()
        self._client = client
        experiment = client.get_experiment_by_name(self._project)
        experiment_id = experiment.experiment_id if experiment else client.create_experiment(self._project)
        matches = client.search_runs([experiment_id], f"tags.`{TAG}` = '{run.run_id}'", max_results=1)
        if matches:
            self._run_id = matches[0].info.run_id
            client.update_run(self._run_id, status="RUNNING")
            for change, values in run.changes.items():  # a parameter cannot change
                client.set_tag(self._run_id, change, values)
            return
        name = self._run_name or os.path.basename(run.folder)
        self._run_id = client.create_run(experiment_id, tags={TAG: run.run_id}, run_name=name).info.run_id
        for setting, value in run.settings.items():
            client.log_param(self._run_id, setting, value)

    def log(self, values: Mapping[str, float], num_update: int) -> None:
        """Logs the values at step ``num_update``."""
        now = int(1000 * time.time())
        self._client.log_batch(self._run_id, [Metric(name, value, now, num_update) for name, value in values.items()])

    def close(self) -> None:
        """Uploads the artifacts, and ends the run with the status FINISHED."""
        for name in ("backbone.onnx", "report.html") if self._artifacts else ():
            if os.path.exists(os.path.join(self._folder, name)):
                self._client.log_artifact(self._run_id, os.path.join(self._folder, name))
        self._client.set_terminated(self._run_id)
