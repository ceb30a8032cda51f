"""The source of the page: escaped, well-formed, complete, without requests. Its appearance: tests/commands."""

import base64
import hashlib
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from made_up_training import JPEG, PNG, SETTINGS, a_set, a_training, point
from partial_fc.training.report import write_report
from partial_fc.training.report.formatting import duration
from partial_fc.training.report.page import render
from partial_fc.training.report.pictures import MAX_BYTES
from partial_fc.training.results import SetResult
from partial_fc.training.tasks import Evaluation

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


def test_all_figures_are_on_the_page(tmp_path):
    settings = {**SETTINGS, "lr_steps": [1, 2], "fp16": False, "net_act": "", "bank_folder": NASTY}
    result = a_training(settings=settings, sets={"lfw": a_set(tmp_path)}, baselines={"raw_pixels": 0.601})
    page = Page(render(result._replace(missing=["/sets/cfp_fp.bin"])))
    for text in (
        "r50 trained with arcface on demo, 32,000 updates, 2 ranks, sample ratio 0.1, 2 h 03 min.",
        "lfw 90.00 % ± 1.25 % TAR at FAR 0.001 87.60 % measured FAR 0.067 % insightface's TAR 88.10 % "
        "best 95.00 % at update 500 XNorm 21.50 dimensions 14.2 train/eval agreement 0.953 pairs 40",
        "final loss 3.0000 samples per second 1,600.0 waiting for data 5.6 % updates 32,000 time 2 h 03 min",
        "bad samples skipped 0 raw pixels 60.10 %",
        "lfw: too few impostor pairs for FAR 0.001: 20 instead of at least 1,000.",
        "1,000 90.000 % 1.250 % 87.60 % 0.001 0.067 % 88.10 % 1.200 21.50 14.2 0.953 0.8",
        "wd 0.0005 lr_steps [1, 2] fp16 False net_act (empty) bank_folder",
        "mxnet 1.9.1",
        "does not exist: /sets/cfp_fp.bin",
    ):
        assert text in page.text
    drawn = [svg["id"] for svg in page.all("svg") if "id" in svg]
    assert drawn == ["accuracy", "roc", "losses", "learning_rates", "speeds", "waiting"]


class Words(Evaluation):
    figures, shares = ("rank1", "loss", "rank5"), ("rank1", "rank5")


def words(count):
    """A set of a user's task, whose 120th verification was the best."""
    points = [Words().point_type(n, min(n, 240 - n) / 1000, 5 - n / 100, 0.5, 1.0) for n in range(1, count + 1)]
    return {"words": SetResult(Words(), points, ["one", "two"])}


def test_settings_at_their_defaults_are_folded():
    settings = {**SETTINGS, "lr": 0.4, "fp16": False}
    page = render(a_training(settings=settings, defaults={"lr": 0.1, "fp16": False, "network": "small"}))
    shown, folded = page.partition('id="settings"')[2].split("<details>")
    folded, _ = folded.split("</details>")
    assert "<dt>lr</dt>" in shown and "<dt>network</dt>" in shown and "fp16" not in shown
    assert "1 setting at the default" in folded and "<dt>fp16</dt>" in folded
    assert "Heads" not in page and "<details>" not in render(a_training())


def test_figures_of_a_users_task():
    text = Page(render(a_training(sets=words(130), updates=130, skipped=3, baselines={"counts": 0.06}))).text
    for part in (
        "130 of 32,000 updates so far",
        "words: one. words: two. Suggestion: start again with lr=0.1. Skipped because of read errors: 3 samples.",
        "words 11.00 % best 12.00 % at update 120 loss 3.7000 rank5 50.00 % final",
        "bad samples skipped 3 counts 6.00 %",
        "words, the last 100 of 130 verifications update rank1 loss rank5 seconds 31 3.10 % 4.6900 50.00 % 1.0",
        "130 11.00 % 3.7000 50.00 % 1.0 ",
    ):
        assert part in text, part
    fine = Page(render(a_training(sets={"words": words(100)["words"]._replace(problems=[])}))).text
    assert not re.search("Suggestion|read errors|the last 100", fine)
    assert "rank5 seconds 1 0.10 % " in fine


@pytest.mark.parametrize("seconds, text", [(59.94, "59.9 s"), (59.97, "1 min 00 s"), (3599.6, "1 h 00 min")])
def test_duration(seconds, text):
    assert duration(seconds).replace("\N{NARROW NO-BREAK SPACE}", " ") == text


def test_external_text_is_escaped(tmp_path):
    """Names and settings appear as text everywhere and never create an element."""
    plain = {"folder": "models/x", "settings": {**SETTINGS, "x": "x", "list": ["x"], "dataset": "x"}}
    plain |= {"versions": {"x": "x"}, "sets": {"x": a_set(tmp_path), "second": a_set(tmp_path)}, "missing": ["x"]}
    nasty = {"folder": f"models/{NASTY.replace('/', '')}", "versions": {NASTY: NASTY}, "missing": [NASTY]}
    nasty["settings"] = {**SETTINGS, NASTY: NASTY, "list": [NASTY], "dataset": NASTY}
    nasty["sets"] = {NASTY: plain["sets"]["x"], "second": plain["sets"]["second"]}
    page = Page(render(a_training(**nasty)))
    assert [name for name, _ in page.elements] == [name for name, _ in Page(render(a_training(**plain))).elements]
    # two of each setting and version, one in the lead, missing, card, legends, tables, pairs, charts
    assert sum(text.count(NASTY) for text in page.texts) >= 14


def test_the_page_makes_no_requests(tmp_path):
    text = render(a_training(sets={"lfw": a_set(tmp_path)}))
    page = Page(text)
    assert len(page.all("img")) == 2 * 16
    assert page.all("link") == [{"rel": "icon", "href": "data:,"}]
    for name, attributes in page.elements:
        for key, value in attributes.items():
            assert key not in ("style", "srcset", "action", "background") and not key.startswith("on")
            if key in ("src", "href"):
                assert value.startswith(("data:", "#")), (name, key, value)
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL).group(1)
    assert "url(" not in style and "@import" not in style and "<" not in style
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert [meta["content"] for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"] == [
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    ]


def test_only_wrong_pairs_are_shown_as_wrong(tmp_path):
    """At threshold 1.2: of the same pairs 1.5 is wrong, 1.1 is not; of the others all are right."""
    distance, issame = np.array([1.1, 1.9, 1.5, 1.2]), np.array([True, False, True, False])
    measured = a_set(tmp_path, [point(500, threshold=3.0), point(1000)], distance, issame)
    page = Page(render(a_training(sets={"lfw": measured})))
    nearest = "Judged correctly, closest to the threshold:"
    assert f"Same person, judged different 1.500 pair 2 {nearest} 1.100 pair 0 Different people" in page.text
    assert f"Different people, judged the same None. {nearest} 1.200 pair 3 1.900 pair 1" in page.text
    assert "2 pairs of the same person and 2 of different people, out of 4." in page.text
    assert [image["alt"] for image in page.all("img")[:2]] == ["pair 2, left", "pair 2, right"]
    assert page.all("img")[1]["src"].endswith(base64.b64encode(PNG).decode())


def test_the_page_stays_small_with_large_pairs(tmp_path):
    huge = a_set(tmp_path, images=[JPEG + bytes(250_000)])
    text = render(a_training(sets={f"set{number}": huge for number in range(7)}))
    assert len(Page(text).all("img")) == 7 * 2 * 2 and len(text) < 1.34 * MAX_BYTES + 500_000


def test_a_path_that_is_not_utf8_is_written(tmp_path):
    odd = b"/data/f\xe9".decode("utf-8", "surrogateescape")
    write_report(a_training(folder=str(tmp_path), settings={**SETTINGS, "rec": odd}))
    assert "/data/f\\udce9" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curves.json", "report.html"]
