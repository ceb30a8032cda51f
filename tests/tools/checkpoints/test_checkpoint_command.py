import os

import pytest

from checkpoint_files import write_checkpoint
from command_line import start
from partial_fc.checkpoint import read_class_map
from partial_fc.data.names import write_names


def command(*words, code=0):
    """Returns the output of a command; an error must be one line."""
    done = start("checkpoints", *words)
    assert done.returncode == code, done.stderr
    assert len(done.stderr.splitlines()) == (1 if code and not done.stdout else 0), done.stderr
    return done.stdout + done.stderr


def test_checkpoints_are_listed_and_checked(tmp_path):
    for number, ranks in ((500, 2), (1000, 3)):
        write_checkpoint(tmp_path, number, ranks=ranks)
    first, second = command("list", tmp_path).splitlines()
    assert first.startswith(f"{tmp_path}/step-0000001000: update 1000, 7 classes of 3 ranks, 0.0 MB, noon")
    assert second.startswith(f"{tmp_path}/step-0000000500: update 500, 7 classes of 2 ranks")
    assert command("check", tmp_path).count("undamaged, all files verified") == 2
    assert len(command("check", tmp_path / "step-0000001000").splitlines()) == 1


def test_a_damaged_checkpoint_does_not_hide_the_others(tmp_path):
    for number in (1, 2, 3):
        write_checkpoint(tmp_path, number)
    (tmp_path / "step-0000000002" / "manifest.json").write_text("{")
    os.truncate(tmp_path / "step-0000000001" / "backbone.npz", 9)
    lines = command("list", tmp_path).splitlines()
    assert [line.split(": ")[0][-1] for line in lines] == ["3", "2", "1"] and "is damaged" in lines[1]
    found = command("check", tmp_path, code=1).splitlines()
    assert "undamaged" in found[0] and "is damaged" in found[1]
    assert f"{tmp_path}/step-0000000001/backbone.npz has 9 bytes" in found[2]


@pytest.mark.parametrize("word", ["list", "check"])
def test_a_folder_without_checkpoints(word, tmp_path):
    for path in (tmp_path, tmp_path / "missing"):
        assert f"no complete checkpoint in {path}" in command(word, path, code=2)


@pytest.fixture
def names(tmp_path):
    """Folders of two sets' identities."""
    for folder, people in (("old", ["ann", "bob", "eve", "Zoë"]), ("new", ["bob", "max", "Zoë"])):
        (tmp_path / folder).mkdir()
        write_names(tmp_path / folder, people)
    return tmp_path


def test_a_map_by_names(names):
    out = names / "map.txt"
    printed = command("map", names / "old" / "identities.txt", names / "new" / "identities.txt", out)
    assert printed == f"{out}: classes: 2 kept, 1 new, 2 dropped\n"
    assert read_class_map(str(out), 3, 4).tolist() == [1, -1, 3]


@pytest.mark.parametrize("content", ["0\tann\n1\tann\n", "0\tann\n2\tbob\n", "ann\n", "0 ann\n", None])
def test_identities_that_cannot_be_mapped(content, names):
    old, new = (names / folder / "identities.txt" for folder in ("old", "new"))
    old.unlink() if content is None else old.write_text(content)
    assert str(old) in command("map", old, new, names / "map.txt", code=2)
    assert not (names / "map.txt").exists()
