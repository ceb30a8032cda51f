"""report.html in a browser: complete and legible on a phone and a screen, light and dark, without requests.

The browser sends every request to the test's proxy.
"""

import html
import json
import re
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import cv2
import numpy as np
import pytest
from conftest import LIMIT

from made_up_training import SETTINGS, a_set, a_training, point
from partial_fc.training.report import write_report
from partial_fc.training.results import LossPoint

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --force-device-scale-factor=1 "
    "--enable-logging=stderr --proxy-bypass-list=<-loopback>"
).split()
SCHEMES = {"dark": 0, "light": 1}  # Blink's numbers
PAGE, FRAME = "http://report.test/report.html", "http://report.test/phone.html"
# Chromium windows are at least 500 pixels wide, so the phone is a frame in a window.
PHONE = 400
IN_A_PHONE = f"""<!doctype html><link rel="icon" href="data:,">
<style>:root {{ color-scheme: light dark; }} * {{ margin: 0; border: 0; }}</style>
<iframe src="report.html" width="{PHONE}" height="5000"></iframe>"""
# Chromium's own requests to Google for time, accounts and updates.
BROWSER_REQUESTS = re.compile(r"(https?://)?([\w-]+\.)*(google|googleapis|gvt1|gstatic)\.com[:/]")
LOG_CHARTS = ("losses", "learning_rates", "speeds", "waiting")
# Script for the head of the page; it writes its measurements into the document, which the browser prints.
MEASURE = f"<script>{Path(__file__).with_name('measure_page.js').read_text()}</script>"


class Proxy(BaseHTTPRequestHandler):
    """The browser's proxy: the server has ``pages`` by address and records the ``requests``."""

    def do_GET(self):
        self.server.requests.append(self.path)
        content = self.server.pages.get(self.path)
        self.send_response(404 if content is None else 200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(content or b"")

    do_CONNECT = do_GET

    def log_message(self, *_):
        """Logs nothing; tests inspect ``requests``."""


@pytest.fixture
def show(tmp_path):
    """Opens a page (str) at the address PAGE; returns (final document, requests, browser's output)."""
    browser = next(filter(None, map(shutil.which, NAMES)), None)
    if browser is None:
        pytest.skip("no chromium or Chrome is installed (bash setup-utils/install-test-tools.sh)")
    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()

        def open_page(text, phone=False, scheme="light", height=900):
            proxy.pages, proxy.requests = {PAGE: text.encode(), FRAME: IN_A_PHONE.encode()}, []
            number = len(list(tmp_path.glob("profile*")))
            done = subprocess.run(
                [
                    browser,
                    *FLAGS,
                    f"--user-data-dir={tmp_path / f'profile{number}'}",
                    f"--proxy-server=http://127.0.0.1:{proxy.server_port}",
                    f"--window-size=1200,{height}",
                    f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}",
                    "--dump-dom",
                    FRAME if phone else PAGE,
                ],
                capture_output=True,
                text=True,
                timeout=LIMIT,
            )
            assert done.returncode == 0, done.stderr
            requests = [address for address in proxy.requests if not BROWSER_REQUESTS.match(address)]
            return done.stdout, requests, done.stderr

        yield open_page
        proxy.shutdown()


def encoded(kind, color, shape=(112, 112)):
    """Returns an image of one color (B, G, R)."""
    return cv2.imencode(kind, np.full((*shape, 3), color, np.uint8))[1].tobytes()


def random_set(folder, gap, rng):
    issame = np.arange(600) % 2 == 0
    distance = rng.normal(np.where(issame, 1.0, 1.0 + gap), 0.3)
    images = [
        encoded(".png", (255, 0, 255)),
        encoded(".jpg", (30, 90, 200)),
        encoded(".webp", (90, 200, 30), (250, 250)),
    ]
    points = [point(500 * step, 1 - 0.3 / step / gap, threshold=1.4321) for step in range(1, 9)]
    return a_set(folder, points, distance, issame, images)


@pytest.fixture
def write(tmp_path):
    """Writes the page of a training with ``changes`` and returns its text."""

    def write_page(waits=True, **changes):
        rng = np.random.default_rng(7)
        losses = [
            LossPoint(
                update,
                float("nan") if 900 < update < 1200 else 40 / update**0.3,
                float(rng.normal(12345, 300)),
                float(rng.uniform(0, 0.1)) if waits else None,
                0.1 if update < 1500 else 0.01,
            )
            for update in range(20, 4001, 20)
        ]
        settings = {f"setting_{number}": number for number in range(40)}
        gaps = {"lfw": 2.0, "cfp_fp": 1.2, "agedb_30": 0.8, "calfw": 0.6}
        result = a_training(
            folder=str(tmp_path),
            settings={**SETTINGS, **settings, "pretrained": "/a_long_path_without_a_blank/" * 8},
            losses=losses,
            sets={name: random_set(tmp_path, gap, rng) for name, gap in gaps.items()},
            baselines={"raw_pixels": 0.601, "untrained": 0.55},
            skipped=3,
            missing=["/train_tmp/glint360k/" + "a_long_name_" * 12 + ".bin"],
        )
        write_report(result._replace(**changes))
        return (tmp_path / "report.html").read_text(encoding="utf-8")

    return write_page


def with_script(page, script):
    """Returns the page with a script in its head, and a policy that allows it."""
    nothing = "default-src 'none';"
    assert page.count(nothing) == 1
    opened = page.replace(nothing, f"{nothing} script-src 'unsafe-inline';")
    return opened.replace('<meta name="viewport"', script + '<meta name="viewport"', 1)


def measure(show, page, phone, **how):
    """Returns the measurements of MEASURE; checks that there were no requests and no messages."""
    document, requests, lines = show(with_script(page, MEASURE), phone, **how)
    measured = json.loads(html.unescape(re.search(r'<pre id="measured">(.*?)</pre>', document, re.DOTALL).group(1)))
    assert requests == ([FRAME, PAGE] if phone else [PAGE])
    assert measured["wrong"] == [] and "CONSOLE" not in lines
    return measured


def overlap(first, second):
    """Returns whether two boxes (left, top, right, bottom) overlap by more than a pixel."""
    across = min(first[2], second[2]) - max(first[0], second[0])
    down = min(first[3], second[3]) - max(first[1], second[1])
    return across > 1 and down > 1


def check_legible(measured):
    """Checks contrast by WCAG AA, text sizes, that texts are in the window, and that chart labels do not overlap."""
    assert measured["document"] <= measured["width"]
    assert len(measured["texts"]) > 60
    for text in measured["texts"]:
        assert text["contrast"] >= 4.5, text
        assert text["size"] >= 9, text
        assert text["scrolls"] or 0 <= text["box"][0] < text["box"][2] <= measured["width"], text
    for chart, box in measured["charts"].items():
        labels = [text for text in measured["texts"] if text["chart"] == chart]
        assert len(labels) > 6
        for number, label in enumerate(labels):
            assert box[0] - 1 <= label["box"][0] and label["box"][2] <= box[2] + 1, label
            assert box[1] - 1 <= label["box"][1] and label["box"][3] <= box[3] + 1, label
            assert not [other for other in labels[:number] if overlap(label["box"], other["box"])], label


@pytest.mark.parametrize("phone, scheme", [(True, "dark"), (False, "light")])
def test_a_page_is_complete_and_legible(show, write, phone, scheme):
    measured = measure(show, write(), phone, scheme=scheme, height=5000)
    assert (measured["width"], measured["dark"]) == (PHONE if phone else 1200, scheme == "dark")
    check_legible(measured)
    assert len(measured["images"]) == 4 * 16 * 2
    assert {natural for natural, _ in measured["images"]} == {112, 250}
    assert all(shown > 50 for _, shown in measured["images"])
    assert set(measured["charts"]) == {"accuracy", "roc", *LOG_CHARTS}
    drawn = [line["chart"] for line in measured["lines"]]
    assert {chart: drawn.count(chart) for chart in drawn} == {"accuracy": 4, "roc": 4, **dict.fromkeys(LOG_CHARTS, 1)}
    assert all(line["length"] > 100 for line in measured["lines"])
    looks = {(line["stroke"], line["dashes"]) for line in measured["lines"] if line["chart"] == "roc"}
    assert len(looks) == 4 and "none" not in {stroke for stroke, _ in looks}
    assert (max(map(int, re.findall(r"\d+", measured["paper"]))) < 60) == measured["dark"]


INTRUDER = '<img src="http://elsewhere.test/x.png"><script>document.title = "run"</script>'


def test_the_policy_forbids_requests_and_scripts(show, write):
    """Adds an image and a script to the page, as a missing escape would."""
    page = write().replace("<main>", "<main>" + INTRUDER, 1)
    document, requests, lines = show(page)
    assert requests == [PAGE]
    assert "<title>run</title>" not in document and "CONSOLE" in lines
