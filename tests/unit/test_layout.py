"""The layout: mxnet/ never shadows the package, no trainer imports the other or the tools, imports go down only."""

import ast
from graphlib import CycleError, TopologicalSorter

import pytest

from paths import ROOT

# Packages, low to high: a file imports its own package, and packages of its own or a lower level.
LEVELS = (
    ("utils", "layer"),
    ("data", "distributed", "checkpoint"),
    ("export",),
    ("evaluation",),
    ("training",),
    ("settings",),
)
LEVEL = {f"partial_fc.{package}": level for level, packages in enumerate(LEVELS) for package in packages}
TRAINERS = {"partial_fc_mxnet": ROOT / "mxnet", "partial_fc_torch": ROOT / "pytorch"}
LEVEL |= dict.fromkeys(TRAINERS, len(LEVELS))
TOOLS = ROOT / "tools"
LEVEL |= {f"partial_fc_tools.{path.name}": len(LEVELS) + 1 for path in (TOOLS / "partial_fc_tools").iterdir()}
NUMERIC_ONLY = {"mxnet", "horovod", "mxboard", "torch"}  # what partial_fc must not need
# The last two are programs: `python -m partial_fc` is the command, which imports what is called by its name.
ABOVE = {"partial_fc.__init__", "partial_fc_tools.__init__", "partial_fc.__main__", "partial_fc_tools.__main__"}
PROGRAMS = {"default", "config", "train_memory", "train"}  # what no library reads


def sources():
    """(dotted name, path) of every file of the libraries."""
    for top, folder in {"partial_fc": ROOT, **TRAINERS, "partial_fc_tools": TOOLS}.items():
        for path in sorted((folder / top).rglob("*.py")):
            name = ".".join(path.relative_to(folder).with_suffix("").parts)
            yield name, path


def imported(name, path):
    """Dotted names of what a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = name.split(".")[: -node.level] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def package(name):
    """partial_fc.data for partial_fc.data.sources.shards; None for what is not ours."""
    parts = name.split(".")
    if parts[0] in TRAINERS:
        return parts[0]
    return ".".join(parts[:2]) if parts[0] in ("partial_fc", "partial_fc_tools") and len(parts) > 1 else None


@pytest.mark.parametrize(
    "folder, content",
    [
        ("mxnet", {"partial_fc_mxnet"}),
        ("pytorch", {"partial_fc_torch", "launch.py", "run.sh"}),
        ("tools", {"partial_fc_tools"}),
    ],
)
def test_source_roots_and_tests_are_no_packages(folder, content):
    assert {path.name for path in (ROOT / folder).iterdir()} - {"__pycache__"} == content
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_every_folder_of_sources_is_a_package():
    folders = {path.parent for _, path in sources()}
    assert not [folder for folder in folders if not (folder / "__init__.py").exists()]


def test_no_module_lies_outside_the_rooms():
    stray = [name for name, _ in sources() if package(name) not in LEVEL and name not in ABOVE]
    assert not stray


@pytest.mark.parametrize(
    "top, forbidden",
    [
        ("partial_fc", {*NUMERIC_ONLY, *PROGRAMS, *TRAINERS, "partial_fc_tools"}),
        ("partial_fc_mxnet", PROGRAMS | {"torch", "partial_fc_torch", "partial_fc_tools"}),
        ("partial_fc_torch", PROGRAMS | {"mxnet", "horovod", "mxboard", "partial_fc_mxnet", "partial_fc_tools"}),
    ],
)
def test_libraries_do_not_import_what_stands_above_or_beside_them(top, forbidden):
    files = [(name, path) for name, path in sources() if name.split(".")[0] == top and name != "partial_fc.__main__"]
    assert files
    wrong = {name: {word.split(".")[0] for word in imported(name, path)} & forbidden for name, path in files}
    assert not {name: words for name, words in wrong.items() if words}


def test_imports_go_down_the_levels():
    up = [
        f"{name} imports {word}"
        for name, path in sources()
        for word in imported(name, path)
        if package(word) in LEVEL and package(name) in LEVEL and LEVEL[package(word)] > LEVEL[package(name)]
    ]
    assert not up


def test_modules_named_by_data_are_imported_in_one_place():
    by_name = {"import_module", "resolve_name", "__import__", "run_path", "spec_from_file_location"}
    found = {
        name
        for name, path in sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and by_name & {getattr(node.func, "attr", ""), getattr(node.func, "id", "")}
    }
    # Beside it, modules of tables of our own, and recipes, which are Python.
    ours = {"utils.cli", "training.trackers.__init__", "data.sources.forms"}
    allowed = {f"partial_fc.{name}" for name in (*ours, "utils.imports", "training.recipes.config_file")}
    assert found == {*allowed, "partial_fc_torch.backbones.__init__"}


def test_rooms_do_not_import_each_other_in_a_circle():
    arrows = {}
    for name, path in sources():
        arrows.setdefault(package(name), set()).update(package(word) for word in imported(name, path))
    arrows = {a: {b for b in found if b in LEVEL and b != a} for a, found in arrows.items() if a in LEVEL}
    try:
        tuple(TopologicalSorter(arrows).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


# What follows files of strangers wherever they say, and the files whose content is checked before, or our own.
UNSAFE = {
    "InferenceSession": {"partial_fc.export.model"},
    "onnx.load": {"partial_fc_tools.export.smaller"},
    "load_external_data_for_model": {"partial_fc.export.model_file"},
    "FaceDetectorYN.create": {"partial_fc_tools.sets.detection.yunet"},
    "faiss.read_index": set(),
    "faiss.read_InvertedLists": set(),
    "faiss.deserialize_index": set(),
    "faiss.OnDiskInvertedLists": {"partial_fc_tools.index.ivf"},
}


def test_files_of_strangers_are_checked_before_their_libraries_read_them():
    found = {name: set() for name in UNSAFE}
    for module, path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            for name in UNSAFE:
                if f".{called}".endswith(f".{name}"):
                    found[name].add(module)
    assert found == UNSAFE
