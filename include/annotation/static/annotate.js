// Comparing two answers with the keyboard. What is typed decides nothing before Enter; what is saved can be corrected.

import { nextTask, previousTask, submitLabel } from "/static/server.js";
import { drawFinished, drawProgress, drawTask, drawVerdict, judgement, say } from "/static/view.js";

const $ = (id) => document.getElementById(id);
const batchId = new URLSearchParams(window.location.search).get("batch");
const VERDICT_KEYS = {
  1: "left", ArrowLeft: "left", 2: "right", ArrowRight: "right", 0: "tie", t: "tie", b: "both_bad", c: "cannot_judge",
};

let task = null;
let verdict = null;
let busy = false;
let rubricShown = null;

async function during(work) {
  if (busy) return;
  busy = true;
  document.body.setAttribute("aria-busy", "true");
  try {
    await work();
  } catch (error) {
    if (error.status === 401) window.location.assign("/login");
    else say(`${error.message} Nothing is lost: try again.`, true);
  } finally {
    busy = false;
    document.body.removeAttribute("aria-busy");
  }
}

// What counts is open until the first comparison under a rubric version is saved; after that it is one key away.
function showRubric(version) {
  if (version === rubricShown) return;
  rubricShown = version;
  $("rubric").open = sessionStorage.getItem("rubric-read") !== version;
}

function rubricRead(version) {
  if (sessionStorage.getItem("rubric-read") === version) return;
  sessionStorage.setItem("rubric-read", version);
  $("rubric").open = false;
}

function show(next) {
  task = next;
  showRubric(task.rubric.version);
  verdict = task.label?.verdict ?? null;
  drawTask(task);
  document.activeElement?.blur();
}

async function loadNext() {
  const answer = await nextTask(batchId);
  drawProgress(answer.progress);
  if (answer.task) {
    show(answer.task);
  } else {
    task = null;
    drawFinished(answer.reason);
  }
}

function choose(chosen) {
  if (!task || busy) return;
  verdict = chosen;
  drawVerdict(verdict);
  say("");
}

async function save() {
  if (!task || !verdict) return;
  const correction = task.label !== null;
  try {
    await submitLabel(task.task_id, { verdict, ...judgement(), supersedes: task.label?.label_id ?? null });
  } catch (error) {
    if (error.code !== "lease_lost") throw error;
    await loadNext();
    say(error.message, true);
    return;
  }
  rubricRead(task.rubric.version);
  await loadNext();
  say(correction ? "Corrected." : "Saved.");
}

async function goBack() {
  const { task: earlier } = await previousTask(task?.label ? task.task_id : null);
  if (earlier?.label) {
    show(earlier);
    say("");
  } else {
    say("There is nothing earlier to correct.");
  }
}

function focusOn(fieldset) {
  if (!fieldset.hidden && !fieldset.disabled) fieldset.querySelector("input")?.focus();
}

const COMMANDS = {
  u: () => during(goBack),
  r: () => focusOn($("reasons")),
  s: () => focusOn($("scores")),
  g: () => { $("rubric").open = !$("rubric").open; },
  "?": () => $("help").showModal(),
};

function leave() {
  if (document.activeElement instanceof HTMLInputElement) document.activeElement.blur();
  else if (task?.label) during(loadNext);
}

function onEnter(event) {
  const at = document.activeElement;
  const ownMeaning = at instanceof HTMLButtonElement && at.dataset.verdict === undefined && at.id !== "submit";
  if (ownMeaning || at?.tagName === "SUMMARY" || (at?.dataset.verdict !== undefined && !verdict)) return;
  event.preventDefault();
  if (!event.repeat) during(save);
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
  const inRadios = document.activeElement?.type === "radio";
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (key === "Enter") onEnter(event);
  else if (key === "Escape") leave();
  else if (key in VERDICT_KEYS && !(inRadios && key.startsWith("Arrow"))) {
    event.preventDefault();
    choose(VERDICT_KEYS[key]);
  } else if (key in COMMANDS && !event.repeat) {
    event.preventDefault();
    COMMANDS[key]();
  }
});

for (const button of document.querySelectorAll("[data-verdict]")) {
  button.addEventListener("click", () => choose(button.dataset.verdict));
}
$("judgement").addEventListener("submit", (event) => {
  event.preventDefault();
  during(save);
});
$("undo").addEventListener("click", () => during(goBack));
$("help-button").addEventListener("click", COMMANDS["?"]);
$("look-again").addEventListener("click", () => during(loadNext));

during(loadNext);
