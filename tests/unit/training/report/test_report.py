import json

from partial_fc.training.report import draw_curves, write_summary


def test_summary_is_the_only_file(tmp_path):
    write_summary(str(tmp_path / "summary.json"), {"updates": 3, "verification": {"lfw": 0.99}})
    assert json.loads((tmp_path / "summary.json").read_text()) == {"updates": 3, "verification": {"lfw": 0.99}}
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_curves_are_a_png(tmp_path):
    path = tmp_path / "curves.png"
    draw_curves(str(path), "two ranks", [(20, 5.0), (40, 3.0)], {"demo": [(0, 0.6), (40, 0.9)]}, 0.6)
    assert path.read_bytes().startswith(b"\x89PNG")
    draw_curves(str(path), "debug mode has no accuracy", [], {}, None)
    assert path.read_bytes().startswith(b"\x89PNG")
