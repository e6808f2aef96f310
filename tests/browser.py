"""Headless Chromium for tests of pages, driven through chromedriver; without it they skip and say why."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

OPTIONS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --no-proxy-server"
).split()


@contextmanager
def chromium(profile: Path, width: int = 1200, height: int = 900, dark: bool = False) -> Iterator[Any]:
    """A selenium driver with its own profile folder that notes every request; skips without a browser."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="no selenium: pip install selenium")
    program, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if not program or not driver:
        pytest.skip(
            "no browser: install chromium and chromedriver (Debian: apt-get install chromium chromium-driver)"
        )
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for option in (*OPTIONS, f"--window-size={width},{height}", f"--user-data-dir={profile}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver))
    try:
        if dark:
            feature = {"name": "prefers-color-scheme", "value": "dark"}
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        yield browser
    finally:
        browser.quit()


def opened(browser: Any, page: Path) -> int:
    """Open a page and wait until all of its charts are drawn; how many there are."""
    from selenium.webdriver.support.ui import WebDriverWait

    for kind in ("browser", "performance"):
        browser.get_log(kind)  # what the empty first tab did is no concern of the page
    browser.get(page.resolve().as_uri())
    charts = len(browser.find_elements("css selector", "div.chart"))
    drawn = "div.chart.js-plotly-plot[data-drawn] .main-svg:first-child"
    script = f"return document.querySelectorAll('{drawn}').length"
    if charts:
        WebDriverWait(browser, 120).until(lambda b: b.execute_script(script) == charts)
    return charts


def complaints(browser: Any) -> list[str]:
    """What the page wrote to the console as a warning or an error."""
    return [
        entry["message"] for entry in browser.get_log("browser") if entry["level"] in ("WARNING", "SEVERE")
    ]


def requests(browser: Any) -> list[str]:
    """Addresses of everything that the page asked for, its own first; data inside the page do not count."""
    import json

    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [e["params"] for e in events if e["method"] == "Network.requestWillBeSent"]
    own = [
        s["request"]["url"] for s in sent if s["documentURL"].startswith("file:")
    ]  # not the browser's first tab
    return [url for url in own if not url.startswith(("data:", "blob:"))]
