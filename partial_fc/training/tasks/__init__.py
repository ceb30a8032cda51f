"""The tasks: what is trained on and measured; ``task`` selects one. See docs/tasks.md to add one."""

from typing import Any

from partial_fc.utils.config import parse_options
from partial_fc.utils.imports import import_object
from partial_fc.utils.user_code import make

from .evaluation import Evaluation
from .labeled import LabeledItems
from .pairs import ItemPairs, PairVerification
from .task import Task

__all__ = ["TASKS", "Evaluation", "ItemPairs", "LabeledItems", "PairVerification", "Task", "build_task", "find_task"]

TASKS = {"faces": f"{__name__}.faces:Faces", "items": f"{__name__}.items:DatasetTask"}


def find_task(name: str) -> type[Task]:
    """Returns the class of a task: a key of TASKS, or the user's own as ``package.module:name``.

    Raises:
        ValueError: The class cannot be imported, or is not a subclass of Task.
    """
    task: type[Task] = import_object(TASKS.get(name, name), "task", Task, by_function=False)
    return task


def build_task(settings: Any) -> Task:
    """Builds the task that the settings name, without reading data.

    Raises:
        ValueError: ``task`` is unknown, or does not take ``task_options``.
    """
    task_class = find_task(settings.task)
    options = parse_options("task_options", settings.task_options, task_class)
    task: Task = make("task", settings.task, task_class, settings, **options)
    return task
