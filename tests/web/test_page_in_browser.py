"""The page in headless Chromium: every control, widths and lights, the keyboard, labels and the console."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("multipart", reason="no python-multipart")
import uvicorn

from neuralpower.web.server import application, bound
from neuralpower.web.site import Site
from neuralpower.web.view import Uploads
from tests.browser import chromium, complaints, looked_at, overflowing
from tests.web.test_server import TINY

FIRST = "model=zoo:deep_mnist&device=nvidia-t4&phase=forward&batch=4"
SHOWN = "document.getElementById('answer').dataset.query"
WANTED = "new URLSearchParams(new FormData(document.getElementById('controls'))).toString()"
LABELLED = """
    const named = e => (e.getAttribute('aria-label') || [...(e.labels || [])].map(l => l.textContent).join('')
        || e.textContent || '').trim();
    const all = document.querySelectorAll('input, select, button, a[href], summary, [role=img], form');
    return [...all].filter(e => !named(e)).map(e => e.outerHTML.slice(0, 80));
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A running server."""
    listening: socket.socket = bound(0)
    port = listening.getsockname()[1]
    with Uploads() as uploads:
        how: dict[str, Any] = {"log_level": "critical", "lifespan": "off", "ws": "none"}
        server = uvicorn.Server(uvicorn.Config(application(Site(uploads), port), **how))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{port}"
        server.should_exit = True
        thread.join(10)
        listening.close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as found:
        yield found


def waited(browser: Any, script: str, seconds: float = 60) -> Any:
    """The value of a script, as soon as it is true."""
    end = time.monotonic() + seconds
    while not (found := browser.execute_script(script)):
        assert time.monotonic() < end, script
        time.sleep(0.02)
    return found


def set_to(browser: Any, control: str, value: str) -> str:
    """Give a control a value as a user does; the query that is then shown."""
    browser.execute_script(
        "const e = document.getElementById(arguments[0]); e.value = arguments[1];"
        "for (const sort of ['input', 'change']) e.dispatchEvent(new Event(sort, {bubbles: true}));",
        control,
        value,
    )
    return str(waited(browser, f"const q = {SHOWN}; return q === {WANTED} && q"))


@pytest.mark.slow
def test_the_page_follows_every_control(address: str, browser: Any) -> None:
    looked_at(browser, 1400)
    browser.get(f"{address}/?{FIRST}")
    assert "deep_mnist" in browser.title
    waited(browser, "return document.querySelectorAll('#details svg').length > 0")
    assert browser.execute_script(LABELLED) == []

    for width in (1400, 400):
        for dark in (False, True):
            looked_at(browser, width, dark)
            assert overflowing(browser) == []
    looked_at(browser, 1400)

    controls = {
        "batch": "8",
        "batch-slider": "5",
        "device1": "nvidia-l4",
        "device2": "nvidia-t4",
        "price1": "0.8",
        "price2": "0.4",
        "dtype": "float16",
        "model": "zoo:sensor_net",
        "phase": "training",
    }
    for control, value in controls.items():
        query = set_to(browser, control, value)
        assert browser.current_url.endswith(query)
        assert browser.execute_script("return document.querySelectorAll('#answer svg').length") >= 8, control
        assert not browser.execute_script("return document.querySelectorAll('.failure').length"), control
    assert "price per million samples" in browser.page_source
    assert "samples per second" in browser.find_element("id", "status").text

    # ten changes a second: the last one is shown
    for batch in range(11, 21):
        browser.execute_script(
            "const e = document.getElementById('batch'); e.value = arguments[0];"
            "e.dispatchEvent(new Event('input', {bubbles: true}));",
            batch,
        )
        time.sleep(0.1)
    waited(browser, f"return {SHOWN}.includes('batch=20&')")
    time.sleep(0.3)
    assert "batch=20&" in browser.execute_script(f"return {SHOWN}")

    # a phase that the model does not have is shown as the one that it has
    browser.execute_script("document.activeElement.blur()")
    set_to(browser, "phase", "decode")
    assert browser.find_element("id", "phase").get_attribute("value") == "forward"

    # a failure is shown, and leaves the page usable
    set_to(browser, "shape", "5x7x7")
    assert "error: " in browser.find_element("class name", "failure").text
    assert complaints(browser) == []


@pytest.mark.slow
def test_an_upload_by_the_keyboard_alone(address: str, browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(TINY))
    from selenium.webdriver.common.keys import Keys

    looked_at(browser, 1400)
    browser.get(f"{address}/?{FIRST}")
    body, reached = browser.find_element("tag name", "body"), []
    body.send_keys(Keys.TAB)
    for _ in range(40):
        active = browser.switch_to.active_element
        reached.append(active.get_attribute("id") or active.tag_name)
        if reached[-1] == "file":
            break
        active.send_keys(Keys.TAB)
    order = [
        "model",
        "phase",
        "device1",
        "price1",
        "batch",
        "context",
        "new",
        "ranks",
        "dtype",
        "weights",
        "show",
    ]
    assert [name for name in reached if name in order] == order
    active.send_keys(str(file))
    browser.find_element("css selector", "#upload button").send_keys(Keys.ENTER)
    waited(browser, "return document.getElementById('model')?.value.startsWith('upload:')")
    waited(browser, "return document.querySelectorAll('#traffic svg').length > 0")
    for control, value in (("context", "700"), ("weights", "int8"), ("input", "512"), ("output", "64")):
        set_to(browser, control, value)
        assert not browser.execute_script("return document.querySelectorAll('.failure').length"), control
    browser.execute_script("document.querySelector('details.printed').open = true")
    waited(browser, "return document.querySelector('details.printed pre')")
    assert "neuralpower predict config.json" in browser.page_source
    assert complaints(browser) == []
