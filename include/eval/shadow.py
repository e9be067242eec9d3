"""Shadow run: the canary where nothing serves. Candidate and champion answer the same recorded prompts, request by request.

    python -m include.eval.shadow --spec RUN/spec.json --placement ATTEMPT/placement.json --out ATTEMPT

Inputs: model_candidate, model_champion (model_sft at the first release), prompts; each model runs as its own deployment says. Output: `observations` (observations.json)
with the verdict passed or aborted and its reasons. Fewer requests than asked for, or none that could be compared, is
aborted: what was not observed has not passed.
"""

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from include.domain.canonical import digest
from include.domain.records import Prompt
from include.eval.answers import Asked
from include.eval.deployment import Deployment, own_tokens, sampling_of
from include.eval.engines import open_engine
from include.eval.errors import EvaluationError
from include.eval.latency import Served, ask, hardware
from include.eval.loop import run_units, stopped_servers
from include.eval.models import load_tokenizer
from include.eval.observations import Reply, observe
from include.eval.tokens import told_again
from include.runtime.completion_server import ServerError
from include.runtime.job import Job
from include.runtime.program import run_program
from include.transforms.datasets_io import iter_rows

CANDIDATE = "candidate"
OTHERS = ("champion", "sft")
CONFIG_KEYS = ("requests", "limits", "deployments", "dtype", "max_new_tokens")
RECORDED_SIDES = ("train", "validation")
"""Never the hold-out: that is read by the evaluation alone."""


def recorded_prompts(job: Job, count: int) -> list[Prompt]:
    """At most `count` prompts, in an order by hash."""
    rows = [row for side in RECORDED_SIDES for row in iter_rows(job.input("prompts"), side)]
    found = [Prompt.from_json(row.record) for row in rows]
    return sorted(found, key=lambda prompt: digest("shadow-order", prompt.prompt_id))[:count]


def other_role(job: Job) -> str:
    """Which model the candidate runs beside."""
    roles = [role for role in OTHERS if f"model_{role}" in job.inputs]
    if len(roles) != 1:
        raise EvaluationError(f"a shadow run needs exactly one of model_champion and model_sft, there is {', '.join(sorted(job.inputs))}")
    return roles[0]


class Shadow:
    """Both models, and what they replied so far: one unit is one prompt, asked of both."""

    def __init__(self, job: Job, prompts: Sequence[Prompt], roles: tuple[str, str]) -> None:
        self.job = job
        self.prompts = prompts
        self.roles = roles
        self.replies: list[dict[str, Reply]] = []
        self.deployments = {role: Deployment.read(job.config.section("deployments").section(role).values, role) for role in roles}
        self.counted = load_tokenizer(job.input(f"model_{CANDIDATE}"))
        self.engines = contextlib.ExitStack()
        self.served: dict[str, Served] = {}

    def open(self) -> None:
        """Both, ready to answer."""
        for role in self.roles:
            self.served[role] = self._served(role)
        for role in self.roles:
            self._reply(role, 0)  # warms up; not counted

    def close(self) -> None:
        self.engines.close()

    def _served(self, role: str) -> Served:
        """The model as it is deployed, with its own tokenizer, template, dtype and generation; both are cut at the run's `max_new_tokens`."""
        deployment, folder = self.deployments[role], self.job.input(f"model_{role}")
        if deployment.weights != (weights := self.job.input_digest(f"model_{role}")):
            raise EvaluationError(f"config.deployments.{role}.weights is {deployment.weights}, this run has {weights}")
        longest = self.job.config.positive("max_new_tokens")
        asked = {**deployment.generation, "max_new_tokens": min(longest, int(deployment.generation.get("max_new_tokens", longest)))}
        sampling = sampling_of(asked, f"config.deployments.{role}.generation")
        engine = open_engine(self.job, deployment, folder, load_tokenizer(folder))
        self.engines.callback(engine.close)
        return Served(engine, sampling)

    def run(self, unit: int) -> dict[str, float]:
        order = self.roles if unit % 2 == 0 else self.roles[::-1]
        replies = {role: self._reply(role, unit) for role in order}
        self.replies.append(replies)
        return {f"seconds_{role}": reply.seconds for role, reply in replies.items()}

    def _reply(self, role: str, unit: int) -> Reply:
        prompt = self.prompts[unit]
        asked = Asked(prompt.prompt_id, self.deployments[role].messages(prompt.messages), prompt.tools)
        try:
            answer, seconds = ask(self.served[role], asked, self.job.seed)
        except ServerError as error:
            if self.job.stop_requested or self.job.stop_comes():
                raise  # its server was ended with this program: that says nothing of the deployment
            return self._failed(role, prompt, error)
        except Exception as error:  # noqa: BLE001 - whatever a request fails with is what a canary is there to count
            return self._failed(role, prompt, error)
        problem = "" if answer.text.strip() else "empty answer"
        other = self.deployments[role].tokenizer != self.deployments[CANDIDATE].tokenizer
        counted = told_again([answer], self.counted)[0] if other else answer  # lengths compare in one tokenizer's tokens
        return Reply(prompt.prompt_id, seconds, len(counted.tokens), answer.finish_reason, problem)

    def _failed(self, role: str, prompt: Prompt, error: Exception) -> Reply:
        self.job.warn(f"{role} failed on prompt {prompt.prompt_id}: {error}")
        return Reply(prompt.prompt_id, 0.0, 0, "error", f"{type(error).__name__}: {error}")

    def capture(self) -> bytes:
        return json.dumps([{role: vars(reply) for role, reply in replies.items()} for replies in self.replies], sort_keys=True).encode()

    def restore(self, data: bytes) -> None:
        self.replies = [{role: Reply(**reply) for role, reply in replies.items()} for replies in json.loads(data)]


def shadow(job: Job) -> None:
    job.config.only(*CONFIG_KEYS)
    roles = (CANDIDATE, other_role(job))
    prompts = recorded_prompts(job, job.config.positive("requests"))
    if not prompts:
        raise EvaluationError(f"{job.input('prompts')} has no prompts on side {' or '.join(RECORDED_SIDES)}: nothing would be observed")
    worker = Shadow(job, prompts, roles)
    with stopped_servers(job), contextlib.closing(worker):
        worker.open()
        run_units(job, worker, range(len(prompts)))
    limits = {name: job.config.section("limits").number(name) for name in job.config.section("limits").values}
    found = observe(worker.replies, roles, job.config.positive("requests"), limits)
    body: Mapping[str, Any] = {
        "schema": "align/observations/v1",
        "kind": "shadow",
        "models": {role: job.input_digest(f"model_{role}") for role in roles},
        "deployments": {role: worker.deployments[role].digest for role in roles},
        "prompts": job.input_digest("prompts"),
        "hardware": hardware(),
        **found.to_json(),
        "replies": [{role: vars(reply) for role, reply in replies.items()} for replies in worker.replies],
    }
    with job.output("observations", "report") as folder:
        (folder / "observations.json").write_text(json.dumps(body, sort_keys=True, allow_nan=False) + "\n", "utf-8")
    job.complete(found.figures, summary={"verdict": found.verdict, "reasons": list(found.reasons)})


def main(argv: Sequence[str] | None = None) -> int:
    return run_program("shadow", shadow, argv, others=own_tokens)


if __name__ == "__main__":
    raise SystemExit(main())
