"""Damaged checkpoints are errors that name the file, and take little memory."""

import hashlib
import json
import os
import zipfile

import numpy as np
import pytest

from checkpoint_files import write_checkpoint
from damage import EXTREME, check_damaged
from partial_fc.checkpoint import array_chunks, npz_chunks, open_rows, read_arrays, read_manifest
from partial_fc.checkpoint.class_map import read_class_map
from partial_fc.checkpoint.mxnet_params import array_file_chunks
from partial_fc.training.saved_training import pretrained_from_files

ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


def joined(chunks):
    return b"".join(map(bytes, chunks))


def test_arrays(tmp_path):
    arrays = {"a": ROWS, "b": np.arange(3)}
    path = tmp_path / "a.npz"
    check_damaged(path, joined(npz_chunks(arrays)), read_arrays, seconds=0.5)

    def write(member):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.npy", member)

    content = joined(array_chunks([ROWS]))
    check_damaged(path, content, read_arrays, write, seconds=0.5)
    check_damaged(tmp_path / "a.npy", content, lambda path: open_rows(path, 4, 3), seconds=0.5)


def test_parameters_of_mxnet(tmp_path):
    path = tmp_path / "model-0000.params"
    content = joined(array_file_chunks({"arg:a": ROWS, "aux:b": np.ones(3, np.float16)}))
    check_damaged(path, content, lambda path: pretrained_from_files(path, False, lambda *_: None))


def test_manifests(tmp_path):
    path = tmp_path / "manifest.json"
    whole = os.path.join(write_checkpoint(tmp_path / "whole", 7), "manifest.json")
    with open(whole, encoding="utf-8") as file:
        fields = json.load(file)

    def draw(fields, rng):
        """Returns the manifest with another value somewhere, and the SHA-256 that belongs to it."""
        fields = json.loads(json.dumps({name: value for name, value in fields.items() if name != "sha256"}))
        place = fields
        while True:
            key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
            if not isinstance(place[key], (dict, list)) or not place[key] or rng.random() < 0.3:
                break
            place = place[key]
        place[key] = rng.choice([*EXTREME, 10**300, 0.5, 1e308, None, True, "x", [], {}, [[]], {"a": [1]}])
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        return json.dumps({**fields, "sha256": hashlib.sha256(text.encode()).hexdigest()})

    def read(path):
        manifest = read_manifest(str(tmp_path))
        counts = (manifest.num_update, manifest.num_classes, manifest.embedding_size, *sum(manifest.shards, ()))
        assert all(type(count) is int and count >= 0 for count in counts)
        assert all(type(state) is dict for state in (manifest.state, *manifest.rank_states))

    check_damaged(path, fields, read, path.write_text, draw)


@pytest.mark.parametrize("ending", ["txt", "npy"])
def test_damaged_class_maps(tmp_path, ending):
    path, numbers = tmp_path / f"map.{ending}", np.array([3, -1, 0, 2])
    np.savetxt(path, numbers, "%d") if ending == "txt" else np.save(path, numbers)
    check_damaged(path, path.read_bytes(), lambda name: read_class_map(name, 4, 4))
