// Talking to the service. Every answer is data; nothing here touches the page.

const csrf = document.querySelector("meta[name=csrf-token]").content;

export class ServerError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

async function ask(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", ...options });
  } catch {
    throw new ServerError(0, "unreachable", "The service can't be reached.");
  }
  const body = await response.json().catch(() => ({}));
  if (!response.ok) {
    const error = body.error ?? {};
    throw new ServerError(response.status, error.code ?? "", error.message ?? `The service answered ${response.status}.`);
  }
  return body;
}

function only(parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value);
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

export const nextTask = (batchId) => ask(`/v1/annotation-tasks/next${only({ batch_id: batchId })}`);
export const previousTask = (before) => ask(`/v1/annotation-tasks/previous${only({ before })}`);
export const submitLabel = (taskId, label) =>
  ask(`/v1/annotation-tasks/${encodeURIComponent(taskId)}/labels`, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-CSRF-Token": csrf },
    body: JSON.stringify(label),
  });
