"""Ranks that differ are named, with what they differ in; so is changed code."""

import shutil

import pytest

from partial_fc.distributed.consistency import code_digest, differences


def test_equal_facts_have_no_differences():
    facts = {"setting seed": 7, "setting margins": [1.0, 0.5, 0.0], "code": "ab"}
    assert differences([dict(facts) for _ in range(3)]) is None
    assert differences([facts]) is None


def test_a_tuple_is_a_list():
    assert differences([{"setting margins": (1.0, 0.5)}, {"setting margins": [1.0, 0.5]}]) is None


@pytest.mark.parametrize(
    "values, told",
    [
        ([0, 7], "rank 1 has another setting seed than rank 0: 7, not 0"),  # as many: not rank 0
        ([7, 0, 0], "rank 0 has another setting seed than the others: 7, not 0"),
        ([0, 7, 0, 7, 0], "rank 1 has another setting seed than rank 0: 7, not 0 (so do ranks 3)"),
    ],
)
def test_the_few_are_named(values, told):
    assert differences([{"setting seed": value, "code": "ab"} for value in values]) == told


def test_a_fact_that_one_rank_lacks():
    assert differences([{"a": 1, "b": 2}, {"a": 1}]) == "rank 1 has another b than rank 0: null, not 2"


@pytest.fixture
def tree(tmp_path):
    """A folder with code."""
    (tmp_path / "one" / "deep").mkdir(parents=True)
    (tmp_path / "one" / "a.py").write_text("a = 1\n")
    (tmp_path / "one" / "deep" / "b.py").write_text("b = 1\n")
    return tmp_path / "one"


def test_the_digest_is_that_of_the_code_wherever_it_lies(tree):
    other = tree.parent / "other"
    shutil.copytree(tree, other)
    (other / "notes.txt").write_text("no code")
    assert code_digest([str(tree)]) == code_digest([str(other)])
    assert len(code_digest([str(tree)])) == 16


@pytest.mark.parametrize("change", ["content", "name", "another file", "from one file to the other"])
def test_the_digest_changes_with_the_code(tree, change):
    before = code_digest([str(tree)])
    if change == "content":
        (tree / "deep" / "b.py").write_text("b = 2\n")
    elif change == "name":
        (tree / "a.py").rename(tree / "c.py")
    elif change == "another file":
        (tree / "c.py").write_text("")
    else:
        (tree / "a.py").write_text("")
        (tree / "deep" / "b.py").write_text("a = 1\nb = 1\n")
    assert code_digest([str(tree)]) != before
