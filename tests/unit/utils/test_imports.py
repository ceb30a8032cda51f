"""Objects that a setting names."""

from numbers import Number

import pytest

from partial_fc.training.schedules import Schedule
from partial_fc.training.trackers import Tracker
from partial_fc.utils.imports import check_object_name, declared_keys, import_object

OBJECTS = """
import subprocess
from functools import partial
class Outer:
    inner = 5
class Writer:
    def begin(self, run, more=None): ...
    @staticmethod
    def log(values, num_update): ...
    @classmethod
    def close(cls, **options): ...
class NeedsMore(Writer):
    def log(self, values): ...
    def __call__(self): ...
class Attribute(Writer):
    begin = None
halved = partial(lambda number, by: number / by, by=2)
shell = partial(subprocess.run, shell=True)
"""
# Objects of the standard library, imports and functions of our own modules, and objects of other kinds.
STRANGE = ["subprocess:Popen", "subprocess:run", "os:system", "builtins:exec", "runpy:run_path", "own_objects:shell"]
STRANGE += ["partial_fc.utils.staging:os.system", "partial_fc.utils.atomic_io:replace_file", "own_objects:subprocess"]
STRANGE += ["own_objects:NeedsMore", "own_objects:Attribute", "own_objects:Outer"]


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "own_objects.py").write_text(OBJECTS)
    (tmp_path / "own_mistake.py").write_text("1 / 0\n")
    (tmp_path / "own_exit.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)


def test_objects_are_imported_by_name(module):
    assert import_object("own_objects:Outer", "margin", object).inner == 5
    assert import_object("own_objects:Outer.inner", "margin", int) == 5
    assert import_object("own_objects:halved", "margin", Tracker)(4) == 2
    assert import_object("own_objects:Writer", "trackers", Tracker)


@pytest.mark.parametrize("text", STRANGE)
@pytest.mark.parametrize("kinds, by_function", [([Tracker], True), ([Schedule], True), ([Number], False)])
def test_other_objects_are_refused_before_they_are_called(module, text, kinds, by_function):
    with pytest.raises(ValueError, match=f"^trackers is '{text}', which is .*: name a (sub)?class ") as error:
        import_object(text, "trackers", *kinds, by_function=by_function)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "arcfase", "a.b", "a:", ":b", "a..b:c", "a-b:c", "a:b c", "/tmp/a.py:b"])
def test_malformed_names_are_refused(text):
    for function in (check_object_name, import_object):
        with pytest.raises(ValueError, match=r"margin is '.*', but must be a known name or package\.module:name"):
            function(text, "margin")


@pytest.mark.parametrize(
    "text, message",
    [
        ("own_missing:a", "own_missing cannot be imported: ModuleNotFoundError: .*; install it, or"),
        ("own_mistake:a", "own_mistake cannot be imported: ZeroDivisionError: division by zero"),
        ("own_exit:a", "own_exit cannot be imported: SystemExit: 0; install"),
        ("own_objects:Other", "own_objects has no Other"),
        ("own_objects:Outer.other", "own_objects has no Outer.other"),
    ],
)
def test_errors_name_the_setting_in_one_line(module, text, message):
    with pytest.raises(ValueError, match=f"^center_optimizer is '{text}', but {message}") as error:
        import_object(text, "center_optimizer")
    assert "\n" not in str(error.value)


def test_keys_of_tables_are_read_without_importing(tmp_path):
    (tmp_path / "b.py").write_text("import not_there\n\nTABLE = {'x': not_there.Net, 'y': None}\nOTHER = {'z': 1}\n")
    (tmp_path / "a.py").write_text("def build():\n    TABLE = {'inner': 1}\n\n\nTABLE = {'first': build}\n")
    assert declared_keys(str(tmp_path), "TABLE") == ("first", "x", "y")
