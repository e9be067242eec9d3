"""The deployment that is measured: weights with everything else that decides an answer. Its digest is checked, not believed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from include.domain.canonical import check_digest, digest
from include.domain.records import Message
from include.domain.spec import RunSpec
from include.eval.errors import EvaluationError
from include.runtime.generation import Sampling

ENGINE = "transformers"
"""Runs in the program itself, on whole, unquantised weights."""
SERVED = ("vllm",)
"""Engines that run as a server of the OpenAI completions protocol, started in the job as they are deployed."""
_OF_SERVED = ("engine_version", "engine_options")
_KEYS = (
    "weights",
    "adapter",
    "quantisation",
    "engine",
    "dtype",
    "tokenizer",
    "chat_template",
    "system_prompt",
    "generation",
)
_GENERATION = ("temperature", "top_p", "top_k", "max_new_tokens")


@dataclass(frozen=True)
class Deployment:
    """What `spec.config.deployments` says of one role."""

    digest: str
    weights: str
    dtype: str
    tokenizer: str
    chat_template: str
    system_prompt: str | None
    generation: Mapping[str, Any]
    engine: str = ENGINE
    quantisation: str = "none"
    engine_version: str = ""
    engine_options: tuple[str, ...] = ()
    """quantisation, engine_version and engine_options are a server's: how it quantises when it loads, which release it is, and its flags."""

    @property
    def served(self) -> bool:
        """Whether an engine of its own answers, and not this program."""
        return self.engine != ENGINE

    @classmethod
    def read(cls, value: Mapping[str, Any], where: str) -> "Deployment":
        """Refuses another digest than its own content gives, and what this engine cannot run."""
        body = {key: item for key, item in value.items() if key != "digest"}
        keys = {*_KEYS, *(_OF_SERVED if body.get("engine") in SERVED else ())}
        if set(body) != keys:
            wrong = sorted(set(body) ^ keys)
            raise EvaluationError(f"{where}: {wrong[0]!r} is missing or not known; a deployment has {', '.join(sorted(keys))}")
        if (seen := digest("deployment", body)) != check_digest(value.get("digest"), f"{where}.digest"):
            raise EvaluationError(f"{where} says digest {value.get('digest')}, its own content gives {seen}")
        served = body["engine"] in SERVED
        if body["adapter"] is not None or (not served and (body["quantisation"] != "none" or body["engine"] != ENGINE)):
            seen = f"adapter {body['adapter']}, quantisation {body['quantisation']}, engine {body['engine']}"
            raise EvaluationError(
                f"{where}: {seen}; this program measures whole weights, unquantised on {ENGINE} or by a server of {', '.join(SERVED)}"
            )
        kept = {name: body[name] for name in ("weights", "dtype", "tokenizer", "chat_template", "system_prompt", "generation")}
        kept |= {name: body[name] for name in ("engine", "quantisation")}
        if served:
            kept |= {
                "engine_version": str(body["engine_version"]),
                "engine_options": tuple(str(option) for option in body["engine_options"]),
            }
        return cls(digest=value["digest"], **kept)

    def messages(self, prompt: Sequence[Message]) -> list[Message]:
        """The prompt as the deployment shows it to the model."""
        return with_system_prompt(self.system_prompt, prompt)

    def generation_settings(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The deployment's defaults, overridden by what the evaluation asks for: digested as ``generation``."""
        return {**self.generation, **asked}


def own_tokens(spec: RunSpec) -> dict[str, tuple[str | None, str | None]]:
    """Tokenizer and chat template of each model of a run, as its deployment has them: champion and anchor may be of an earlier base."""
    deployments: Mapping[str, Any] = spec.config.get("deployments") or {}
    return {f"model_{role}": (body.get("tokenizer"), body.get("chat_template")) for role, body in deployments.items()}


def with_system_prompt(system_prompt: str | None, prompt: Sequence[Message]) -> list[Message]:
    """The system prompt first, unless the prompt brings one of its own."""
    if not system_prompt or prompt[0].role == "system":
        return list(prompt)
    return [Message("system", system_prompt), *prompt]


def sampling_of(settings: Mapping[str, Any], where: str) -> Sampling:
    """Generation settings as the runtime takes them."""
    if unknown := sorted(set(settings) - set(_GENERATION)):
        raise EvaluationError(f"{where}.{unknown[0]} is not known; generation has {', '.join(_GENERATION)}")
    if "temperature" not in settings or "max_new_tokens" not in settings:
        raise EvaluationError(f"{where}: temperature and max_new_tokens must be named, there is {', '.join(sorted(settings))}")
    top_k = settings.get("top_k")
    return Sampling(
        temperature=float(settings["temperature"]),
        top_p=float(settings.get("top_p") or 1.0),
        top_k=int(top_k) if top_k is not None else None,
        max_new_tokens=int(settings["max_new_tokens"]),
    )
