"""Pages as HTML, and in a headless Chromium, which the fixture `browser` opens."""

import base64
import json
import os
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from jobs import free_port

ARTIFACTS = Path(os.environ.get("NAC_ARTIFACTS") or Path(__file__).parents[1] / "artifacts")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--force-color-profile=srgb",
)  # fmt: skip


VOID = {"meta", "link", "img", "br", "hr", "input"}


class Seen(HTMLParser):
    """Tags with their attributes, and text; elements must close in order, and none runs code."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.text = [], [], ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        assert not any(name.startswith("on") for name, _ in attrs)
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("script", "style"):
            self.text += data + " "

    def all(self, name):
        return [attributes for tag, attributes in self.tags if tag == name]


def chromium(profile):
    """A browser with its logs; skips the test where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    binary = shutil.which("chromium") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("no chromium and chromedriver on the path")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    # a named driver: selenium must not download one
    return webdriver.Chrome(options, webdriver.ChromeService(driver, port=free_port()))


def show(browser, url, width):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(url)


def check_width(browser, width):
    widths = browser.execute_script(
        "return [document.documentElement.scrollWidth, document.body.scrollWidth, innerWidth]"
    )
    assert max(widths) == width, "the body scrolls sideways"


def keep_picture(browser, name):
    """The whole page from top to bottom, kept for people to look at."""
    size = "return [document.documentElement.clientWidth, document.documentElement.scrollHeight]"
    width, height = browser.execute_script(size)
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    how = {"format": "png", "captureBeyondViewport": True, "clip": clip}
    picture = browser.execute_cdp_cmd("Page.captureScreenshot", how)
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    (ARTIFACTS / name).write_bytes(base64.b64decode(picture["data"]))
    return ARTIFACTS / name


def requests(browser, page):
    """What this page asked for: the browser's log also has what the page before it did, late."""
    events = [json.loads(e["message"])["message"] for e in browser.get_log("performance")]
    sent = [e["params"] for e in events if e["method"] == "Network.requestWillBeSent"]
    return [e["request"]["url"] for e in sent if e["documentURL"].startswith(page)]
