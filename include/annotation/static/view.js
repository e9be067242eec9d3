// Drawing a task. All text of others goes in through textContent: it is never read as HTML.

const $ = (id) => document.getElementById(id);

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function text(content) {
  const made = element("div", { class: "text", dir: "auto" });
  made.textContent = content;
  return made;
}

function toolCall(call) {
  const called = call.function ?? call;
  const made = element("div", { class: "tool-call" });
  made.append(element("span", { class: "quiet" }, `calls ${called.name ?? "a tool"}`));
  const given = called.arguments ?? call;
  const code = element("pre", { dir: "ltr" });
  code.textContent = typeof given === "string" ? given : JSON.stringify(given, null, 2);
  made.append(code);
  return made;
}

const ROLES = { system: "System prompt", user: "User", assistant: "Assistant", tool: "Tool result" };

function turn(message) {
  const who = message.name ? `${ROLES[message.role]} · ${message.name}` : ROLES[message.role];
  const made = element("article", { class: `turn ${message.role}` }, element("h3", { dir: "auto" }, who));
  if (message.content) made.append(text(message.content));
  made.append(...(message.tool_calls ?? []).map(toolCall));
  return made;
}

function tools(list) {
  const made = element("details", { class: "turn tools" }, element("summary", {}, `Tools the assistant could use (${list.length})`));
  made.append(...list.map((tool) => {
    const code = element("pre", { dir: "ltr" });
    code.textContent = JSON.stringify(tool.function ?? tool, null, 2);
    return code;
  }));
  return made;
}

function answer(target, side) {
  target.replaceChildren();
  target.append(side.text ? text(side.text) : element("p", { class: "quiet" }, side.tool_calls?.length ? "no text" : "This answer is empty."));
  target.append(...(side.tool_calls ?? []).map(toolCall));
  target.scrollTop = 0;
}

const words = (name) => name.replaceAll("_", " ");

function drawReasons(codes, chosen) {
  $("reasons").hidden = codes.length === 0;
  $("reason-list").replaceChildren(...codes.map((code) => {
    const box = element("input", { type: "checkbox", name: "reason", value: code });
    box.checked = chosen.includes(code);
    return element("label", { class: "chip" }, box, ` ${words(code)}`);
  }));
}

function drawScores(dimensions, given) {
  $("scores").hidden = dimensions.length === 0;
  $("score-list").replaceChildren(...dimensions.map((dimension, index) => {
    const row = element("div", { class: "score", role: "radiogroup", "aria-label": words(dimension) }, element("span", {}, words(dimension)));
    for (let score = 1; score <= 5; score += 1) {
      const radio = element("input", { type: "radio", name: `score-${index}`, value: score, "data-dimension": dimension });
      radio.checked = given[dimension] === score;
      row.append(element("label", {}, radio, String(score)));
    }
    return row;
  }));
}

export function drawTask(task) {
  const label = task.label ?? { verdict: null, reason_codes: [], dimension_scores: {} };
  $("rubric-version").textContent = task.rubric.version;
  $("rubric-text").textContent = task.rubric.text;
  const offered = task.prompt.tools?.length ? [tools(task.prompt.tools)] : [];
  $("conversation").replaceChildren(...offered, ...task.prompt.messages.map(turn));
  answer($("left"), task.left);
  answer($("right"), task.right);
  drawReasons(task.rubric.reason_codes, label.reason_codes);
  drawScores(task.rubric.dimensions, label.dimension_scores);
  $("correcting").hidden = !task.label;
  $("task").hidden = false;
  $("finished").hidden = true;
  drawVerdict(label.verdict);
  window.scrollTo(0, 0);
  $("conversation").scrollTop = $("conversation").scrollHeight; // what is asked last comes last
}

export function drawVerdict(verdict) {
  for (const button of document.querySelectorAll("[data-verdict]")) {
    button.setAttribute("aria-pressed", String(button.dataset.verdict === verdict));
  }
  $("left-answer").classList.toggle("chosen", verdict === "left");
  $("right-answer").classList.toggle("chosen", verdict === "right");
  $("scores").disabled = verdict === "cannot_judge";
  $("submit").disabled = verdict === null;
}

export function drawProgress({ done, of }) {
  $("progress").max = Math.max(of, 1);
  $("progress").value = done;
  $("count").textContent = `${done} of ${of} done`;
}

export function drawFinished(reason) {
  const waiting = reason === "all_taken";
  $("finished-title").textContent = waiting ? "Nothing free just now" : "All done. Thank you!";
  $("finished-text").textContent = waiting
    ? "Others are at the comparisons that are left. They may come back."
    : "There is no comparison waiting for you.";
  $("task").hidden = true;
  $("finished").hidden = false;
  $("finished-title").focus();
}

export function say(message, problem = false) {
  $("status").textContent = message;
  $("status").classList.toggle("problem", problem);
}

export function judgement() {
  const reason_codes = [...document.querySelectorAll("input[name=reason]:checked")].map((box) => box.value);
  const scores = $("scores").disabled ? [] : [...document.querySelectorAll("#score-list input:checked")];
  return { reason_codes, dimension_scores: Object.fromEntries(scores.map((radio) => [radio.dataset.dimension, Number(radio.value)])) };
}
