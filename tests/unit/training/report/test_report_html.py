"""The source of the page: escaped, well-formed, complete, without requests. Its appearance: tests/commands."""

import base64
import hashlib
import json
import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from partial_fc.evaluation.verification import VerificationPoint
from partial_fc.training.report import HardPair, Results, SetResult, formatting, roc_curve, write_page, write_summary
from partial_fc.training.report.page import render
from partial_fc.training.report.pictures import MAX_BYTES

JPEG, PNG = b"\xff\xd8\xff\xe0 jpeg", b"\x89PNG\r\n\x1a\n png"
VOID = {"meta", "link", "img"}
NASTY = "</style><script>alert(1)</script>\"'&amp; <b>"


class Page(HTMLParser):
    """Elements and texts of a page; an unclosed tag is an error."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.elements, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, name, attributes):
        self.elements.append((name, dict(attributes)))
        if name not in VOID:
            self.open.append(name)

    def handle_endtag(self, name):
        assert self.open.pop() == name

    def handle_data(self, data):
        if data.strip() and "style" not in self.open:
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).replace("\N{NARROW NO-BREAK SPACE}", " ").split())

    def all(self, name):
        return [attributes for element, attributes in self.elements if element == name]


def point(update, accuracy=0.9, threshold=1.2):
    return VerificationPoint(update, accuracy, 0.0125, threshold, 0.876, 0.001, 21.5, 14.25, 0.953, 0.75)


def pair(number, same, distance, left=JPEG, right=PNG):
    return HardPair(number, same, distance, left, right)


TWO_POINTS = (point(500, 0.95), point(1000, 0.9))


def a_set(name="lfw", points=TWO_POINTS, hardest=()):
    issame = np.arange(40) % 2 == 0
    distance = np.random.default_rng(2).uniform(0, 3, 40) + ~issame
    return SetResult(name, points, roc_curve(distance, issame), hardest, 6000)


def results(**changes):
    summary = {
        "dataset": "demo",
        "network": "r50",
        "loss": "arcface",
        "ranks": 2,
        "sample_ratio": 0.1,
        "updates": 32000,
        "seconds": 7384.2,
        "samples_per_second": 1604.59,
        "waiting_for_data": 0.0561,
        "skipped_images": 0,
        "final_loss": 2.5,
        "baselines": {"raw_pixels": 0.601},
        "versions": {"mxnet": "1.9.1"},
    }
    lines = [(update, 3.0) for update in range(20, 2001, 20)]
    settings = {"wd": 5e-4, "lr_steps": [1, 2], "fp16": False, "net_act": "", "bank_folder": NASTY}
    return Results("a training", summary, settings, lines, lines, lines, lines, [a_set()], [])._replace(**changes)


def test_all_figures_are_on_the_page():
    page = Page(render(results()))
    for text in (
        "r50 trained with arcface on demo, 32,000 updates, 2 ranks, sample ratio 0.1, 2 h 03 min.",
        "lfw 90.00 % ± 1.25 % TAR at FAR 0.001 87.60 % best 95.00 % at update 500 XNorm 21.50 "
        "dimensions 14.2 train/eval agreement 0.953 pairs 6,000",
        "final loss 2.5000 images per second 1,604.6 waiting for data 5.6 % updates 32,000 time 2 h 03 min",
        "bad images skipped 0 raw pixels 60.10 %",
        "1,000 90.000 % 1.250 % 87.60 % 0.001 1.200 21.50 14.2 0.953 0.8",
        "wd 0.0005 lr_steps [1, 2] fp16 False net_act (empty) bank_folder",
        "mxnet 1.9.1",
    ):
        assert text in page.text
    drawn = [svg["id"] for svg in page.all("svg") if "id" in svg]
    assert drawn == ["accuracy", "roc", "losses", "learning_rates", "speeds", "waiting"]


def test_problems_of_the_training_precede_its_figures():
    wrong = {"problems": {"lfw": ["they have collapsed into a cone"]}, "suggestion": "start again with lr=0.1"}
    page = Page(render(results(summary={**results().summary, **wrong})))
    before, _ = page.text.split("final loss")
    assert "lfw: they have collapsed into a cone. Suggestion: start again with lr=0.1." in before
    assert "collapsed" not in Page(render(results())).text


def test_external_text_is_escaped():
    """Names and settings appear as text everywhere and never create an element."""
    nasty = results(
        title=NASTY,
        settings={NASTY: NASTY, "list": [NASTY]},
        summary={**results().summary, "dataset": NASTY, "versions": {NASTY: NASTY}},
        sets=[a_set(NASTY, hardest=[pair(1, True, 1.5)]), a_set("second")],
        missing=[NASTY],
    )
    page = Page(render(nasty))
    assert not page.all("script")
    assert len(page.all("style")) == 1
    # title and heading, two of each setting and version, one in the lead, missing, card, legends, tables, pairs, charts
    assert sum(text.count(NASTY) for text in page.texts) >= 14
    expected = [name for name, _ in Page(render(results(sets=nasty.sets, missing=["x"]))).elements]
    assert [name for name, _ in page.elements if name not in ("div", "dt", "dd")] == [
        name for name in expected if name not in ("div", "dt", "dd")
    ]


def test_the_page_makes_no_requests():
    hardest = [pair(3, True, 2.0), pair(4, False, 0.5)]
    text = render(results(sets=[a_set(hardest=hardest)]))
    page = Page(text)
    assert len(page.all("img")) == 4
    assert page.all("link") == [{"rel": "icon", "href": "data:,"}]
    for name, attributes in page.elements:
        for key, value in attributes.items():
            assert key not in ("style", "srcset", "action", "background") and not key.startswith("on")
            if key in ("src", "href"):
                assert value.startswith(("data:", "#")), (name, key, value)
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL).group(1)
    assert "url(" not in style and "@import" not in style and "<" not in style
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    (policy,) = (meta["content"] for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; ") and f"style-src 'sha256-{digest}';" in policy


def test_ids_are_unique_and_links_have_targets():
    page = Page(render(results(sets=[a_set(), a_set("cfp_fp")])))
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = [shape["href"][1:] for name in ("a", "use") for shape in page.all(name)]
    assert len(targets) == 5 + 2 * 2  # links to sections, and the dots of two verifications of each set
    assert set(targets) <= set(ids)


def test_unmeasured_figures_are_marked():
    summary = {"dataset": "demo", "network": "r50", "loss": "arcface", "ranks": 1, "sample_ratio": 1.0}
    bare = results(
        summary=summary,
        losses=[],
        speeds=[],
        waiting=[],
        learning_rates=[],
        sets=[],
        settings={},
        missing=["/x/lfw.bin"],
    )
    page = Page(render(bare))
    assert "Not verified because the file does not exist: /x/lfw.bin" in page.text
    assert "No validation set was verified" in page.text
    assert "final loss not measured images per second not measured waiting for data not measured" in page.text
    assert "1 rank," in page.text and not page.all("svg") and not page.all("img")
    assert [link["href"] for link in page.all("a")] == ["#results"]


@pytest.mark.parametrize("nothing", [None, math.nan, math.inf])
def test_missing_numbers(nothing):
    """None, NaN and infinity cause no error and are not shown as figures."""
    empty = VerificationPoint(500, *[nothing] * 9)._replace(far=0.001)
    lines = [(20, nothing), (40, nothing)]
    summary = {**dict.fromkeys(results().summary, nothing), "baselines": {"raw_pixels": nothing}, "versions": {}}
    sets = [a_set(points=[empty]), a_set("never", points=[], hardest=[pair(1, True, 1.5)])]
    page = Page(
        render(results(summary=summary, losses=lines, speeds=lines, waiting=lines, learning_rates=lines, sets=sets))
    )
    assert "lfw not measured ± not measured" not in page.text
    assert "lfw not measured" in page.text and "never not measured" in page.text
    assert ("The final loss is" in page.text) == (nothing is not None)
    assert "Same person 1.500 pair 1" in page.text


@pytest.mark.parametrize(
    "text, expected",
    [
        (formatting.number(1604.591, 1, "images"), "1,604.6 images"),
        (formatting.number(-3e29, 4), "-3e+29"),
        (formatting.number(np.float32(0.5), 2), "0.50"),
        (formatting.number("7"), "not measured"),
        (formatting.percent(0.99717), "99.72 %"),
        (formatting.percent(None), "not measured"),
        (formatting.duration(0.04), "0.0 s"),
        (formatting.duration(59.96), "1 min 00 s"),
        (formatting.duration(3599.6), "1 h 00 min"),
        (formatting.duration(186000), "51 h 40 min"),
        (formatting.setting(""), "(empty)"),
        (formatting.setting(["a", 1.0]), "['a', 1.0]"),
    ],
)
def test_formatting(text, expected):
    assert text.replace(formatting.SPACE, " ") == expected


def test_skipped_images_are_reported():
    assert (
        "Skipped because of read errors: 3 images."
        in Page(render(results(summary={**results().summary, "skipped_images": 3}))).text
    )


def test_only_wrong_pairs_are_shown_as_wrong():
    """At threshold 1.2: of the same pairs 1.5 is wrong, 1.1 is not; of the others all are right."""
    hardest = [pair(7, True, 1.5), pair(1234, True, 1.1), pair(5, False, 1.2), pair(6, False, 1.9)]
    text = Page(render(results(sets=[a_set(hardest=hardest)]))).text
    nearest = "Judged correctly, closest to the threshold:"
    assert f"Same person, judged different 1.500 pair 7 {nearest} 1.100 pair 1,234 Different people" in text
    assert f"Different people, judged the same None. {nearest} 1.200 pair 5 1.900 pair 6" in text
    assert "2 pairs of the same person and 2 of different people, of 6,000; judged the same below 1.200." in text


def test_the_page_stays_small_with_large_pairs():
    huge = [pair(number, number % 2 == 0, 1.0, JPEG + bytes(400_000)) for number in range(50)]
    text = render(results(sets=[a_set(f"set{number}", hardest=huge) for number in range(7)]))
    assert 14 <= len(Page(text).all("img")) < 7 * 100 and len(text) < 1.34 * MAX_BYTES + 500_000


def test_the_page_stays_small_after_a_long_training():
    long = [(update, math.sin(update)) for update in range(100_000)]
    points = [point(update) for update in range(3000)]
    text = render(results(losses=long, speeds=long, waiting=long, learning_rates=long, sets=[a_set(points=points)]))
    assert len(text) < 300_000
    assert "lfw, the last 100 of 3,000 verifications" in Page(text).text


def test_a_path_that_is_not_utf8_is_written(tmp_path):
    odd = b"/data/f\xe9".decode("utf-8", "surrogateescape")
    write_page(str(tmp_path / "report.html"), results(settings={"rec": odd}))
    assert "/data/f?" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_summary_is_the_only_file(tmp_path):
    write_summary(str(tmp_path / "summary.json"), {"updates": 3, "verification": {"lfw": 0.99}})
    assert json.loads((tmp_path / "summary.json").read_text()) == {"updates": 3, "verification": {"lfw": 0.99}}
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]
