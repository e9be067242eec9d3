"""The comparing page in a real browser, by keyboard alone."""

import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from tests.annotation.server import Server
from tests.annotation.support import RUBRIC, batch, prompt, task
from tests.browsers import open_browser

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    made = open_browser(tmp_path_factory.mktemp("profile"))
    yield made
    made.quit()


class Person:
    """Somebody at the page, with a batch of their own to label."""

    def __init__(self, server: Server, browser: webdriver.Chrome, body: dict[str, Any]) -> None:
        name = uuid.uuid4().hex[:8]
        self._server, self.browser = server, browser
        self._pipeline = {"Authorization": f"Bearer {server.add(f'pipeline-{name}', 'pipeline')}", "Idempotency-Key": name}
        answer = httpx.post(f"{server.url}/v1/annotation-batches", json=body, headers=self._pipeline, trust_env=False)
        assert answer.status_code == 201, answer.text
        self.batch_id = answer.json()["batch_id"]
        browser.delete_all_cookies()
        browser.get(f"{server.url}/login")
        self.find("token").send_keys(server.add(f"person-{name}", "annotator") + Keys.ENTER)
        self.wait_for(lambda: browser.current_url.endswith("/annotate"))
        browser.get(f"{server.url}/annotate?batch={self.batch_id}")
        self.wait_for(lambda: self.find("task").is_displayed())

    def find(self, element_id: str) -> WebElement:
        return self.browser.find_element(By.ID, element_id)

    def wait_for(self, condition: Any) -> None:
        WebDriverWait(self.browser, 20).until(lambda _: condition())

    def type(self, *keys: str) -> None:
        ActionChains(self.browser).send_keys(*keys).perform()

    def question(self) -> str:
        return self.find("conversation").text

    def save(self, done: int) -> None:
        """Enter, and then until the page says how many are done."""
        self.type(Keys.ENTER)
        self.wait_for(
            lambda: self.find("count").text.startswith(f"{done} of") and not self.browser.find_elements(By.CSS_SELECTOR, "[aria-busy]")
        )

    def labels(self) -> list[dict[str, Any]]:
        path = f"{self._server.url}/v1/annotation-batches/{self.batch_id}/labels"
        found: list[dict[str, Any]] = httpx.get(path, headers=self._pipeline, trust_env=False).json()["labels"]
        return found


def _side_of_good(person: Person) -> str:
    return "left" if person.find("left").text.startswith("good") else "right"


def test_three_tasks_are_labelled_by_keyboard_and_stored_as_meant(server: Server, browser: webdriver.Chrome) -> None:
    person = Person(server, browser, batch(3))
    expected: dict[str, dict[str, Any]] = {}

    good = _side_of_good(person)
    expected[person.question()] = {"verdict": "A" if good == "left" else "B", "reason_codes": [], "dimension_scores": {}}
    person.type("1")
    person.save(done=1)

    good = _side_of_good(person)
    reasons = {"reason_codes": ["wrong_result"], "dimension_scores": {"factuality": 2}}
    expected[person.question()] = {"verdict": "A" if good == "right" else "B", **reasons}
    person.type(Keys.ARROW_RIGHT)
    person.type("r", Keys.SPACE)
    person.type("s", Keys.ARROW_RIGHT)
    person.save(done=2)

    expected[person.question()] = {"verdict": "both_bad", "reason_codes": [], "dimension_scores": {}}
    person.type("b")
    person.save(done=3)

    assert person.find("finished-title").text == "All done. Thank you!"
    stored = person.labels()
    assert len(stored) == len(expected) == 3
    for label in stored:
        number = label["candidate_a_id"].split("-")[1]
        wanted = next(value for question, value in expected.items() if f"{number} + {number}" in question)
        assert {key: label[key] for key in wanted} == wanted
        assert label["annotator_kind"] == "human"


def test_the_last_label_is_corrected_by_keyboard(server: Server, browser: webdriver.Chrome) -> None:
    person = Person(server, browser, batch(2))
    person.type("t")
    person.save(done=1)
    (first,) = person.labels()
    person.type("u")
    person.wait_for(lambda: person.find("correcting").is_displayed())
    assert browser.find_element(By.CSS_SELECTOR, "[data-verdict=tie]").get_attribute("aria-pressed") == "true"
    person.type("c")
    person.type(Keys.ENTER)
    person.wait_for(lambda: person.find("status").text == "Corrected.")
    (label,) = person.labels()
    assert (label["verdict"], label["supersedes"]) == ("cannot_judge", first["label_id"])
    assert not person.find("correcting").is_displayed()


def test_enter_without_a_judgement_saves_nothing(server: Server, browser: webdriver.Chrome) -> None:
    person = Person(server, browser, batch(1))
    person.type(Keys.ENTER)
    assert not person.find("submit").is_enabled()
    person.type("1")
    assert person.find("submit").is_enabled()
    assert person.labels() == []


def test_help_opens_and_keys_behind_it_do_nothing(server: Server, browser: webdriver.Chrome) -> None:
    person = Person(server, browser, batch(1))
    person.type("?")
    assert person.find("help").is_displayed()
    person.type("1")
    assert browser.find_elements(By.CSS_SELECTOR, "[aria-pressed=true]") == []
    person.type(Keys.ESCAPE)
    assert not person.find("help").is_displayed()


def test_a_judgement_that_could_not_be_saved_is_kept_and_saved_later(server: Server, browser: webdriver.Chrome) -> None:
    person = Person(server, browser, batch(1))
    person.type("2")
    browser.execute_cdp_cmd("Network.enable", {})
    offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    browser.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
    person.type(Keys.ENTER)
    person.wait_for(lambda: "can't be reached" in person.find("status").text)
    browser.execute_cdp_cmd(
        "Network.emulateNetworkConditions", {**offline, "offline": False, "downloadThroughput": -1, "uploadThroughput": -1}
    )
    person.save(done=1)
    assert len(person.labels()) == 1


HOSTILE = "<script>window.hacked = true</script><img src=x onerror='window.hacked = true'>\u202eright to left שלום"


def test_hostile_text_is_shown_as_text_and_breaks_nothing(server: Server, browser: webdriver.Chrome) -> None:
    turns = [{"role": "system", "content": HOSTILE}, {"role": "user", "content": HOSTILE}]
    answers = {
        "candidate_a": {"candidate_id": "candidate-a", "response_text": HOSTILE},
        "candidate_b": {"candidate_id": "candidate-b", "response_text": "w" * 100_000},
    }
    rubric = {**RUBRIC, "rubric_id": "hostile", "text": HOSTILE, "reason_codes": [HOSTILE], "dimensions": ["<b>d</b>"]}
    browser.get_log("browser")
    person = Person(server, browser, batch(tasks=[task(1, prompt=prompt(turns), **answers)], rubric=rubric))
    assert browser.execute_script("return window.hacked") is None
    assert browser.execute_script("return document.querySelectorAll('main script, main img').length") == 0
    shown = {browser.execute_script("return document.getElementById(arguments[0]).textContent", side) for side in ("left", "right")}
    assert shown == {HOSTILE, "w" * 100_000}
    assert [entry["message"] for entry in browser.get_log("browser") if entry["level"] in ("WARNING", "SEVERE")] == []
    person.type("t")
    person.save(done=1)


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_nothing_sticks_out_at_any_width(server: Server, browser: webdriver.Chrome, width: int) -> None:
    answers = {
        "candidate_a": {"candidate_id": "a", "response_text": "x" * 400},
        "candidate_b": {"candidate_id": "b", "response_text": "short"},
    }
    Person(server, browser, batch(tasks=[task(1, **answers)]))
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        inner, content = browser.execute_script("return [document.documentElement.clientWidth, document.documentElement.scrollWidth]")
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert content <= inner <= width


def test_every_control_has_a_name(server: Server, browser: webdriver.Chrome) -> None:
    Person(server, browser, batch(1))
    controls = browser.find_elements(By.CSS_SELECTOR, "button, input:not([type=hidden]), progress, [tabindex='0']")
    assert len(controls) > 15
    assert [control.get_attribute("outerHTML") for control in controls if control.is_displayed() and not control.accessible_name] == []


def test_the_pages_live_source_is_blind(server: Server, browser: webdriver.Chrome) -> None:
    person = Person(server, browser, batch(1))
    source = browser.page_source
    assert "good answer 0" in source
    stored = "candidate-0-a", "candidate-0-b", person.batch_id, "swap", "display_order", "policy"
    assert [value for value in stored if value in source] == []


def test_a_person_without_a_session_is_sent_to_log_in(server: Server, browser: webdriver.Chrome) -> None:
    person = Person(server, browser, batch(1))
    person.type("1")
    browser.delete_all_cookies()
    person.type(Keys.ENTER)
    person.wait_for(lambda: browser.current_url.endswith("/login"))
    assert person.labels() == []
