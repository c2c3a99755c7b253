"""A real browser without a window: what the checks of .ci/browser share."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import which
from typing import TypeVar

from selenium.webdriver import ActionChains, Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

__all__ = ["By", "Keys", "Page", "WebElement", "browser", "cut_cells", "served", "wait_for"]

PATIENCE = 300  # seconds, until what must come is not awaited any more

T = TypeVar("T")


def wait_for(what: str, ask: Callable[[], T]) -> T:
    """What `ask` returns, once that is something; elements may vanish meanwhile."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            if found := ask():
                return found
        except Exception as error:  # of the driver, whose elements come and go
            last: object = error
        else:
            last = found
        if time.monotonic() > end:
            raise AssertionError(f"no {what}: {last}")
        time.sleep(0.1)


class Page:
    """What is open in the browser."""

    def __init__(self, driver: Chrome, shots: Path) -> None:
        self.driver, self.shots = driver, shots

    def open(self, address: str) -> None:
        self.driver.get(address)

    def size(self, width: int, height: int = 900) -> None:
        """As wide as a screen; chromium has no window narrower than 500 pixels."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        return wait_for(selector, lambda: self.all(selector))[0]

    def script(self, text: str, *arguments: object) -> object:
        return self.driver.execute_script(text, *arguments)

    def hover(self, element: WebElement) -> None:
        self.script("arguments[0].scrollIntoView({block: 'center'})", element)
        ActionChains(self.driver).move_to_element(element).perform()

    def press(self, *keys: str) -> None:
        ActionChains(self.driver).send_keys(*keys).perform()

    def drag(self, element: WebElement, right: int, down: int) -> None:
        self.script("arguments[0].scrollIntoView({block: 'center'})", element)
        chain = ActionChains(self.driver).click_and_hold(element)
        chain.move_by_offset(right // 2, down // 2).move_by_offset(right // 2, down // 2)
        chain.release().perform()

    def shot(self, name: str) -> None:
        self.driver.save_screenshot(str(self.shots / f"{name}.png"))

    def shot_of(self, element: object, name: str) -> None:
        """An element, whole."""
        assert isinstance(element, WebElement)
        element.screenshot(str(self.shots / f"{name}.png"))

    def whole_shot(self, name: str, width: int) -> None:
        """The page in its full height."""
        self.size(width)
        high = int(str(self.script("return document.documentElement.scrollHeight")))
        self.size(width, high)
        time.sleep(0.4)  # of the colours on their way
        self.shot(name)
        wide = int(str(self.script("return document.documentElement.scrollWidth")))
        assert wide <= width, f"{name} is {wide} pixels wide, in a window of {width}"
        self.size(width)

    def errors(self) -> list[str]:
        """What the page's scripts complained of since the last time."""
        entries = self.driver.get_log("browser")
        return [entry["message"] for entry in entries if entry["level"] == "SEVERE"]


@contextmanager
def browser(shots: Path) -> Iterator[Page]:
    """A browser that reaches this machine alone: what a page loads from elsewhere is missing."""
    options = ChromeOptions()
    options.binary_location = which("chromium") or ""
    rules = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1"
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", rules):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options=options, service=Service(which("chromedriver") or ""))
    shots.mkdir(parents=True, exist_ok=True)
    page = Page(driver, shots)
    page.size(1280)
    try:
        yield page
    except BaseException:
        page.shot("failed")
        print(*page.errors(), sep="\n", file=sys.stderr)
        raise
    finally:
        driver.quit()


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """A server of this folder, while it is needed: its address."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_args: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def cut_cells(page: Page) -> tuple[int, list[str]]:
    """Return how many cells of explanations have a text, and those narrower than their text."""
    count, cut = page.script((Path(__file__).parent / "cells.js").read_text("utf-8"))  # type: ignore[misc]
    return count, cut
