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
def chromium(profile: Path) -> Iterator[Any]:
    """A selenium driver with its own profile folder that notes every request; skips without a browser."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="no selenium: pip install selenium")
    program, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if not program or not driver:
        pytest.skip(
            "no browser: install chromium and chromedriver (Debian: apt-get install chromium chromium-driver)"
        )
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for option in (*OPTIONS, f"--user-data-dir={profile}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver))
    try:
        yield browser
    finally:
        browser.quit()


def looked_at(browser: Any, width: int, dark: bool = False, height: int = 900) -> None:
    """Set the page's size in pixels, also below a window's minimum, and a light or dark mode."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


def opened(browser: Any, page: Path) -> int:
    """Open a page; how many charts it shows."""
    for kind in ("browser", "performance"):
        browser.get_log(kind)  # what the empty first tab did is no concern of the page
    browser.get(page.resolve().as_uri())
    seen = "return [...document.querySelectorAll('.chart svg')].filter(s => s.getBoundingClientRect().height)"
    return len(browser.execute_script(seen))


def overflowing(browser: Any) -> list[str]:
    """Texts and drawings that reach beyond the right edge of the window, but for tables, which scroll."""
    script = """
        const out = element => element.getBoundingClientRect().right > innerWidth + 1;
        const all = [...document.querySelectorAll('main *')].filter(e => !e.closest('.table') && out(e));
        const wide = document.documentElement.scrollWidth > innerWidth ? ['the page itself'] : [];
        return [...wide, ...all.map(e => `${e.tagName} ${e.textContent.slice(0, 40)}`)];
    """
    return [str(one) for one in browser.execute_script(script)]


def complaints(browser: Any) -> list[str]:
    """What the page wrote to the console as a warning or an error."""
    return [
        entry["message"] for entry in browser.get_log("browser") if entry["level"] in ("WARNING", "SEVERE")
    ]


def requests(browser: Any) -> list[str]:
    """Addresses of all requests of the page, its own first; data inside the page do not count."""
    import json

    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [e["params"] for e in events if e["method"] == "Network.requestWillBeSent"]
    own = [
        s["request"]["url"] for s in sent if s["documentURL"].startswith("file:")
    ]  # not the browser's first tab
    return [url for url in own if not url.startswith(("data:", "blob:"))]
