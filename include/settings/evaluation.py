"""What evaluation and shadow run measure, and on what: the deployment, as it will serve."""

from typing import Literal

from pydantic import model_validator

from include.settings.base import added_identity, added_placement, identity, placement
from include.settings.stage import StageSettings

_SERVERS_OWN = (
    "--host",
    "--port",
    "--model",
    "--served-model-name",
    "--dtype",
    "--quantization",
    "-q",
    "--generation-config",
    "--logprobs-mode",
)
"""Flags of a completion server that its job gives it."""


class EvaluationSettings(StageSettings):
    """What is measured. Suites are named in configs/suites; generation is greedy unless said otherwise."""

    suites: str = identity()
    """name@version of a file in configs/suites."""
    max_new_tokens: int = identity(40, ge=1)
    dtype: Literal["float32", "bfloat16"] = identity("float32")
    backend: Literal["transformers", "vllm"] = identity("transformers")
    """What is gated is the deployment. vllm: candidate, SFT model and base answer on the engine that will serve them, a server of the OpenAI
    completions protocol, started in the job on the verified folder."""
    engine_version: str | None = added_identity(None, pattern=r"^[\w.+!-]{1,64}$")
    """Of the engine; another one is refused by the job."""
    quantisation: str = added_identity("none", pattern=r"^[a-z0-9_-]{1,64}$")
    """How the server quantises the weights when it loads them: its `--quantization`, such as fp8."""
    engine_options: tuple[str, ...] = added_identity(())
    """Further flags of the server, as it is deployed with them."""
    latency_requests: int = identity(12, ge=1)
    reward_hacking_items: int = identity(64, ge=0)
    parts: bool = added_placement(False)
    """Each deployment is measured in a job of its own, all of them one array; what an earlier run measured alike is used again.
    Latency is measured side by side by the last job."""
    generation_batch: int = placement(64, ge=1)
    server_command: tuple[str, ...] = added_placement(("vllm", "serve"), min_length=1)
    """Where that engine is found here."""
    server_start_s: float = added_placement(900.0, gt=0)

    @model_validator(mode="after")
    def _an_engine_is_pinned(self) -> "EvaluationSettings":
        if self.backend == "transformers":
            told = {
                "engine_version": self.engine_version,
                "quantisation": self.quantisation != "none",
                "engine_options": self.engine_options,
            }
            if named := [name for name, value in told.items() if value]:
                raise ValueError(f"{named[0]}: transformers runs unquantised and has no such setting; it belongs to backend vllm")
            return self
        if self.engine_version is None:
            raise ValueError(f"engine_version is missing: which release of {self.backend} will serve? A deployment names it")
        if taken := [flag for flag in self.engine_options if flag.partition("=")[0] in _SERVERS_OWN]:
            raise ValueError(f"engine_options: {taken[0]} is set by the job, or has a setting of its own")
        return self


class ShadowSettings(StageSettings):
    """The canary where nothing serves: recorded prompts, both models. Called a shadow run everywhere."""

    requests: int = identity(24, ge=1)
    max_new_tokens: int = identity(40, ge=1)
    dtype: Literal["float32", "bfloat16"] = identity("float32")
    limits: dict[str, float] = identity({"error_share": 0.0, "latency_ratio": 1.5, "length_ratio": 1.5})
    generation_batch: int = placement(8, ge=1)
    server_command: tuple[str, ...] = added_placement(("vllm", "serve"), min_length=1)
    """Of deployments on vllm (`evaluation.backend`): where that engine is found here."""
    server_start_s: float = added_placement(900.0, gt=0)
