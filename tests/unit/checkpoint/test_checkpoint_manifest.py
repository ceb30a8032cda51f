import hashlib
import json
import os
import pickle
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from partial_fc.checkpoint import Entry, Manifest, read_manifest, write_manifest
from partial_fc.checkpoint.manifest import LARGEST

NAMES = ["backbone.npz", "rank-00000.npz", "rank-00001.npz", "centers-00000.npy", "centers-00001.npy"]
NAMES += ["momentum-00000.npy", "momentum-00001.npy"]
FILES = {name: Entry(number, f"{number:064x}") for number, name in enumerate(NAMES)}
STATE = {"data": {"epoch": 3, "images": 2**40}, "loss_scale": None, "rate": 0.1, "nested": [[1], {"é": True}]}
MANIFEST = Manifest(500, 7, 3, 2, [(0, 4), (4, 7)], FILES, STATE, [{"sampler": 2**127}, {}], {"time": "noon"})


@pytest.mark.parametrize(
    "changes",
    [{}, {"num_classes": 4, "shards": [(0, 4), (4, 4)]}, {"num_update": 2**60}],  # the second: a rank without classes
)
def test_a_manifest_is_read_as_it_was_written(changes, tmp_path):
    manifest = replace(MANIFEST, **changes)
    write_manifest(str(tmp_path), manifest)
    assert read_manifest(str(tmp_path)) == manifest
    assert os.listdir(tmp_path) == ["manifest.json"]


def test_numeric_keys_become_strings(tmp_path):
    write_manifest(str(tmp_path), replace(MANIFEST, state={10: "ten", 9: "nine"}))
    assert read_manifest(str(tmp_path)).state == {"10": "ten", "9": "nine"}


@pytest.mark.parametrize("value", [np.float32(1), np.nan])
def test_values_without_a_json_form_are_refused(value, tmp_path):
    with pytest.raises((TypeError, ValueError)):
        write_manifest(str(tmp_path), replace(MANIFEST, state={"x": value}))
    assert os.listdir(tmp_path) == []


def content():
    """Returns the fields of a manifest's file."""
    files = {name: {"bytes": entry.bytes, "sha256": entry.sha256} for name, entry in FILES.items()}
    fields = json.loads(json.dumps({**MANIFEST.__dict__, "files": files}))
    return {"format": "partial_fc checkpoint", "version": 1, **fields}


def sealed(fields):
    """Returns the text of a manifest with its SHA-256."""
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    return json.dumps({**fields, "sha256": digest})


def refused(tmp_path, text, message):
    (tmp_path / "manifest.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=f"{tmp_path}/manifest.json is damaged: .*{message}") as error:
        read_manifest(str(tmp_path))
    assert str(error.value).endswith("; use another checkpoint")


FIELDS = {
    "num_classes": [0, 8, 6],
    "ranks": [0, 1, 3, -2, 10**12],
    "shards": [
        *([[0, 4]], [[0, 4], [5, 7]], [[0, 4], [3, 7]], [[4, 7], [0, 4]], [[0, 9], [9, 7]], [[0, 4], [4, 8]]),
        *([[0, 4], [4, 7], [7, 7]], [[0, 4], [4]], None),
    ],
    "files": [{}, [], None],
    "rank_states": [[], [{}], [{}, {}, {}], [{}, 3], None],
    "state": [
        *({"center_widths": widths} for widths in ({"weight": 3}, ["weight", "weight_mom"], 3, None)),
        *({"center_widths": {"weight": 3, **state}} for state in ({"../x": 3}, {"weight_mom": "3"})),
        *({"data": data} for data in (5, [], {"epoch": 1}, {"epoch": "1", "images": 0}, {"epoch": True, "images": 0})),
    ],
    "format": ["other", None],
    "version": [2, "1", None],
}


@pytest.mark.parametrize("field, value", [(field, value) for field, values in FIELDS.items() for value in values])
def test_an_invalid_field(field, value, tmp_path):
    (tmp_path / "manifest.json").write_text(sealed(content()))
    assert read_manifest(str(tmp_path)) == MANIFEST
    refused(tmp_path, sealed({**content(), field: value}), "")


@pytest.mark.parametrize("name", ["../x", "a/b", ""])
def test_a_state_whose_file_would_lie_elsewhere(name, tmp_path):
    files = {f"state-{name}-{rank:05}.npy": {"bytes": 1, "sha256": ""} for rank in range(2)}
    files |= {file: entry for file, entry in content()["files"].items() if not file.startswith("momentum")}
    state = {"center_widths": {"weight": 3, name: 3}}
    refused(tmp_path, sealed({**content(), "files": files, "state": state}), "invalid names of states")


OF_HEAD = {"shards": [[0, 3], [3, 5]], "center_widths": {"weight": 3}}
HEAD_FILES = ["b.centers-00000.npy", "b.centers-00001.npy"]


def with_head(name="b", names=HEAD_FILES, states=None, **changes):
    """Returns the fields of a manifest with a second head."""
    files = content()["files"] | {file: {"bytes": 1, "sha256": ""} for file in names}
    states = [{"heads": {name: 7}}, {"heads": {name: 8}}] if states is None else states
    state = {"data": None, "heads": {name: {**OF_HEAD, **changes}}}
    return {**content(), "files": files, "state": state, "rank_states": states}


def test_a_head_has_its_own_classes_and_states(tmp_path):
    (tmp_path / "manifest.json").write_text(sealed(with_head()))
    manifest = read_manifest(str(tmp_path))
    assert list(manifest.heads) == ["b"] and manifest.of_head("") is manifest
    head = manifest.of_head("b")
    assert (head.num_classes, head.shards, head.center_widths) == (5, [(0, 3), (3, 5)], {"weight": 3})
    assert head.rank_states == [{"sampler": 7}, {"sampler": 8}] and manifest.num_classes == 7


@pytest.mark.parametrize(
    "changes",
    [
        *({"shards": shards} for shards in ([], [[0, 5]], [[0, 3], [4, 5]], [[0, 3], [3, -5]], [[0, 3], [3]], None)),
        *({"center_widths": widths} for widths in ({}, {"weight": 0}, {"weight": 3, "x": 1}, {"../x": 3}, [], None)),
        *({"states": states} for states in ([{}, {}], [{"heads": {"b": 7}}, {"heads": {}}], [{"heads": 3}] * 2)),
        *({"names": names} for names in (HEAD_FILES[:1], [*HEAD_FILES, "b.momentum-00000.npy"], ["../x.npy"])),
        *({"name": name, "names": [file.replace("b", name, 1) for file in HEAD_FILES]} for name in ("../b", "a.b", "")),
    ],
)
def test_an_invalid_head(changes, tmp_path):
    refused(tmp_path, sealed(with_head(**changes)), "")


@pytest.mark.parametrize("heads", [{"b": {"epoch": 1}}, {"b": 7}, [7]])
def test_an_invalid_position_of_a_head(heads, tmp_path):
    fields = with_head()
    fields["state"]["data"] = {"epoch": 1, "images": 2, "heads": {"b": {"epoch": 3, "images": 0}}}
    (tmp_path / "manifest.json").write_text(sealed(fields))
    read_manifest(str(tmp_path))
    fields["state"]["data"]["heads"] = heads
    refused(tmp_path, sealed(fields), "")


def test_a_manifest_too_large_to_be_read_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="more than 16,777,216: train fewer heads"):
        write_manifest(str(tmp_path), replace(MANIFEST, state={"x": " " * LARGEST}))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("field", content())
def test_a_missing_field(field, tmp_path):
    fields = content()
    del fields[field]
    refused(tmp_path, sealed(fields), field if field not in ("format", "version") else "its format is")


@pytest.mark.parametrize("renamed", NAMES)
@pytest.mark.parametrize("name", ["../centers-00000.npy", "/etc/passwd", "centers-00000.npy\n", None])
def test_files_of_other_names_and_missing_ones(renamed, name, tmp_path):
    files = content()["files"]
    entry = files.pop(renamed)
    refused(tmp_path, sealed({**content(), "files": files if name is None else {**files, name: entry}}), "the file")
    if name is not None:
        refused(tmp_path, sealed({**content(), "files": {**content()["files"], name: entry}}), "is surplus")


NO_MANIFESTS = {
    "empty": ("", "Expecting value"),
    "cut": ("{", "Expecting"),
    "list": ("[]", "not an object of names and values"),
    "no fields": ("{}", "its format is"),
    "deep list": ("[" * 200_000, "recursion"),
    "deep object": ('{"a":' * 200_000, "recursion"),
    "no utf-8": (b"\xff\xfe\x00", "codec"),
    "pickle": (pickle.dumps(print), "codec"),
    "other seal": (json.dumps({**content(), "sha256": "0" * 64}), "its SHA-256 differs"),
    "no seal": (json.dumps(content()), "its SHA-256 differs"),
}


@pytest.mark.parametrize("name", NO_MANIFESTS)
def test_files_that_are_not_manifests(name, tmp_path):
    refused(tmp_path, *NO_MANIFESTS[name])


def test_a_manifest_that_is_too_large_is_not_read(tmp_path):
    with open(tmp_path / "manifest.json", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ValueError, match=f"{tmp_path}/manifest.json is damaged: it has more than 16,777,216 bytes"):
        read_manifest(str(tmp_path))


def test_a_manifest_that_does_not_exist(tmp_path):
    (tmp_path / "manifest.json").mkdir()
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(FileNotFoundError, match=f"{path}/manifest.json does not exist: .*resume=auto"):
            read_manifest(str(path))


@pytest.mark.parametrize("ranks, widths, length", [(2000, 2000, 1), (30_000, 1, 30_000)])
def test_reading_takes_as_much_memory_as_the_file(tmp_path, ranks, widths, length):
    """Also where ranks and names of states ask for as many names of files as their product."""
    states = {"x" * length + str(number): 1 for number in range(widths)}
    stated = {"ranks": ranks, "shards": [[0, 0]] * (ranks - 1) + [[0, 7]], "rank_states": [{}] * ranks}
    text = sealed({**content(), **stated, "state": {"center_widths": states}})
    tracemalloc.start()
    try:
        refused(tmp_path, text, "is missing")
        assert tracemalloc.get_traced_memory()[1] < 20e6 + 20 * len(text)
    finally:
        tracemalloc.stop()
