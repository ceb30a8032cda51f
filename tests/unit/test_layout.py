"""The layout: the folder mxnet/ must never shadow the package, and imports go one way."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def imported(path):
    """Top-level names that a file imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module.split(".")[0])
    return names


def test_the_folder_mxnet_is_not_a_package():
    assert not (ROOT / "mxnet" / "__init__.py").exists()
    assert not list((ROOT / "tests").rglob("__init__.py"))
    assert [p.name for p in (ROOT / "mxnet").iterdir() if p.name != "__pycache__"] == ["partial_fc_mxnet"]


@pytest.mark.parametrize(
    "folder, forbidden",
    [
        ("partial_fc", {"mxnet", "horovod", "mxboard", "torch", "default", "config", "partial_fc_mxnet"}),
        ("mxnet/partial_fc_mxnet", {"default", "config", "train_memory", "torch"}),
    ],
)
def test_imports_go_one_way(folder, forbidden):
    files = list((ROOT / folder).rglob("*.py"))
    assert len(files) > 5
    wrong = {str(path): imported(path) & forbidden for path in files}
    assert not {path: names for path, names in wrong.items() if names}
