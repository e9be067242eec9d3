"""Does the units of an evaluation: holds at most one policy at a time, but for latency, where all are side by side."""

import contextlib
import gc
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from include.eval import reward_score
from include.eval.answers import Answer, Asked
from include.eval.deployment import Deployment, sampling_of
from include.eval.engines import DEFAULT_ROWS, Engine, open_engine
from include.eval.errors import EvaluationError
from include.eval.findings import Findings, read_part
from include.eval.latency import Served, hardware, side_by_side
from include.eval.models import load_reward_model
from include.eval.plan import Evaluation, Unit
from include.eval.reward_score import RewardMember
from include.eval.suites import Entry
from include.eval.tokens import Tokenizers, token_ids, told_again
from include.runtime.chat import prompt_ids
from include.runtime.job import Job
from include.runtime.reward_stats import RewardNormaliser, member_inputs


class Bench:
    """Models come and go; what they said is in `findings`."""

    def __init__(self, job: Job, evaluation: Evaluation) -> None:
        self.job = job
        self.evaluation = evaluation
        self.findings = Findings()
        self._taken: list[Findings] = []
        self.rows = job.settings.positive("generation_batch", DEFAULT_ROWS)
        self.roles = {d.digest: role for role, d in sorted(evaluation.deployments.items(), reverse=True)}
        self.tokenizers = Tokenizers(job)
        self._held: tuple[str, Any] | None = None

    def run(self, unit: Unit) -> dict[str, float]:
        """Does one unit and gives its figures; none where a part has done it."""
        if self._known(unit):
            return {}
        return {"answers": self._answers, "choices": self._choices, "rewards": self._rewards, "latency": self._latency}[unit.kind](unit)

    def take(self, parts: Mapping[str, Path]) -> None:
        """Findings of the parts that measured single models, but of those that would not compare with what is measured here."""
        own = {one.digest: self.evaluation.backend_digest(one) for one in self.evaluation.deployments.values()}
        for name, folder in parts.items():
            found, backends = read_part(folder)
            if other := [deployment for deployment, backend in backends.items() if own.get(deployment) != backend]:
                self.job.warn(f"part {name} was measured on another backend (deployment {other[0]}): it is measured again here")
                continue
            self._taken.append(found)
            self.findings.add(found)

    def _known(self, unit: Unit) -> bool:
        return unit.kind != "latency" and len(getattr(self.findings, unit.kind)[unit.deployment][unit.suite]) >= unit.end

    def _deployment(self, unit: Unit) -> Deployment:
        return self.evaluation.deployments[self.roles[unit.deployment]]

    def _entries(self, unit: Unit) -> Sequence[Entry]:
        return self.evaluation.suites[unit.suite].entries[unit.start : unit.end]

    def _policy(self, deployment: Deployment) -> Engine:
        engine: Engine = self._hold(deployment.digest, lambda: self._engine(deployment))
        return engine

    def _engine(self, deployment: Deployment) -> Engine:
        folder = self.job.input(f"model_{self.roles[deployment.digest]}")
        return open_engine(self.job, deployment, folder, self._tokenizer(deployment))

    def _hold(self, name: str, load: Any) -> Any:
        """The model `name`; the one held before is let go first."""
        if self._held is None or self._held[0] != name:
            self.close()
            self._held = (name, load())
        return self._held[1]

    def close(self) -> None:
        """Lets go of the model that is held; a server of it ends."""
        held, self._held = self._held, None
        if held is not None and hasattr(held[1], "close"):
            held[1].close()
        del held
        gc.collect()

    def _asked(self, deployment: Deployment, entry: Entry) -> Asked:
        return Asked(entry.id, deployment.messages(entry.item.prompt.messages), entry.item.prompt.tools)

    def _answers(self, unit: Unit) -> dict[str, float]:
        deployment, started = self._deployment(unit), time.monotonic()
        sampling = sampling_of(deployment.generation_settings(self.evaluation.generation), "generation")
        asked = [self._asked(deployment, entry) for entry in self._entries(unit)]
        written = self._policy(deployment).answers(asked, sampling, self.job.seed, self.rows)
        seconds, tokens = time.monotonic() - started, sum(len(one.tokens) for one in written)
        self.findings.answers[unit.deployment][unit.suite] += self._in_the_runs_tokens(deployment, written)
        self.findings.generation_seconds += seconds
        self.findings.generated_tokens += tokens
        return {
            "tokens": float(tokens),
            "tokens_per_s": tokens / seconds,
            "ended": sum(a.finish_reason == "eos" for a in written) / len(written),
        }

    def _choices(self, unit: Unit) -> dict[str, float]:
        deployment, started = self._deployment(unit), time.monotonic()
        entries = self._entries(unit)
        prompts = [self._prompt_ids(deployment, entry) for entry in entries]
        tokenizer = self._tokenizer(deployment)
        options = [[token_ids(tokenizer, option) for option in entry.item.options or ()] for entry in entries]
        found = self._policy(deployment).option_log_probs(prompts, options, self.rows)
        self.findings.choices[unit.deployment][unit.suite] += found
        return {"items": float(len(found)), "items_per_s": len(found) / (time.monotonic() - started)}

    def _prompt_ids(self, deployment: Deployment, entry: Entry) -> list[int]:
        return prompt_ids(self._tokenizer(deployment), deployment.messages(entry.item.prompt.messages), entry.item.prompt.tools)

    def _tokenizer(self, deployment: Deployment) -> Any:
        """The deployment's own, with its own chat template."""
        return self.tokenizers.of_role(self.roles[deployment.digest])

    def _in_the_runs_tokens(self, deployment: Deployment, written: list[Answer]) -> list[Answer]:
        """The answers, counted in the tokens that all deployments are compared in: lengths, and what is paid for a token."""
        if deployment.tokenizer == self.evaluation.tokenizer:
            return written
        return told_again(written, self.tokenizers.of_run(dict(self.evaluation.deployments)))

    def _rewards(self, unit: Unit) -> dict[str, float]:
        """Scores the answers, after the prompt as the suite gives it: a reward model knows no deployment."""
        members: Sequence[RewardMember] = self._hold("reward_model", self._reward_members)
        entries = self._entries(unit)
        tokenizer = self.tokenizers.of_run(dict(self.evaluation.deployments))
        prompts = [prompt_ids(tokenizer, entry.item.prompt.messages, entry.item.prompt.tools) for entry in entries]
        written = self.findings.answers[unit.deployment][unit.suite][unit.start : unit.end]
        found = reward_score.rewarded(members, self.evaluation.combine, prompts, written)
        self.findings.rewards[unit.deployment][unit.suite] += [one.score for one in found]
        self.findings.dimensions[unit.deployment][unit.suite] += [dict(one.dimensions) for one in found]
        return {"reward": sum(one.score for one in found) / len(found)}

    def _reward_members(self) -> list[RewardMember]:
        folders = [self.job.input(name) for name in member_inputs(self.job.inputs)]
        return [RewardMember(load_reward_model(folder), RewardNormaliser.read(folder)) for folder in folders]

    def _latency(self, unit: Unit) -> dict[str, float]:
        self.close()
        timed = {self.evaluation.deployments[role].digest: self.evaluation.deployments[role] for role in self.evaluation.timed}
        requests = [{name: self._asked(one, entry) for name, one in timed.items()} for entry in self._entries(unit)]
        with contextlib.ExitStack() as engines:
            served = {name: self._served(one, engines) for name, one in timed.items()}
            self.findings.latency = side_by_side(served, requests, self.job.seed, self.job.check_stop)
            self.findings.devices = {name: one.engine.devices for name, one in served.items()}
        self.findings.hardware = hardware()
        return {"requests": float(len(requests)), "deployments": float(len(timed))}

    def _served(self, deployment: Deployment, engines: contextlib.ExitStack) -> Served:
        sampling = sampling_of(deployment.generation_settings(self.evaluation.generation), "generation")
        engine = self._engine(deployment)
        engines.callback(engine.close)
        return Served(engine, sampling, lambda written: len(self._in_the_runs_tokens(deployment, [written])[0].tokens))

    def capture(self) -> bytes:
        return self.findings.to_bytes()

    def restore(self, data: bytes) -> None:
        self.findings = Findings.from_bytes(data)
        for found in self._taken:
            self.findings.add(found)

    def check(self) -> None:
        """Everything asked for is there, once."""
        for unit in self.evaluation.units():
            if unit.kind != "latency":
                seen = len(getattr(self.findings, unit.kind)[unit.deployment][unit.suite])
                if seen < unit.end:
                    raise EvaluationError(f"{unit.kind} of {unit.suite} hold {seen} items, {unit.end} were asked for")
