"""All readers of text files accept what editors write, and untrusted names cannot control the terminal."""

import ast
import codecs
import csv
import io
import json
import math
import os
import re
import subprocess
import sys
import unicodedata
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest

from damage import check_damaged
from partial_fc.checkpoint import read_class_map
from partial_fc.data.names import parse_names
from partial_fc.utils.cli import PrintableOutput
from partial_fc.utils.json_object import read_object
from partial_fc.utils.progress import progress
from partial_fc.utils.tables import CsvWriter, format_table, markdown_table
from partial_fc.utils.text import QUIET, amount, one_line, printable, quoted, read_lines, say, say_json, some
from partial_fc_tools.ijb.lists import read_images, read_pairs, read_subjects
from partial_fc_tools.inference.index import read_names
from partial_fc_tools.inference.items import Texts
from partial_fc_tools.report.pair_groups import read_groups
from partial_fc_tools.sets.pairs_list import read_pairs_list
from partial_fc_tools.submission.rules import check_pixel_files
from paths import ROOT


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
# Readers, and lines of their files, each of which changes the result.
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


@pytest.mark.timeout(20)
@doors
def test_a_pipe_instead_of_a_list_is_refused_at_once(tmp_path, read, lines):
    path = tmp_path / "pixel_norm.txt"
    os.mkfifo(path)
    with pytest.raises(OSError, match="not a regular file") as error:
        read(str(path))
    assert str(path) in str(error.value)


@doors
def test_damaged_lists(tmp_path, read, lines):
    def refused(path):
        try:
            result = read(path)
        except ValueError as error:
            raise ValueError(str(error).replace("\n", " ")) from None  # a list of pairs has a line for each
        if read is pixel_rules and not all(result[0]):
            raise ValueError(path)

    path = tmp_path / "pixel_norm.txt"
    check_damaged(path, "".join(f"{line}\n" for line in lines).encode(), refused, seconds=0.3)


@pytest.mark.parametrize(
    "content, line",
    [(b"a\nb\0\n", 2), (b"a\n\n\xff\n", 3), (b"\xff\xfea\0\n\0b\0\n\0c", 3), (b"\xff\xfea\0\n\0\0\xd8\n\0", 2)],
)
def test_the_line_that_is_not_text_is_named(tmp_path, content, line):
    (tmp_path / "list").write_bytes(content)
    with pytest.raises(ValueError, match=f"list, line {line}: "):
        list(read_lines(tmp_path / "list"))


def test_names_of_files_keep_their_bytes(tmp_path):
    (tmp_path / "list").write_bytes(b"caf\xe9\n\nb\n")
    assert list(read_lines(tmp_path / "list", any_bytes=True)) == [os.fsdecode(b"caf\xe9"), "", "b"]


def test_numbers_and_names_for_people():
    assert [amount(size) for size in (999, 1000, 1500, 999_900, 10**6)] == [
        *("999 bytes", "1.0 KB", "1.5 KB", "999.9 KB", "1.0 MB")
    ]
    assert [some("abc"), some("abcd"), some("abcde")] == ["a, b, c", "a, b, c and 1 other", "a, b, c and 2 others"]
    assert len(quoted("x" * 198)) == 200 and quoted("x" * 199) == f"'{'x' * 199}..."


# Invisible characters of the categories Lo, So, Mn and Cn: fillers, joiners, selectors, tags.
BLANK = {*"\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2065\u2800\u3164\uffa0"}
BLANK |= {chr(code) for codes in ((0xFE00, 0xFE10), (0xFFF0, 0xFFF9), (0xE0000, 0xE1000)) for code in range(*codes)}


def test_exactly_the_characters_that_control_a_terminal_or_are_invisible_are_escaped():
    for character in map(chr, range(sys.maxunicode + 1)):
        hides = unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp", "Cs") and character not in "\t\n"
        hides = hides or character in BLANK
        assert (printable(character) == character) != hides, hex(ord(character))
    assert PrintableOutput(io.TextIOWrapper(io.BytesIO(), "utf-8")).write("a\x1b") == 2


NAME = "a\n2026-01-01 INFO forged\u2028\u200f"
PROGRAM = """
import logging, sys
from partial_fc.utils.cli import run_command, start
def fail():
    logging.warning(sys.argv[1])
    raise ValueError(sys.argv[1])
start(lambda: run_command(fail))
"""


def test_a_name_makes_no_line_that_looks_like_another(capsys, monkeypatch):
    tables = ["\n".join(make([("x", "y"), (NAME, "1")])) for make in (format_table, partial(markdown_table, "ab"))]
    say(f"left out: {NAME}")
    said = capsys.readouterr().out
    monkeypatch.setattr(sys, "__stderr__", io.StringIO())
    monkeypatch.setattr(sys.__stderr__, "isatty", lambda: True)
    with progress(3, "image", NAME):
        bar = sys.__stderr__.getvalue()
    monkeypatch.setenv(QUIET, "1")
    with progress(3, "image", "quiet"):
        assert "quiet" not in sys.__stderr__.getvalue()
    done = subprocess.run([sys.executable, "-c", PROGRAM, NAME], cwd=ROOT, capture_output=True, text=True)
    assert "WARNING:root:a" in done.stderr and "error: a" in done.stderr
    for text in (said, bar, done.stderr, one_line(NAME), *tables):
        assert "forged" in text and not [line for line in text.splitlines() if line.startswith("2026")]
        assert "\u200f" not in text


SOURCES = [path for folder in ("partial_fc", "mxnet", "pytorch", "tools") for path in (ROOT / folder).rglob("*.py")]
# Calls whose text is escaped already, and files that print no untrusted names.
LINES = re.compile(r"'\\n'\.join\((format_table|markdown_table)\(|printable_lines\(|json\.dumps\(|to_json\(")
OTHER_LINES = {
    "tools/partial_fc_tools/sets/info.py", "tools/partial_fc_tools/planner/command.py",  # numbers, or their JSON
    "tools/partial_fc_tools/ijb/command.py", "partial_fc/training/profiling/report.py",  # tables
    "partial_fc/training/command_line.py",  # the help of a user's task
    "partial_fc/training/run_folder.py",  # of its log's formatter
    "tools/partial_fc_tools/hosts/facts.py",  # JSON, and names of its own, on other hosts
    "partial_fc/utils/cli.py",
    "pytorch/partial_fc_torch/launch.py",  # a number and the name of a signal
}  # fmt: skip


def test_all_messages_are_printed_by_say_and_bars_and_logs_created_where_names_are_escaped():
    found = set()
    for path in (*ROOT.glob("*.py"), *SOURCES):
        name = str(path.relative_to(ROOT))
        calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
        found.update([name] if any(unescaped(name, call) for call in calls) else [])
    assert found <= OTHER_LINES


def unescaped(file, call):
    name = ast.unparse(call.func)
    if name in ("tqdm", "trange", "logging.StreamHandler", "logging.FileHandler", "logging.basicConfig"):
        return file not in ("partial_fc/utils/progress.py", "partial_fc/training/run_folder.py")
    printed = re.fullmatch(r"print|tqdm\.write|warnings\.warn|sys\.(__)?std(out|err)(__)?\.write", name)
    constant = all(isinstance(argument, ast.Constant) for argument in call.args)
    return printed and not constant and not LINES.match(ast.unparse(call.args[0]))


CELLS = {
    **{text: f"'{text}" for text in ("=1+1", "+a", "-a", "@a", "\ta", "=", '=HYPERLINK("x")')},
    # Some spreadsheets also accept full-width and small signs, and signs after invisible characters.
    **{f"{sign}a": f"'{sign}a" for sign in "\uff1d\uff0b\uff0d\uff20\ufe66\ufe62\ufe63\ufe6b"},
    **{
        f"{hidden}=1": f"'{hidden}=1"
        for hidden in (" ", "\n", " \t", "\xa0", "\u3000", "\ufeff", "\u200b\u2060", "\u3164", "\0")
    },
    " \uff1d1": "' \uff1d1",
    "a;=1; @b;-1": "a;'=1;' @b;-1",
    "\ra": r"\ra",
    **{text: text for text in ("-1", "+1.5", "-1e-3", "-inf", " -1", "a=1", "", " ", "ä", " a=1", "\u200ba")},
}


def test_no_text_of_a_csv_file_is_a_formula(tmp_path):
    with open(tmp_path / "a.csv", "w", newline="", encoding="utf-8") as file:
        CsvWriter(file).writerow([*CELLS, -1])
    with open(tmp_path / "a.csv", newline="", encoding="utf-8") as file:
        assert next(csv.reader(file)) == [*CELLS.values(), "-1"]


def test_all_csv_files_have_one_writer():
    assert [path.name for path in SOURCES if re.search(r"csv\.(w|DictW)riter", path.read_text())] == ["tables.py"]


def test_columns_of_numbers_are_aligned_to_the_right():
    rows = [("x", "-1", "1", "", "n"), ("y", "+2.5 %", "a", "-", "3")]
    assert markdown_table("ABCDE", rows)[1] == "|:---|---:|:---|---:|:---|"
    assert format_table([("name", "n"), ("a", "10")], min_widths=(6, 4)) == ["name       n", "a         10"]


@pytest.mark.parametrize("more, fits", [(0, True), (1, False)])
def test_an_object_may_have_the_largest_size(tmp_path, more, fits):
    (tmp_path / "a").write_text('{"a": 1}' + more * " ")
    with nullcontext() if fits else pytest.raises(ValueError, match="more than 8 bytes"):
        assert read_object(str(tmp_path / "a"), 8) == {"a": 1}


def test_json_of_a_training_that_diverged(capsys):
    say_json({"loss": math.nan, "figures": [1.5, -math.inf]})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {"loss": None, "figures": [1.5, None]}
