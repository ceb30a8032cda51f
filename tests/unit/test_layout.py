"""The layout: imports go down only, no trainer imports the other or the tools, and mxnet/ shadows no package."""

import ast
from graphlib import CycleError, TopologicalSorter

import pytest

from paths import ROOT

# Packages from low to high levels. A file may import packages of its own level or a lower one.
LEVELS = (
    ("utils", "layer"),
    ("data", "distributed", "checkpoint"),
    ("export",),
    ("evaluation",),
    ("training",),
    ("settings",),
    ("train",),
)
LEVEL = {f"partial_fc.{package}": level for level, packages in enumerate(LEVELS) for package in packages}
TRAINERS = {"partial_fc_mxnet": ROOT / "mxnet", "partial_fc_torch": ROOT / "pytorch"}
LEVEL |= dict.fromkeys(TRAINERS, len(LEVELS))
TOOLS = ROOT / "tools"
LEVEL |= {f"partial_fc_tools.{path.name}": len(LEVELS) + 1 for path in (TOOLS / "partial_fc_tools").iterdir()}
NUMERIC_ONLY = {"mxnet", "horovod", "mxboard", "torch"}  # frameworks that partial_fc must not import
# Modules outside of all packages; __main__ is the command, which imports any module by name.
ABOVE = {"partial_fc.__init__", "partial_fc_tools.__init__", "partial_fc.__main__", "partial_fc_tools.__main__"}
PROGRAMS = {"default", "config", "train_memory", "train"}  # programs that no library imports


def sources():
    """(dotted name, path) of every file of the libraries."""
    for top, folder in {"partial_fc": ROOT, **TRAINERS, "partial_fc_tools": TOOLS}.items():
        for path in sorted((folder / top).rglob("*.py")):
            name = ".".join(path.relative_to(folder).with_suffix("").parts)
            yield name, path


def imported(name, path):
    """Dotted names of all imports in a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = name.split(".")[: -node.level] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def package(name):
    """The package of a module, such as partial_fc.data for partial_fc.data.sources.shards; None for other modules."""
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
def test_source_roots_and_tests_are_not_packages(folder, content):
    assert {path.name for path in (ROOT / folder).iterdir()} - {"__pycache__"} == content
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_every_module_is_in_a_known_package():
    folders = {path.parent for _, path in sources()}
    assert not [folder for folder in folders if not (folder / "__init__.py").exists()]
    assert not [name for name, _ in sources() if package(name) not in LEVEL and name not in ABOVE]


@pytest.mark.parametrize(
    "top, forbidden",
    [
        ("partial_fc", {*NUMERIC_ONLY, *PROGRAMS, *TRAINERS, "partial_fc_tools"}),
        ("partial_fc_mxnet", PROGRAMS | {"torch", "partial_fc_torch", "partial_fc_tools"}),
        ("partial_fc_torch", PROGRAMS | {"mxnet", "horovod", "mxboard", "partial_fc_mxnet", "partial_fc_tools"}),
    ],
)
def test_libraries_do_not_import_programs_tools_or_the_other_trainer(top, forbidden):
    # partial_fc names the layer for type checkers, and imports it by name when it is used; __main__ is the command.
    exempt = {"partial_fc.__init__", "partial_fc.__main__"}
    files = [(name, path) for name, path in sources() if name.split(".")[0] == top and name not in exempt]
    assert files
    wrong = {name: {word.split(".")[0] for word in imported(name, path)} & forbidden for name, path in files}
    assert not {name: words for name, words in wrong.items() if words}


def test_imports_go_down_the_levels_and_never_in_a_circle():
    imports = {}
    for name, path in sources():
        imports.setdefault(package(name), set()).update(package(word) for word in imported(name, path))
    imports = {a: {b for b in words if b in LEVEL and b != a} for a, words in imports.items() if a in LEVEL}
    assert not [f"{a} imports {b}" for a, words in imports.items() for b in words if LEVEL[b] > LEVEL[a]]
    try:
        tuple(TopologicalSorter(imports).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_modules_named_by_data_are_imported_in_one_place():
    by_name = {"import_module", "resolve_name", "__import__", "run_path", "spec_from_file_location"}
    found = {
        name
        for name, path in sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and by_name & {getattr(node.func, "attr", ""), getattr(node.func, "id", "")}
    }
    # Besides utils.imports: modules named by our own tables, and recipes, which are Python files.
    ours = {"utils.cli", "training.trackers.__init__", "data.sources.forms"}
    allowed = {f"partial_fc.{name}" for name in (*ours, "utils.imports", "training.recipes.config_file")}
    assert found == {*allowed, "partial_fc_torch.backbones.__init__"}


# Functions that follow any path in a hostile file, and the modules that may call them on checked or own files.
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


def test_untrusted_files_are_checked_before_libraries_read_them():
    found = {name: set() for name in UNSAFE}
    for module, path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            for name in UNSAFE:
                if f".{called}".endswith(f".{name}"):
                    found[name].add(module)
    assert found == UNSAFE
