"""The engine of a deployment is pinned, or it is the program's own; no earlier recipe's deployment is another one."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from include.settings import catalogue
from include.settings.base import identity_config
from include.settings.evaluation import EvaluationSettings
from include.stages.programs import deployment
from include.stages.refs import ModelRef

VLLM: dict[str, Any] = {"suites": "tiny@1", "backend": "vllm", "engine_version": "0.11.0"}


def model() -> ModelRef:
    return ModelRef("model", *(f"sha256:{n * 64}" for n in "123"))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"engine_version": None}, "engine_version is missing"),
        ({"backend": "transformers", "engine_version": "1"}, "engine_version: transformers"),
        ({"backend": "transformers", "engine_version": None, "quantisation": "fp8"}, "quantisation: transformers"),
        ({"engine_options": ["--port=1"]}, "--port=1 is set by the job"),
        ({"engine_options": ["--quantization", "fp8"]}, "--quantization is set by the job"),
        ({"quantisation": "a b"}, "quantisation"),
    ],
)
def test_an_engine_that_is_not_pinned_or_not_possible_is_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        EvaluationSettings(**(VLLM | changed))


def test_where_the_server_is_found_moves_no_key_and_what_it_is_does() -> None:
    here, there = EvaluationSettings(**VLLM), EvaluationSettings(**VLLM, server_command=("/opt/vllm", "serve"))
    assert identity_config(here) == identity_config(there)
    assert identity_config(here) != identity_config(EvaluationSettings(**VLLM, quantisation="fp8"))
    plain = identity_config(EvaluationSettings(suites="tiny@1"))
    assert not {"engine_version", "quantisation", "engine_options", "server_command"} & set(plain)


def test_the_deployment_holds_engine_release_flags_and_quantisation() -> None:
    recipe = catalogue.recipe("tiny")
    old = deployment(recipe, model())
    assert "engine_version" not in old
    assert (old["engine"], old["quantisation"]) == ("transformers", "none")
    served = recipe.model_copy(
        update={"evaluation": EvaluationSettings(**VLLM, quantisation="fp8", engine_options=("--max-model-len", "64"))}
    )
    new = deployment(served, model())
    assert (new["engine"], new["engine_version"], new["quantisation"], new["engine_options"]) == (
        "vllm", "0.11.0", "fp8", ["--max-model-len", "64"],
    )  # fmt: skip
    assert new["digest"] != old["digest"]
