"""Charts: lines at the right positions, gaps for unmeasured values, descriptions for screen readers."""

import math
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from partial_fc.evaluation.verification import VerificationPoint
from partial_fc.training.report import Results, SetResult, roc_curve
from partial_fc.training.report.charts import charts
from partial_fc.training.report.scales import linear
from partial_fc.training.report.svg import (
    COLORS,
    COLORS_PER_DASH,
    DASHES,
    MAX_POINTS,
    Chart,
    Mark,
    Series,
    draw,
    figure,
    look,
)


def a_chart(*lines, marks=()):
    x, y = linear([0, 4], 0, 4), linear([0, 10], 0, 10)
    return Chart("loss", "Loss & more", "from 1 to 2", "update", "loss", x, y, lines, marks)


def line(y, **more):
    return Series("loss", np.arange(len(y), dtype=float), np.array(y, float), **more)


def parsed(chart):
    """Returns the chart parsed by a strict XML parser."""
    return ET.fromstring(draw(chart))


def points_of(path):
    """Returns (x, y) of the commands M, L, H and V of a path, and the number of its parts."""
    points, position = [], [0.0, 0.0]
    for command, numbers in re.findall(r"([MLHVh])([\d. -]*)", path):
        values = [float(number) for number in numbers.split()]
        if command in "ML":
            position = values
        elif command in "HV":
            position = [values[0], position[1]] if command == "H" else [position[0], values[0]]
        if command != "h":
            points.append(tuple(position))
    return points, path.count("M")


def tick_places(svg, horizontal):
    """Returns the positions of the ticks of an axis by label."""
    texts = [text for text in svg.iter("text") if text.get("class") is None]
    chosen = [text for text in texts if (text.get("text-anchor") == "middle") == horizontal]
    return {text.text: float(text.get("x")) if horizontal else float(text.get("y")) - 4 for text in chosen}


def test_points_of_a_line_match_the_ticks():
    svg = parsed(a_chart(line([0, 10, 5, 2.5, 0])))
    points, parts = points_of(svg.find(".//path[@class='line c0 d0']").get("d"))
    across, down = tick_places(svg, True), tick_places(svg, False)
    expected_x = [across[text] for text in "01234"]
    expected_y = [down[text] for text in ("0.0", "10.0", "5.0", "2.5", "0.0")]
    np.testing.assert_allclose(points, np.stack([expected_x, expected_y], axis=1), atol=0.11)
    assert parts == 1 and down["10.0"] < down["0.0"]


def test_a_gap_interrupts_the_line_and_a_point_between_gaps_is_a_dot():
    svg = parsed(a_chart(line([1, math.nan, 5, math.inf, 2])))
    path = svg.find(".//path[@class='line c0 d0']").get("d")
    assert points_of(path)[1] == 3 and path.count("h0") == 3
    assert "nan" not in path and "inf" not in path
    assert len(svg.findall(".//circle")) == 3


def test_steps_go_across_before_they_go_up():
    svg = parsed(a_chart(line([0, 5, 10], steps=True)))
    points, _ = points_of(svg.find(".//path[@class='line c0 d0']").get("d"))
    for (x, y), (x_next, y_next) in zip(points, points[1:]):
        assert (x == x_next) != (y == y_next)
    assert points[0][0] < points[1][0] and points[0][1] == points[1][1]


def test_descriptions_for_screen_readers():
    svg = parsed(a_chart(line([0, 10]), marks=[Mark(6.5, "raw <pixels>"), Mark(2, "here", upright=True)]))
    named = [svg.find(f".//*[@id='{key}']").text for key in svg.get("aria-labelledby").split()]
    assert named == ["Loss & more", "from 1 to 2"] and svg.get("role") == "img"
    assert {"raw <pixels>", "here", "update", "loss"} <= {text.text for text in svg.iter("text")}
    assert [title.text for title in svg.findall(".//g/title")] == ["loss: 0 at 0", "loss: 10 at 1"]


def test_a_long_noisy_line_is_thinned_and_has_its_mean():
    noise = np.random.default_rng(0).uniform(0, 10, 30000)
    noise[12345] = 10.0
    long = Series("loss", np.linspace(0, 4, 30000), noise)
    html = figure(a_chart(long))
    pale, mean = (points_of(path)[0] for path in re.findall(r'<path class="line[^"]*" d="([^"]+)"', html))
    assert 300 < len(pale) <= MAX_POINTS and len(mean) == 100
    highest = tick_places(parsed(a_chart(long)), False)["10.0"]
    assert min(y for _, y in pale) == pytest.approx(highest, abs=0.11)
    assert "Pale: all values" in html and "Pale" not in figure(a_chart(line([1, 2])))


def test_looks_differ():
    assert len({look(number) for number in range(COLORS * DASHES)}) == COLORS * DASHES
    dashes = [look(number).split()[1] for number in range(COLORS)]
    assert max(dashes.count(dash) for dash in dashes) <= COLORS_PER_DASH


def results(**changes):
    """Returns an empty training with ``changes``."""
    empty = Results("t", {}, {}, losses=[], speeds=[], waiting=[], learning_rates=[], sets=[], missing=[])
    return empty._replace(**changes)


NO_ROC = (np.zeros(0), np.zeros(0))


def a_set(name="lfw", points=(), roc=NO_ROC):
    return SetResult(name, list(points), roc, [], 20)


def point(update, accuracy):
    return VerificationPoint(update, accuracy, 0.01, 1.2, 0.9, 0.001, 20.0, 14.0, 0.95, 1.0)


def test_only_what_was_measured_is_drawn():
    assert charts(results()) == []
    assert charts(results(losses=[(20, None), (40, math.nan)], sets=[a_set(points=[point(20, math.nan)])])) == []
    drawn = charts(results(losses=[(20, 3.0)], waiting=[(20, None), (40, 0.25)], sets=[a_set(points=[point(9, 0.5)])]))
    assert [chart.key for chart in drawn] == ["accuracy", "loss", "waiting"]


def test_description_of_a_chart():
    losses = [(20, 50.0), (40, 4.25), (60, None), (80, 5.5)]
    sets = [a_set(points=[point(40, 0.75), point(80, 0.9967), point(90, 0.99)])]
    accuracy, loss = charts(results(losses=losses, sets=sets))
    assert (
        loss.description == "cross-entropy: 50.0000 at update 20, 5.5000 at update 80; lowest 4.2500, highest 50.0000."
    )
    assert accuracy.description == "lfw: first 75.00 %, last 99.00 %, best 99.67 %."


def test_the_roc_begins_at_far_zero():
    """Same at 1, 2, 4; different at 3, 5: TAR 2/3 at FAR 0, all at FAR 1/2."""
    roc = roc_curve(np.array([1.0, 2, 4, 3, 5]), np.array([True, True, True, False, False]))
    (chart,) = charts(results(sets=[a_set(roc=roc), a_set("empty")]))
    (curve,) = chart.series
    np.testing.assert_allclose(curve.x, [0, 0.5, 0.5, 1])
    np.testing.assert_allclose(curve.y, [200 / 3, 200 / 3, 100, 100])
    assert chart.x.log and chart.x.low == 0.25 and curve.steps
    assert chart.description == "lfw: TAR 66.67 % at FAR 0."


def test_a_set_has_one_look_in_every_chart():
    roc = roc_curve(np.array([1.0, 2, 3]), np.array([True, False, False]))
    sets = [a_set("a", [point(9, 0.5)]), a_set("b", roc=roc), a_set("c", [point(9, 0.6)], roc)]
    accuracy, curve = charts(results(sets=sets))
    assert [(series.name, series.look) for series in accuracy.series] == [("a", 0), ("c", 2)]
    assert [(series.name, series.look) for series in curve.series] == [("b", 1), ("c", 2)]
    assert accuracy.title != curve.title and 'class="legend"' in figure(curve)


def test_the_baseline_is_drawn_with_the_accuracy():
    sets = [a_set(points=[point(9, 0.95)])]
    (chart,) = charts(results(summary={"baselines": {"raw_pixels": 0.61, "untrained": 0.5}}, sets=sets))
    assert [(mark.value, mark.text) for mark in chart.marks] == [(61.0, "raw pixels")]
    assert chart.y.low <= 61 and chart.y.high <= 100
