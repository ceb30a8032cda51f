"""The synthetic protocol is complete and reproducible, and its landmarks match the faces."""

import os
from pathlib import Path

import pytest

from partial_fc.utils.cli import run_module
from partial_fc_tools.ijb.protocol import read_protocol
from partial_fc_tools.ijb.synthetic import write_protocol
from partial_fc_tools.sets.alignment import read_rgb


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    root = str(tmp_path_factory.mktemp("ijb") / "IJBC")
    return root, write_protocol(root, 6, 1, "IJBC", "face", 1)


def test_the_protocol_is_complete(drawn):
    root, plan = drawn
    ijb = read_protocol(root)
    probes = ijb.search.probes
    subject_of = dict(sum(plan.galleries, plan.probes))
    assert set(subject_of.values()) == set(range(6))
    assert len(ijb.images.names) == len(plan.images) and len(ijb.images.template_ids) == len(subject_of)
    assert len(ijb.pairs.left) == 6 * len(plan.probes)
    ids = ijb.images.template_ids.tolist()
    same = [subject_of[ids[a]] == subject_of[ids[b]] for a, b in zip(ijb.pairs.left, ijb.pairs.right)]
    assert ijb.pairs.issame.tolist() == same and sum(same) == len(plan.probes)
    galleries = [set(gallery.subjects.tolist()) for gallery in ijb.search.galleries.values()]
    assert galleries == [{0, 2, 4}, {1, 3, 5}] and set(probes.subjects.tolist()) == set(range(6))
    media = {(image.template, image.media) for image in plan.images}
    assert len(subject_of) < len(media) < len(plan.images)  # media of several images, templates of several media
    assert read_rgb(os.path.join(ijb.folder, "1.jpg"), ijb.folder).shape == (160, 160, 3)


def test_equal_seeds_give_equal_bytes(drawn, tmp_path):
    root, again = drawn[0], str(tmp_path / "again")
    write_protocol(again, 6, 1, "IJBC", "face", 2)

    def contents(folder):
        return {path.relative_to(folder): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}

    assert contents(again) == contents(root)


def test_the_command(drawn, tmp_path, capsys):
    """Another target and another seed give other file names and other faces."""

    def run(*words):
        return run_module("partial_fc_tools.ijb.synthetic", "synthetic", [root, "--workers", "1", *words])

    root = str(tmp_path / "IJBB")
    assert run("--subjects", "4", "--target", "IJBB", "--seed", "2") == 0
    assert f"{root}: IJBB, " in capsys.readouterr().out
    ijb = read_protocol(root)
    assert ijb.target == "IJBB" and list(ijb.search.galleries) == ["S1", "S2"]
    first = [
        read_rgb(os.path.join(folder, "1.jpg"), folder) for folder in (ijb.folder, os.path.join(drawn[0], "loose_crop"))
    ]
    assert (first[0] != first[1]).any()
    assert run("--subjects", "4") == 2
    assert "already exists and is not empty" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run("--subjects", "3")
