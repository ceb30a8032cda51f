"""An error in a user's class while a training is built names class, method, file and line."""

import inspect
import re

import numpy as np
import pytest

import default
from own_items import CLASSES, Signals
from partial_fc.data.item_batches import ArrayItems
from partial_fc.distributed.errors import JobError
from partial_fc.training.tasks import ItemPairs, Task
from partial_fc.training.trainer import train
from partial_fc.utils.config import Setting
from partial_fc_torch.build import TorchFramework
from partial_fc_torch.layer.margins import Margin

raised: type[BaseException] = ValueError


def fail(*args, **options):
    raise raised("the user's text")


class Failing(Task):
    options = (Setting("where", "", "name of what fails"),)

    def items(self):
        return ArrayItems(np.ones((20, 8), np.float32), fail() if self.where == "items" else np.arange(20) % CLASSES)

    def network_sizes(self):
        return fail() if self.where == "network_sizes" else {}

    def evaluations(self):
        return {"set": Unprepared([True, False], None)} if self.where == "evaluation" else {}


class Unreadable(Signals):
    def __getitem__(self, position):
        fail()


class Unlabelled(Unreadable):
    targets = None


class Unprepared(ItemPairs):
    def load(self, name, collectives):
        fail()


class Maker:
    def __init__(self, *args, **options):
        fail()

    def begin(self, run): ...

    def log(self, values, num_update): ...

    def close(self): ...

    def __call__(self, moment): ...

    def __len__(self): ...

    def __getitem__(self, position): ...


class Untried(Margin):
    def __init__(self, s):
        super().__init__(s)
        fail()


OF_TASK = {"items": "Failing.items", "network_sizes": "Failing.network_sizes", "evaluation": "Unprepared.load"}
OF_SETTINGS = {"schedule": "Maker", "trackers": "Maker", "margin": "Untried", "rec": "Maker"}
CASES = [({"task_options": f"where={name}"}, place) for name, place in OF_TASK.items()]
CASES += [({name: f"{__name__}:{class_name}"}, f"{class_name}.__init__") for name, class_name in OF_SETTINGS.items()]
CASES += [({"rec": f"{__name__}:{name}"}, f"{name}.__getitem__") for name in ("Unreadable", "Unlabelled")]


def settings_of(folder, **changes):
    settings = {"task": "items" if "rec" in changes else f"{__name__}:Failing", "network": "own_items:network"}
    settings |= {"num_classes": CLASSES, "embedding_size": 8, "batch_size": 4, "max_update": 2, "lr_steps": []}
    return default.generate_config(changes={**settings, "output": str(folder), **changes}, trainer="torch")


@pytest.mark.parametrize("kind", [ValueError, KeyError, SystemExit])
@pytest.mark.parametrize("changes, method", CASES, ids=repr)
def test_the_error_of_a_training_that_is_not_built_names_them(changes, method, kind, tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.raised", kind)
    with pytest.raises(JobError, match="the user's text") as error:
        train(settings_of(tmp_path, **changes), TorchFramework())
    place = f"{method}, .*{re.escape(__file__.rpartition('/')[2])}:{inspect.getsourcelines(fail)[1] + 1}"
    assert re.search(place, str(error.value)) and str(error.value).count("test_errors_of_users.py:") == 1


def test_classes_without_items_are_a_warning(tmp_path, caplog):
    train(settings_of(tmp_path / "more", rec="own_items:Signals", num_classes=CLASSES + 3), TorchFramework())
    train(settings_of(tmp_path / "same", rec="own_items:Signals"), TorchFramework())
    warnings = [record.getMessage() for record in caplog.records if "without items" in record.getMessage()]
    assert len(warnings) == 1 and f"3 classes without items; set num_classes={CLASSES}" in warnings[0]
