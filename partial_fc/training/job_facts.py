"""What must be the same on every rank of a job, and the versions on which its numbers depend."""

from __future__ import annotations

import os
import platform
from typing import Any

import numpy as np

import partial_fc
from partial_fc.distributed.consistency import code_digest

from .engine import Framework, TrainingData


def job_facts(settings, data: TrainingData, framework: Framework) -> dict[str, Any]:
    """Returns what must be the same on every rank of a job, by name."""
    return {
        **{f"setting {name}": value for name, value in settings.items()},
        "code": code_digest([os.path.dirname(partial_fc.__file__), *framework.source_folders]),
        "data set": data.digest,
        **{f"version of {name}": version for name, version in versions(framework).items()},
    }


def versions(framework: Framework) -> dict[str, str]:
    """Returns the versions of the software on which the numbers of a training depend."""
    return {"python": platform.python_version(), **framework.versions(), "numpy": np.__version__}
