"""Every list that people write is read alike, whatever editor or system it comes from."""

import codecs
import io
import os
import unicodedata
from contextlib import nullcontext

import numpy as np
import pytest

from partial_fc.checkpoint import read_class_map
from partial_fc.data.tools.names import parse_names
from partial_fc.data.tools.pairs_list import read_pairs_list
from partial_fc.evaluation.ijb.lists import read_images, read_pairs, read_subjects
from partial_fc.evaluation.pair_groups import read_groups
from partial_fc.evaluation.submission.rules import check_pixel_files
from partial_fc.inference.index import read_names
from partial_fc.inference.items import Texts
from partial_fc.utils.cli import PrintableOutput
from partial_fc.utils.json_object import read_object
from partial_fc.utils.tables import format_table, markdown_table
from partial_fc.utils.text import amount, printable, quoted, read_lines, some


def listed_pairs(path):
    folder = os.path.dirname(path)
    for name in ("ä", "b"):
        open(os.path.join(folder, name), "w").close()
    return read_pairs_list(path, folder)


def ijb_images(path):
    media = os.path.join(os.path.dirname(path), "media.txt")
    with open(media, "w", encoding="utf-8") as file:
        file.write("ä.png 3 1\nb.png 10 2\n")
    images = read_images(path, media)
    return images.names, images.landmarks.tolist()


def as_lists(arrays):
    return [array.tolist() for array in arrays]


def pixel_rules(path):
    rules, settings = check_pixel_files(os.path.dirname(path))
    return [rule.passed for rule in rules], settings


KNOWN = np.array([3, 10], np.int32)
# A reader, and lines of its file, in which every one counts.
DOORS = {
    "names": (read_names, ["a/ä", "b/1"]),
    "items": (Texts(str).names, ["ä", "b c"]),
    "identities.txt": (parse_names, ["0\tä", "1\tb"]),
    "pairs": (listed_pairs, ["ä b 1", "b ä 0"]),
    "IJB images": (ijb_images, ["ä.png 1 2 3 4 5 6 7 8 9 10 0.5", "b.png 1 2 3 4 5 6 7 8 9 10 0.5"]),
    "IJB pairs": (lambda path: as_lists(read_pairs(path, KNOWN)), ["3 10 1", "3 3 0"]),
    "IJB subjects": (lambda path: as_lists(read_subjects(path, KNOWN, True)), ["T,S,Ä", "3,1,x", "10,2,y"]),
    "groups": (lambda path: read_groups(path, [], np.array([True, False])), ["same,ä", "1,b", '0,"c,d"']),
    "class map": (lambda path: read_class_map(path, 2, 9).tolist(), ["8", "-1"]),
    "pixel_norm.txt": (pixel_rules, ["127.5", "128"]),
}
doors = pytest.mark.parametrize("read, lines", DOORS.values(), ids=DOORS)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", ["", "{}", "{0}{0}{0}", "{} \t{}"])
@doors
def test_all_lines_are_read(tmp_path, read, lines, encoding, end, last):
    path = tmp_path / "pixel_norm.txt"
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    expected = read(str(path))
    mark = {"utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE}.get(encoding, b"")
    path.write_bytes(mark + (end.join(lines) + last.format(end, end)).encode(encoding))
    assert read(str(path)) == expected


@pytest.mark.parametrize(
    "whole", [lambda lines: "\n".join(lines).encode("utf-16-le"), lambda lines: "\r".join(lines).encode()]
)
@doors
def test_other_text_is_refused_by_line(tmp_path, read, lines, whole):
    """UTF-16 without its mark, and the line ends of old Macs, of which two would be one."""
    path = tmp_path / "pixel_norm.txt"
    path.write_bytes(whole([*lines, "\u00e4"]))
    if read is pixel_rules:
        assert read(str(path))[0] == [True, False]
    else:
        with pytest.raises(ValueError, match=r"pixel_norm.txt, line 1: .*"):
            read(str(path))


@pytest.mark.parametrize(
    "content, line",
    [(b"a\nb\0\n", 2), (b"a\n\n\xff\n", 3), (b"\xff\xfea\0\n\0b\0\n\0c", 3), (b"\xff\xfea\0\n\0\0\xd8\n\0", 2)],
)
def test_the_line_that_is_no_text_is_named(tmp_path, content, line):
    (tmp_path / "list").write_bytes(content)
    with pytest.raises(ValueError, match=f"list, line {line}: "):
        list(read_lines(tmp_path / "list"))


def test_names_keep_their_bytes(tmp_path):
    (tmp_path / "list").write_bytes(b"caf\xe9\n\nb\n")
    assert list(read_lines(tmp_path / "list", any_bytes=True)) == [os.fsdecode(b"caf\xe9"), "", "b"]
    with pytest.raises(ValueError, match="list, line 2: "):
        read_names(str(tmp_path / "list"))


def test_numbers_and_names_for_people():
    assert [amount(size) for size in (999, 1000, 1500, 999_900, 10**6)] == [
        *("999 bytes", "1.0 KB", "1.5 KB", "999.9 KB", "1.0 MB")
    ]
    assert [some("abc"), some("abcd"), some("abcde")] == ["a, b, c", "a, b, c and 1 other", "a, b, c and 2 others"]
    assert len(quoted("x" * 198)) == 200 and quoted("x" * 199) == f"'{'x' * 199}..."


def test_every_character_that_controls_a_terminal_is_escaped():
    """And no other one: C0, DEL, C1, and what reverses the direction of a line."""
    for character in map(chr, range(0x3000)):
        controls = unicodedata.category(character) == "Cc" and character not in "\t\n"
        reverses = unicodedata.bidirectional(character) in (
            "LRE",
            "RLE",
            "LRO",
            "RLO",
            "PDF",
            "LRI",
            "RLI",
            "FSI",
            "PDI",
        )
        assert (printable(character) == character) != (controls or reverses), hex(ord(character))
    assert PrintableOutput(io.TextIOWrapper(io.BytesIO(), "utf-8")).write("a\x1b") == 2


def test_columns_of_numbers_are_aligned_to_the_right():
    rows = [("x", "-1", "1", "", "n"), ("y", "+2.5 %", "a", "-", "3")]
    assert markdown_table("ABCDE", rows)[1] == "|:---|---:|:---|---:|:---|"
    assert format_table([("name", "n"), ("a", "10")], min_widths=(6, 4)) == ["name       n", "a         10"]


@pytest.mark.parametrize("more, fits", [(0, True), (1, False)])
def test_an_object_may_have_the_largest_size(tmp_path, more, fits):
    (tmp_path / "a").write_text('{"a": 1}' + more * " ")
    with nullcontext() if fits else pytest.raises(ValueError, match="more than 8 bytes"):
        assert read_object(str(tmp_path / "a"), 8) == {"a": 1}


def test_a_pipe_is_read(tmp_path):
    read, write = os.pipe()
    os.write(write, b"a\r\nb")
    os.close(write)
    assert list(read_lines(f"/proc/self/fd/{read}")) == ["a", "b"]
    os.close(read)
