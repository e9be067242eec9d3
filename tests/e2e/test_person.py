"""The demonstration as a person sees it: a terminal that says where to go, the comparing page, Airflow's pages and ours in them."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from include.stores.catalog import Catalog
from local.folders import remove
from local.layout import Layout
from local.stack import Stack
from tests.browsers import open_browser
from tests.e2e.person import Page, Terminal
from tests.e2e.runs import PATIENCE, Run, until
from tests.e2e.stack import ROOT
from tests.e2e.world import NAME

pytestmark = [pytest.mark.e2e, pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(1500 * PATIENCE)]

WHY = "Looked at the gates and at ten answers; the form is right."


@dataclass(frozen=True)
class Demonstration:
    """`make demo RECIPE=tiny` with somebody there."""

    terminal: Terminal
    stack: Stack
    run: Run

    @property
    def url(self) -> str:
        return str(self.stack.description()["airflow"]["url"])

    def catalog(self) -> Catalog:
        return Catalog.open(self.stack.environment()["ALIGN_CATALOG_URL"])

    def ledger(self, kind: str) -> list[Any]:
        return list(self.catalog().ledger.entries(name=NAME, kind=kind))

    def question(self) -> str:
        """The link that the terminal shows to who approves."""
        found = self.terminal.wait_for(rf"approver is asked: Release {NAME} version 1\?.*with a comment\)\n.*?(http\S+)", seconds=900)
        return found[1]


@pytest.fixture(scope="module")
def demonstration() -> Iterator[Demonstration]:
    kept = os.environ.get("ALIGN_E2E_HOME")
    home = Path(kept) / "person" if kept else Path(tempfile.mkdtemp(prefix="e2e-"))
    home.mkdir(parents=True, exist_ok=True)
    terminal, stack = Terminal(home), Stack(Layout(ROOT, home))
    try:
        terminal.begin()
        run_id = terminal.wait_for(r"the run: \S+/runs/(\S+)", seconds=600)[1]
        yield Demonstration(terminal, stack, Run(stack.api("requester"), "alignment_refresh", run_id))
    finally:
        if not kept:
            terminal.close()
            stack.down()
            remove(home)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    browser = open_browser(tmp_path_factory.mktemp("profile"))
    yield Page(browser)
    browser.quit()


def test_the_pairs_are_compared_by_keyboard(demonstration: Demonstration, page: Page) -> None:
    terminal, run = demonstration.terminal, demonstration.run
    asked = terminal.wait_for(r"YOU are asked to compare (\d+) pairs of answers, as `annotator`: (\S+)", seconds=900)
    count, address = int(asked[1]), asked[2]
    if run.states()["preferences.wait_for_labels"] == "deferred":
        page.open(address)
        page.find("#token").send_keys(terminal.secret("annotator"))
        page.shot("annotation-login")
        page.type("\ue007")
        for done in range(count):
            page.see(f"{done} of {count} done")
            page.wait("the next pair", lambda: page.find("#task") and not page.browser.find_elements("css selector", "[aria-busy]"))
            if done == 0:
                page.shot("annotation-first")
            page.type("1" if done % 2 else "2")
            if done == 1:
                page.shot("annotation-chosen")
            page.type("\ue007")
        page.see("All done. Thank you!")
        page.shot("annotation-done")
    run.wait_for("preferences.wait_for_labels", "success", seconds=120)
    batch = run.xcom("preferences.open_batch")
    assert batch["human"] == count == 8
    assert run.xcom("preferences.verify")["labels"] == batch["tasks"] - count


def test_the_slurm_tab_shows_the_job_as_it_was_seen(demonstration: Demonstration, page: Page) -> None:
    run = demonstration.run
    page.log_in_to_airflow(demonstration.url, "requester", demonstration.terminal.secret("requester"))
    page.open(f"{demonstration.url}/dags/{run.dag_id}/runs/{run.run_id}/tasks/sft.train")
    page.click("Slurm")
    receipt = run.xcom("sft.train", "slurm_submission")
    with page.frame("Slurm"):
        page.see(f"job {receipt['job_id']}")
        shown = page.text
        for words in ("COMPLETED", "Submitted", "Nodes", "Elapsed", "Closed as", "succeeded", "Seen at"):
            assert words in shown, (words, shown)
        with page.frame("The last 25 lines of its output"):
            page.see("step")
            assert "Not Found" not in page.text
        page.shot("slurm-tab")
        page.click("all of it")
        page.see(f"Output of job {receipt['job_id']}")
        page.shot("slurm-output-in-tab")


def test_links_of_a_task_lead_where_they_say(demonstration: Demonstration, page: Page) -> None:
    run = demonstration.run
    job = run.xcom("sft.train", "slurm_submission")["job_id"]
    for task, words, expected in (
        ("sft.train", "Job output", f"Output of job {job}"),
        ("data.build_datasets", "Validation report", "Validation: passed"),
    ):
        page.open(f"{demonstration.url}/dags/{run.dag_id}/runs/{run.run_id}/tasks/{task}/details")
        address = page.wait(words, lambda words=words: page.link(words).get_attribute("href"))  # type: ignore[misc]
        page.shot(f"task-{task}")
        page.open(address)
        page.see(expected)
        assert page.status == 200
        page.shot(f"link-{words.lower().replace(' ', '-')}")


def test_who_asked_for_the_run_cannot_approve_it(demonstration: Demonstration, page: Page) -> None:
    page.log_in_to_airflow(demonstration.url, "requester", demonstration.terminal.secret("requester"))
    page.open(demonstration.question())
    page.see("Release demo-tiny version 1?")
    page.find("#element_comment").send_keys("My own work is fine.")
    page.find("[data-testid=hitl-option-Approve]").click()
    page.see("You do not have permission to perform this action.")
    page.shot("approval-refused-to-the-asker")
    assert demonstration.run.states()["release.approve[0]"] == "awaiting_input"
    assert demonstration.ledger("approved") == []


def test_the_approver_reads_the_dossier_and_cannot_answer_without_a_comment(demonstration: Demonstration, page: Page) -> None:
    page.log_in_to_airflow(demonstration.url, "approver", demonstration.terminal.secret("approver"))
    page.open(demonstration.question())
    page.see("Release demo-tiny version 1?")
    for words in ("asked_form_better", "known risk", "demonstrations", "Apache-2.0", "Champion now", "This field is required"):
        page.see(words)
    page.shot("approval-question")
    assert not page.find("[data-testid=hitl-option-Approve]").is_enabled()
    assert not page.find("[data-testid=hitl-option-Reject]").is_enabled()
    page.open(page.link("All that was judged and decided about it").get_attribute("href") or "")
    page.see("Gates: pass")
    assert page.status == 200
    page.shot("dossier-page")
    assert demonstration.run.states()["release.approve[0]"] == "awaiting_input"
    assert demonstration.ledger("approved") == []


def test_an_answer_of_blanks_is_said_not_to_count_and_changes_nothing(demonstration: Demonstration, page: Page) -> None:
    page.open(demonstration.question())
    page.find("#element_comment").send_keys("   ")
    page.find("[data-testid=hitl-option-Approve]").click()
    demonstration.terminal.wait_for("the answer of approver does not count: a comment is required; the question stands", seconds=120)
    demonstration.run.wait_for("release.approve[0]", "awaiting_input")
    assert demonstration.ledger("approved") == []


def test_with_a_comment_the_run_ends_released(demonstration: Demonstration, page: Page) -> None:
    page.open(demonstration.question())
    time.sleep(6)  # no faster than a person: see run_view.ANSWER_AFTER_S
    page.find("#element_comment").send_keys(WHY)
    page.shot("approval-with-comment")
    page.find("[data-testid=hitl-option-Approve]").click()
    until("the answer", lambda: demonstration.ledger("approved"), seconds=60)
    page.shot("approval-given")
    assert demonstration.terminal.end(600) == 0
    assert f"released: {NAME} version 1" in demonstration.terminal.text
    assert demonstration.run.state == "success"


def test_the_ledger_says_who_and_that_it_was_a_person(demonstration: Demonstration) -> None:
    (approved,) = demonstration.ledger("approved")
    assert (approved.payload["person"], approved.payload["account"], approved.payload["comment"]) == ("approver", "person", WHY)
    (released,) = demonstration.ledger("released")
    assert (released.payload["approved_by"], released.payload["asked_by"]) == (["approver"], ["requester"])


def test_the_pages_of_the_console_open_from_the_menu_and_lead_on(demonstration: Demonstration, page: Page) -> None:
    deployment = demonstration.catalog().ledger.champion(NAME)
    page.open(demonstration.url)
    page.click("Browse")
    page.click("Alignment")
    with page.frame("Alignment"):
        page.see(NAME)
        page.shot("console-releases")
        page.click(str(deployment))
        page.see("Gates: pass")
        page.shot("console-deployment")
        page.click("Lineage")
        page.see(f"deployment {NAME}")
        page.shot("console-lineage")
        page.click("Impact")
        page.find("#ref").send_keys("dataset:tiny-demonstrations@1\ue007")
        page.see("champion now")
        page.shot("console-impact")
        page.click("Ledger")
        page.see(WHY)
        assert "demonstration account" not in page.text
        page.shot("console-ledger")


def test_the_slurm_connection_has_a_form_and_is_tried_by_its_button(demonstration: Demonstration, page: Page) -> None:
    known = json.loads(demonstration.stack.environment()["AIRFLOW_CONN_SLURM_LOCAL"])
    admin = demonstration.stack.api("admin")
    body = {key: known[key] for key in ("conn_type", "host", "port", "login")} | {
        "connection_id": "cluster",
        "extra": json.dumps(known["extra"]),
    }
    admin.request("POST", "/connections", body, accept=(409,))
    page.log_in_to_airflow(demonstration.url, "admin", demonstration.terminal.secret("admin"))
    page.open(f"{demonstration.url}/connections")
    page.see("cluster")
    page.find("button[aria-label='Test Connection']").click()
    answer = ("Slurm ", "partition batch: ", "limit ", "accounting: kept")
    page.wait("what the cluster offers", lambda: all(words in page.text for words in answer))  # a message that goes by itself
    page.shot("connection-tested")
    page.find("button[aria-label='Edit Connection']").click()
    for words in ("Login node", "User", "Port"):
        page.see(words)
    page.click("Extra Fields")  # which closes the standard ones
    for words in ("Key file", "Host key"):
        page.see(words)
    page.shot("connection-form")
