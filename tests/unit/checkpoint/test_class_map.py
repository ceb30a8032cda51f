import numpy as np
import pytest

from partial_fc.checkpoint import read_class_map


def written(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


MAP = [3, -1, 0, 4, -1]


def test_text_and_npy_give_the_same_map(tmp_path):
    np.save(tmp_path / "map.npy", np.array(MAP))
    np.save(tmp_path / "small.npy", np.array(MAP, np.int16))
    for path in (written(tmp_path / "map.txt", MAP), str(tmp_path / "map.npy"), str(tmp_path / "small.npy")):
        class_map = read_class_map(path, 5, 6)
        assert class_map.dtype == np.int64 and class_map.tolist() == MAP


@pytest.mark.parametrize(
    "lines, message",
    [
        ([0, 1], "has 2 lines, expected 3"),
        ([0, 1, 2, -1], "has 4 lines, expected 3"),
        ([0, 6, 1], "line 2: class 6"),
        ([0, 1, -2], "line 3: class -2"),
        ([4, -1, 4], "lines 1 and 3: class 4"),
        *(([0, text, 2], f"line 2: '{text}'") for text in ("one", "", "1.0", "1 2", 10**19)),
    ],
)
def test_an_invalid_text_map_names_the_line(lines, message, tmp_path):
    path = written(tmp_path / "map.txt", lines)
    with pytest.raises(ValueError, match=f"{path}.*{message}"):
        read_class_map(path, 3, 6)


@pytest.mark.parametrize(
    "array, message",
    [
        (np.zeros(3), "holds float64 of shape"),
        (np.zeros((3, 1), np.int64), r"holds int64 of shape \(3, 1\)"),
        (np.array([0, 0, 1]), "lines 1 and 2: class 0"),
        (np.array([None, 1, 2], object), "not an array of numbers"),
    ],
)
def test_an_invalid_npy_map(array, message, tmp_path):
    np.save(tmp_path / "map.npy", array, allow_pickle=True)
    with pytest.raises(ValueError, match=f"{tmp_path}/map.npy.*{message}"):
        read_class_map(str(tmp_path / "map.npy"), 3, 6)
