"""Tokenizers of the deployments of one run, and answers told again in another one's tokens."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from include.eval.answers import Answer
from include.eval.deployment import Deployment
from include.eval.errors import EvaluationError
from include.eval.models import load_tokenizer
from include.runtime.job import Job


class Tokenizers:
    """Each is loaded once, from a folder that has it."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._loaded: dict[str, Any] = {}

    def of_role(self, role: str) -> Any:
        return self._of_input(f"model_{role}")

    def of_run(self, deployments: dict[str, Deployment]) -> Any:
        """The run's own: of a reward model, or of a model that has the same."""
        mine = [name for name in sorted(self._job.inputs) if name.startswith("reward_model")]
        mine += [f"model_{role}" for role, one in sorted(deployments.items()) if one.tokenizer == self._job.spec.tokenizer]
        if not mine:
            raise EvaluationError(
                f"no input has the run's tokenizer {self._job.spec.tokenizer}: lengths of other tokenizers compare with nothing"
            )
        return self._of_input(mine[0])

    def _of_input(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = load_tokenizer(self._job.input(name))
        return self._loaded[name]


def told_again(answers: Sequence[Answer], tokenizer: Any) -> list[Answer]:
    """The same texts in another tokenizer's tokens, the end token where there was one; at least one token, as every answer has."""
    end = [int(tokenizer.eos_token_id)]
    told = []
    for one in answers:
        ids = token_ids(tokenizer, one.text) if one.text else []
        told.append(replace(one, tokens=tuple(ids + (end if one.finish_reason == "eos" or not ids else []))))
    return told


def token_ids(tokenizer: Any, text: str) -> list[int]:
    """A text's tokens, with nothing before or after it."""
    return [int(i) for i in tokenizer(text, add_special_tokens=False)["input_ids"]]
