"""Tables of text."""

from partial_fc.utils.tables import format_table, markdown_table


def test_columns_are_as_wide_as_their_longest_cell():
    lines = format_table([("part", "MiB", "ms"), ("weights", "1,024.0", ""), ("bias", "8", "0.25")])
    assert lines == ["part         MiB    ms", "weights  1,024.0", "bias           8  0.25"]


def test_gap_and_minimum_widths():
    assert format_table([("a", "b"), ("c", "12345")], gap=1, min_widths=(3, 4, 9)) == ["a       b", "c   12345"]
    assert format_table([("a", "b")], min_widths=(3,)) == ["a    b"]


def test_markdown_aligns_numbers_to_the_right():
    lines = markdown_table(("1:1", "TAR", "change", "bank"), [("1", "99.5", "-", "GPU"), ("2", "-", "+3 %", "4 files")])
    assert lines[:2] == ["| 1:1 | TAR | change | bank |", "|:---|---:|---:|:---|"]
    assert lines[2:] == ["| 1 | 99.5 | - | GPU |", "| 2 | - | +3 % | 4 files |"]
