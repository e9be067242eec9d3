"""A person at the demonstration: a terminal that runs it, and a browser that opens what the terminal names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from tests.e2e.runs import until
from tests.e2e.stack import ROOT


class Terminal:
    """`python -m local demo --recipe tiny` on a stack of its own; what it prints is kept in a file."""

    def __init__(self, home: Path) -> None:
        self.environment = {**os.environ, "ALIGN_LOCAL_HOME": str(home), "PYTHONUNBUFFERED": "1"}
        self.printed = home / "terminal.txt"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def text(self) -> str:
        return self.printed.read_text() if self.printed.exists() else ""

    def begin(self) -> None:
        """Starts it, unless it has come to its end before (in a home that was kept)."""
        if "Where to look further" in self.text:
            return
        argv = [sys.executable, "-m", "local", "demo", "--recipe", "tiny"]
        with open(self.printed, "ab") as out:
            self._process = subprocess.Popen(argv, cwd=ROOT, env=self.environment, stdout=out, stderr=subprocess.STDOUT)

    def wait_for(self, pattern: str, seconds: float) -> re.Match[str]:
        """What it prints, once it does."""

        def look() -> re.Match[str] | None:
            found = re.search(pattern, self.text)
            assert found or self._process is None or self._process.poll() is None, f"it ended without {pattern!r}:\n{self.text}"
            return found

        found: re.Match[str] = until(f"{pattern!r} on the terminal", look, seconds=seconds)
        return found

    def secret(self, name: str) -> str:
        """As the terminal says how to get it."""
        argv = [sys.executable, "-m", "local", "secret", name]
        return subprocess.run(argv, cwd=ROOT, env=self.environment, capture_output=True, text=True, check=True).stdout.strip()

    def end(self, seconds: float = 300) -> int:
        """Its exit status."""
        self.wait_for("Where to look further|ended as", seconds)
        return self._process.wait(60) if self._process else 0

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(30)


class Page:
    """What somebody does in a browser, and sees."""

    def __init__(self, browser: webdriver.Chrome) -> None:
        self.browser = browser

    def open(self, address: str) -> None:
        self.browser.get(address)

    def type(self, *keys: str) -> None:
        ActionChains(self.browser).send_keys(*keys).perform()

    @property
    def text(self) -> str:
        return self.browser.find_element(By.TAG_NAME, "body").text

    @property
    def status(self) -> int:
        """Of the page that is open."""
        return int(self.browser.execute_script("return performance.getEntriesByType('navigation')[0].responseStatus"))

    def wait(self, what: str, look: Callable[[], Any], seconds: float = 60) -> Any:
        """A page that is being drawn anew is looked at again."""

        def once() -> Any:
            try:
                return look()
            except WebDriverException:
                return None

        try:
            return until(what, once, seconds=seconds)
        except AssertionError as error:
            self.shot("not-found")
            raise AssertionError(f"{error}; {self.browser.current_url} shows:\n{self.text[:3000]}") from None

    def see(self, words: str, seconds: float = 60) -> None:
        self.wait(f"{words!r} on the page", lambda: words in self.text, seconds)

    def find(self, selector: str, seconds: float = 60) -> WebElement:
        """The first that is displayed."""

        def look() -> WebElement | None:
            return next((found for found in self.browser.find_elements(By.CSS_SELECTOR, selector) if found.is_displayed()), None)

        found: WebElement = self.wait(selector, look, seconds)
        return found

    def link(self, words: str, seconds: float = 60) -> WebElement:
        """The first link or button with just these words."""
        path = f"//*[self::a or self::button or @role='menuitem' or @role='tab'][normalize-space(.)='{words}']"

        def look() -> WebElement | None:
            return next((found for found in self.browser.find_elements(By.XPATH, path) if found.is_displayed()), None)

        found: WebElement = self.wait(f"the link {words!r}", look, seconds)
        return found

    def click(self, words: str) -> None:
        self.wait(f"a click on {words!r}", lambda: self.link(words).click() or True)

    @contextmanager
    def frame(self, title: str) -> Iterator[None]:
        """Inside the frame of this title."""
        self.wait(f"the frame {title!r}", lambda: self._enter(title))
        yield
        self.browser.switch_to.parent_frame()

    def _enter(self, title: str) -> bool:
        self.browser.switch_to.frame(self.browser.find_element(By.CSS_SELECTOR, f"iframe[title='{title}']"))
        if self.text:
            return True
        self.browser.switch_to.parent_frame()
        return False

    def shot(self, name: str) -> None:
        """A picture, where ALIGN_TEST_PICTURES names a folder for them."""
        if folder := os.environ.get("ALIGN_TEST_PICTURES"):
            self.browser.save_screenshot(f"{folder}/{name}.png")

    def log_in_to_airflow(self, url: str, user: str, password: str) -> None:
        self.browser.delete_all_cookies()
        self.open(url)
        self.find("input[name=username]").send_keys(user)
        self.find("input[name=password]").send_keys(password + Keys.ENTER)
        self.wait("the way past the login", lambda: urlsplit(self.browser.current_url).path != "/auth/login")
