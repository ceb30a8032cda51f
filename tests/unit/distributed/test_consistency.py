"""Ranks that differ are named with the fact in question, and changed code is detected."""

import shutil

import numpy as np
import pytest

from partial_fc.distributed.consistency import arrays_digest, code_digest, differences


def test_equal_facts_have_no_differences():
    facts = {"setting seed": 7, "setting margins": [1.0, 0.5, 0.0], "code": "ab"}
    assert differences([dict(facts) for _ in range(3)]) is None
    assert differences([facts]) is None


@pytest.mark.parametrize(
    "values, message",
    [
        (
            [0, 7],
            "setting seed differs between ranks: 7 on rank 1, but 0 on rank 0",
        ),  # equal groups: the one without rank 0
        ([7, 0, 0], "setting seed differs between ranks: 7 on rank 0, but 0 on the others"),
        ([0, 7, 0, 7, 0], "setting seed differs between ranks: 7 on rank 1, but 0 on rank 0 (also different: rank 3)"),
    ],
)
def test_the_minority_is_named(values, message):
    assert differences([{"setting seed": value, "code": "ab"} for value in values]) == message


def test_a_fact_that_one_rank_lacks():
    assert differences([{"a": 1, "b": 2}, {"a": 1}]) == "b differs between ranks: null on rank 1, but 2 on rank 0"
    assert differences([{"a": 1}, {"a": 1, "b": 2}]) == "b differs between ranks: 2 on rank 1, but null on rank 0"


def test_the_digest_of_arrays_is_that_of_names_shapes_and_numbers():
    arrays = {"a": np.zeros((2, 3)), "b": np.ones(6)}
    others = ({"a": arrays["b"], "b": arrays["a"]}, {"a": np.zeros((3, 2)), "b": np.ones(6)}, {"c": arrays["a"]}, {})
    others = (*others, {"a": arrays["a"], "c": arrays["b"]}, {"a": arrays["a"], "b": 2 * arrays["b"]})
    assert len({arrays_digest(each) for each in (arrays, *others)}) == 7
    assert arrays_digest(arrays) == arrays_digest({"b": np.ones(6), "a": np.zeros((3, 2)).T.reshape(2, 3)})


@pytest.fixture
def tree(tmp_path):
    """A folder with code."""
    (tmp_path / "one" / "deep").mkdir(parents=True)
    (tmp_path / "one" / "a.py").write_text("a = 1\n")
    (tmp_path / "one" / "deep" / "b.py").write_text("b = 1\n")
    return tmp_path / "one"


def test_the_digest_depends_on_the_code_only(tree):
    other = tree.parent / "other"
    shutil.copytree(tree, other)
    (other / "notes.txt").write_text("no code")
    assert code_digest([str(tree)]) == code_digest([str(other)])
    assert len(code_digest([str(tree)])) == 16


@pytest.mark.parametrize("change", ["content", "name", "folder", "another file", "from one file to the other"])
def test_the_digest_changes_with_the_code(tree, change):
    before = code_digest([str(tree)])
    if change == "content":
        (tree / "deep" / "b.py").write_text("b = 2\n")
    elif change == "name":
        (tree / "a.py").rename(tree / "c.py")
    elif change == "folder":
        (tree / "deep" / "b.py").rename(tree / "b.py")
    elif change == "another file":
        (tree / "c.py").write_text("")
    else:
        (tree / "a.py").write_text("")
        (tree / "deep" / "b.py").write_text("a = 1\nb = 1\n")
    assert code_digest([str(tree)]) != before
