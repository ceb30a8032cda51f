"""Charts: lines at the right positions, gaps, ticks, descriptions; the ROC and the hardest pairs."""

import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from made_up_training import TWO_POINTS, a_set, a_training
from partial_fc.training.report.charts import Chart, Line, roc_curve, training_charts
from partial_fc.training.report.drawing import LINE_WIDTH, line_style, svg, write_png
from partial_fc.training.report.pictures import hardest_pairs
from partial_fc.training.results import LossPoint, SetResult
from partial_fc.training.tasks import Evaluation


def a_chart(y, x=None, **more):
    y = np.array(y, float)
    line = Line("a <line>", np.arange(len(y), dtype=float) if x is None else np.array(x, float), y, 0)
    return Chart("loss", "Loss & more", "cross-entropy", [line], **more)


def paths(drawn):
    """The commands of the lines."""
    return [path.get("d") for path in drawn.iter("path") if path.get("stroke-width") == str(LINE_WIDTH)]


def points(path):
    """The points (N, 2) of a path."""
    return np.array(re.findall(r"[ML] ([\d.]+) ([\d.]+)", path), float)


def ticks(drawn, anchor):
    """{label: position} of an axis; the anchor of labels is ``middle`` on the x axis, ``end`` on the y axis."""
    texts = [text for text in drawn.iter("text") if text.get("text-anchor") == anchor and text.text != "update"]
    return {text.text: float(text.get("x" if anchor == "middle" else "y")) for text in texts}


def test_points_of_a_line_match_the_ticks():
    drawn = svg(a_chart([0, 10, 5, 2.5, 0]))
    (path,) = paths(drawn)
    across, down = ticks(drawn, "middle"), ticks(drawn, "end")
    x, y = points(path).T
    np.testing.assert_allclose(x, [across[text] for text in "01234"], atol=0.11)
    slope, offset = np.polyfit([0, 10, 5, 2.5, 0], y, 1)
    np.testing.assert_allclose(y, slope * np.array([0, 10, 5, 2.5, 0]) + offset, atol=0.11)
    assert slope < 0
    # Texts stand below the height of their tick, all by the same amount.
    below = [position - (slope * float(text) + offset) for text, position in down.items()]
    assert len(down) == 6 and 0 < min(below) and max(below) - min(below) < 0.3 and max(below) < 6


def test_the_chart_is_text_in_attributes_of_the_page():
    drawn = svg(a_chart([0, 10], marks={"raw <pixels>": 6.5}))
    assert drawn.get("aria-label").startswith("Loss & more, cross-entropy: a <line>: 0 at update 0, 10 at update 1;")
    assert {"raw <pixels>", "update", "cross-entropy"} <= {text.text for text in drawn.iter("text")}
    for element in drawn.iter():
        assert not {"style", "transform"} & set(element.keys()) and "}" not in "".join([element.tag, *element.keys()])
    assert ElementTree.tostring(drawn) == ElementTree.tostring(svg(a_chart([0, 10], marks={"raw <pixels>": 6.5})))


def test_a_long_noisy_line_keeps_its_extremes_and_has_its_mean():
    noise = np.random.default_rng(0).uniform(0, 9, 30000)
    noise[12345] = 10.0
    drawn = svg(a_chart(noise, x=20 * np.arange(1, 30001)))
    (pale,) = (path.get("d") for path in drawn.iter("path") if path.get("stroke-opacity") == "0.4")
    (mean,) = paths(drawn)
    top, bottom = (edge(points(pale)[:, 1]) for edge in (min, max))
    assert top == pytest.approx(26, abs=0.6)  # the upper end of the axis
    values = noise.max() - (points(mean)[:, 1] - top) * np.ptp(noise) / (bottom - top)
    np.testing.assert_allclose(values, noise.reshape(100, 300).mean(axis=1), atol=0.05)
    assert len(ElementTree.tostring(drawn)) < 60_000


@pytest.mark.parametrize("count, dots, pale", [(40, 40, 0), (41, 0, 0), (500, 0, 0), (501, 0, 1)])
def test_a_line_has_dots_or_a_mean_by_its_number_of_points(count, dots, pale):
    drawn = svg(a_chart(np.arange(count) % 7))
    titles = [title.text for title in drawn.iter("title")]
    assert titles == [f"a <line>: {number % 7} at {number}" for number in range(dots)]
    assert sum(path.get("stroke-opacity") == "0.4" for path in drawn.iter("path")) == pale


@pytest.mark.parametrize("top, highest", [(math.inf, 105), (100, 100)])
def test_an_axis_of_shares_ends_at_100(top, highest):
    assert max(map(float, ticks(svg(a_chart([80, 101], top=top)), "end"))) == highest


def test_a_gap_interrupts_the_line_and_an_isolated_point_has_a_dot():
    (path,) = paths(svg(a_chart([1, 2, math.nan, 5, 6])))
    assert path.count("M") == 2 and "nan" not in path
    drawn = svg(a_chart([*range(50), math.nan, 5, math.nan, *range(50)]))
    assert [title.text for title in drawn.iter("title")] == ["a <line>: 5 at 51"]


def test_lines_of_one_chart_differ():
    assert len({str(line_style(number)) for number in range(24)}) == 24
    line = Line("dotted", np.arange(2.0), np.arange(2.0), 6)
    drawn = svg(Chart("loss", "Loss", "", [line]))
    assert any(
        "stroke-dasharray" in path.keys() for path in drawn.iter("path") if path.get("stroke") == line_style(6)[0]
    )


def test_only_what_was_measured_is_drawn():
    assert training_charts(a_training(losses=[])) == []
    drawn = training_charts(a_training(losses=[LossPoint(20, 3.0, 9.0, None), LossPoint(40, 2.0, 9.0, 0.25)]))
    assert [chart.key for chart in drawn] == ["losses", "speeds", "waiting"]
    np.testing.assert_array_equal(drawn[2].lines[0].y, [math.nan, 25])


def test_the_roc_begins_at_far_zero():
    """Same at 1, 2, 4; different at 3, 5: TAR 2/3 at FAR 0, all at FAR 1/2; the log axis begins at 1/4."""
    measured = a_set(distance=np.array([1.0, 2, 4, 3, 5]), issame=np.array([True, True, True, False, False]))
    _, chart = training_charts(a_training(sets={"lfw": measured}, losses=[]))
    assert chart.description().endswith("lfw: TAR 66.67 % at FAR 0.")
    drawn = svg(chart)
    (path,) = paths(drawn)
    (x0, y0), (x1, y1), (x2, y2), _ = dict.fromkeys(map(tuple, points(path)))
    assert (y0, x1) == (y1, x2) and x0 < x1 and y2 < y1  # a step goes across, then up
    one = ticks(drawn, "middle")["1"]
    assert x1 == pytest.approx((x0 + one) / 2, abs=0.11)


@pytest.mark.parametrize("names", [["$a_set_$", "b$"], []])  # debug mode has no accuracy
def test_curves_are_a_png(names, tmp_path):
    charts = training_charts(a_training(sets={name: a_set() for name in names}))[:2]
    write_png(str(tmp_path / "curves.png"), "$no formula_", charts)
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("pairs, levels", [(2, 5), (50, 7), (300, 40), (300, 10**6)])
def test_roc_matches_the_definition(pairs, levels):
    """At most ``levels`` distinct distances: with few, most are tied."""
    rng = np.random.default_rng(pairs + levels)
    issame = np.arange(pairs) % 2 == 0
    distance = rng.integers(0, levels, pairs) / levels + np.where(issame, 0, 0.3)
    thresholds = [*np.unique(distance), np.inf]
    expected = [(np.mean(distance[~issame] < each), np.mean(distance[issame] < each)) for each in thresholds]
    np.testing.assert_array_equal(np.transpose(roc_curve(distance, issame)), expected)


def test_the_worst_pairs_come_first_then_the_nearest():
    """At 1.5 pair 1 is a false reject; 6 and 3 are false accepts, and 7 is nearest to being one."""
    distance = np.array([0.1, 1.9, 1.2, 0.8, 1.2, 3.0, 0.4, 1.6])
    issame = np.array([True, True, True, False, True, False, False, False])
    same, different = hardest_pairs(distance, issame, 1.5, 3)
    assert same.tolist() == [1, 2, 4]  # of equal distances the lower index first
    assert different.tolist() == [6, 3, 7]


class Rank1(Evaluation):
    figures, shares = ("rank1",), ("rank1",)


class Odds(Evaluation):
    figures = ("rank1",)


def measured(evaluation):
    return SetResult(evaluation, [evaluation.point_type(update, 0.5, 1.0) for update in (1, 2)], [])


def test_figures_and_baselines_have_one_unit(tmp_path):
    """Baselines are those of the first set; a chart has percent if the figure is a share in all of its sets."""
    baselines = {"raw_pixels": 0.6, "untrained": 0.4}
    last = TWO_POINTS[1]._replace(far=0.01)
    sets = {"lfw": a_set(tmp_path, [TWO_POINTS[0], last]), "words": measured(Rank1())}
    pairs, words, roc = training_charts(a_training(sets=sets, losses=[], baselines=baselines))
    assert (pairs.marks, words.marks, roc.marks) == ({"raw pixels": 60.0}, {}, {"FAR 0.01": 0.01})
    assert words.lines[0].y.tolist() == [50.0, 50.0] and words.top == 100
    mixed = {"a": measured(Rank1()), "b": measured(Odds())}
    (chart,) = training_charts(a_training(sets=mixed, losses=[], baselines=baselines))
    assert [line.y.tolist() for line in chart.lines] == [[0.5, 0.5]] * 2 and chart.marks == {"raw pixels": 0.6}
