"""plan() of every stage that runs as a job: which inputs, which settings, which tokenizer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from include.domain.canonical import digest
from include.settings.judges import JudgeFile
from include.settings.recipes import Recipe
from include.stages.errors import StageError
from include.stages.plan import Bench, Input, Plan, revision
from include.stages.refs import ArtifactRef, DatasetRef, FileRef, ModelRef

SCORERS: Mapping[str, str] = {
    "exact_match": "include.eval.exact_match",
    "asked_form": "include.eval.asked_form",
    "length_tokens": "include.eval.length",
    "likelihood_choice": "include.eval.likelihood_choice",
    "bbq_accuracy": "include.eval.bbq",
    "reward_score": "include.eval.reward_score",
    "refusal": "include.eval.refusal",
    "human_win_rate": "include.gates.pairwise",
    "judge_win_rate": "include.eval.judge",
}
"""Scorer → the module whose import closure is its version."""


@dataclass(frozen=True)
class JudgeAsked:
    """The judge, its tokens (of a server: the candidate's, which nothing is held against), and pairs {suite, candidate, against} of
    deployments, with the items `kept_back` where there are any."""

    file: JudgeFile
    tokenizer: str
    chat_template: str
    pairs: Sequence[Mapping[str, Any]]


def _model(ref: ModelRef) -> Input:
    return Input(ref.digest, ref.digest)


def _data(ref: DatasetRef) -> Input:
    return Input(ref.content_hash, ref.artifact)


def _same_tokens(*models: ModelRef) -> tuple[str, str]:
    """The one tokenizer and chat template of all; artifacts under another are refused."""
    pairs = {(m.tokenizer, m.chat_template) for m in models}
    if len(pairs) != 1:
        listed = "; ".join(f"{m.kind} {m.digest[:19]}: tokenizer {m.tokenizer[:19]}, template {m.chat_template[:19]}" for m in models)
        raise StageError(f"models of different tokenizers or chat templates cannot meet in one run: {listed}")
    return pairs.pop()


def _rewards(reward: ModelRef, further: Sequence[ModelRef]) -> dict[str, Input]:
    """reward_model, reward_model_2, … as inputs."""
    return {"reward_model": _model(reward), **{f"reward_model_{n}": _model(ref) for n, ref in enumerate(further, 2)}}


def of_engine(stage: str, engine: str) -> str | None:
    """The stage's program on another engine than DeepSpeed, whose code is no part of its key; None: the stage's own."""
    return None if engine == "deepspeed" else f"include.training.{stage}_{engine}"


def base_import(bench: Bench, source: FileRef) -> Plan:
    """`source`: one raw file, or the manifest of a folder of safetensors, by its digest."""
    settings = bench.recipe.base.model_copy(update={"file": source.file})
    name = "model" if settings.kind == "safetensors" else "source"
    origin = bench.recipe.base_source
    told = {"base_name": origin.repository or origin.path, "base_revision": origin.revision, "base_licence": origin.licence}
    bench = replace(bench, note={**bench.note, **{key: value for key, value in told.items() if value}})  # recorded; no part of the key
    return bench.plan("base_import", {name: Input(source.sha256, source.sha256)}, settings)


def sft(bench: Bench, base: ModelRef, demonstrations: DatasetRef, others: Mapping[str, DatasetRef] | None = None) -> Plan:
    """`others`: the further data sets of the recipe's mixture, by the names it gives them."""
    settings = bench.recipe.sft
    inputs = {"base": _model(base), "demonstrations": _data(demonstrations)}
    extra: dict[str, Any] = {}
    if settings.mixture is not None:
        named = {"own": "demonstrations"} | {name: f"demonstrations_{i}" for i, name in enumerate(sorted(others or {}), 1)}
        inputs |= {named[name]: _data(ref) for name, ref in (others or {}).items()}
        parts = [{"input": named[part.dataset], "weight": part.weight, "max_epochs": part.max_epochs} for part in settings.mixture.parts]
        extra = {"mixture": {"parts": parts, "seed": settings.mixture.seed}}
    program = "include.training.foreign.trl_sft" if settings.trainer == "trl" else of_engine("sft", settings.engine)
    tokenizer, template = base.tokenizer, base.chat_template
    return bench.plan("sft", inputs, settings, extra=extra, tokenizer=tokenizer, chat_template=template, program=program)


def generate(bench: Bench, policy: ModelRef, prompts: DatasetRef) -> Plan:
    inputs = {"policy": _model(policy), "prompts": _data(prompts)}
    return bench.plan("generate", inputs, bench.recipe.generate, tokenizer=policy.tokenizer, chat_template=policy.chat_template)


def reward_model(bench: Bench, base: ModelRef, preferences: DatasetRef) -> Plan:
    inputs = {"base": _model(base), "preferences": _data(preferences)}
    settings = bench.recipe.reward_model
    tokenizer, template, program = base.tokenizer, base.chat_template, of_engine("reward_model", settings.engine)
    return bench.plan("reward_model", inputs, settings, tokenizer=tokenizer, chat_template=template, program=program)


def dpo(bench: Bench, policy: ModelRef, preferences: DatasetRef) -> Plan:
    inputs = {"policy": _model(policy), "reference": _model(policy), "preferences": _data(preferences)}
    settings = bench.recipe.dpo
    tokenizer, template, program = policy.tokenizer, policy.chat_template, of_engine("dpo", settings.engine)
    return bench.plan("dpo", inputs, settings, tokenizer=tokenizer, chat_template=template, program=program)


def ppo(bench: Bench, policy: ModelRef, reward: ModelRef, prompts: DatasetRef, further: Sequence[ModelRef] = ()) -> Plan:
    """`further`: the other members of a reward ensemble; the critic starts from the first, `reward`."""
    tokenizer, template = _same_tokens(policy, reward, *further)
    inputs = {"policy": _model(policy), "reference": _model(policy), "prompts": _data(prompts), **_rewards(reward, further)}
    return bench.plan("ppo", inputs, bench.recipe.ppo, tokenizer=tokenizer, chat_template=template)


def deployment(recipe: Recipe, model: ModelRef) -> dict[str, Any]:
    """What is gated, approved and rolled back: weights with all that decides an answer. `digest` names it."""
    measured = recipe.evaluation
    served = (
        {}
        if measured.backend == "transformers"
        else {"engine_version": measured.engine_version, "engine_options": list(measured.engine_options)}
    )
    body = {
        "weights": model.digest,
        "adapter": None,
        "quantisation": measured.quantisation,
        "engine": recipe.evaluation.backend,
        "dtype": recipe.evaluation.dtype,
        "tokenizer": model.tokenizer,
        "chat_template": model.chat_template,
        "system_prompt": recipe.release.system_prompt,
        "generation": {"temperature": 0.0, "max_new_tokens": recipe.evaluation.max_new_tokens},
        **served,
    }
    return {**body, "digest": digest("deployment", body)}


def evaluate(
    bench: Bench,
    models: Mapping[str, ModelRef],
    suites: Mapping[str, DatasetRef],
    suite_settings: Mapping[str, Any],
    reward: ModelRef | None,
    released: Mapping[str, Mapping[str, Any]] | None = None,
    further: Sequence[ModelRef] = (),
) -> Plan:
    """`models` by role (candidate, base, sft, champion, anchor); one job measures all of them side by side.

    `reward` and `further`: the members of the reward ensemble, put together as PPO does.

    `released`: role → deployment as it was released; the others are deployed as this recipe says. Each model answers with its own tokenizer
    and template; the run's are those of the candidate, which the reward models share.
    """
    recipe = bench.recipe
    tokenizer, template = _same_tokens(models["candidate"], *([reward] if reward else []), *further)
    inputs = {f"model_{role}": _model(ref) for role, ref in models.items()}
    inputs |= {f"suite_{name}": _data(ref) for name, ref in suites.items()}
    if reward is not None:
        inputs |= _rewards(reward, further)
    wanted = {scorer for suite in suite_settings.values() for scorer in suite["scorers"]} | ({"reward_score"} if reward else set())
    extra = {
        "measure": sorted(models),
        "latency": sorted(models),
        "deployments": {role: dict((released or {}).get(role) or deployment(recipe, ref)) for role, ref in models.items()},
        "suites": dict(suite_settings),
        "generation": {"temperature": 0.0, "max_new_tokens": recipe.evaluation.max_new_tokens},
        "scorers": {name: revision(SCORERS[name]) for name in sorted(wanted)},
        "reward_hacking": {
            "limit": recipe.evaluation.reward_hacking_items if reward else 0,
            **({"combine": recipe.ppo.reward.combine} if further else {}),
        },
    }
    return bench.plan("evaluate", inputs, recipe.evaluation, extra=extra, tokenizer=tokenizer, chat_template=template)


def judge(bench: Bench, answers: ArtifactRef, suites: Mapping[str, DatasetRef], asked: JudgeAsked) -> Plan:
    """A model compares the `answers` of an evaluation, of the pairs that `asked` names. Where a server is, and its key, is placement."""
    settings = bench.recipe.model_judge
    if settings is None:
        raise StageError(f"recipe {bench.recipe.reference} has no `model_judge`")
    found = asked.file
    inputs = {"answers": Input(answers.digest, answers.digest)} | {f"suite_{name}": _data(ref) for name, ref in suites.items()}
    where: dict[str, Any] = {}
    if found.server is not None:
        who: dict[str, Any] = {"kind": "server", "model": found.server.model, "fingerprint": found.server.fingerprint}
        where = {"url": found.server.url, **({"api_key_file": found.server.api_key_file} if found.server.api_key_file else {})}
    else:
        digest_ = str(found.model)
        inputs["judge"] = Input(digest_, digest_)
        who = {"kind": "local", "model": digest_, "tokenizer": asked.tokenizer, "chat_template": asked.chat_template}
    extra = {"who": who, "template": found.template, "dtype": found.dtype, "max_new_tokens": found.max_new_tokens}
    tokens = {"tokenizer": asked.tokenizer, "chat_template": asked.chat_template}
    extra["pairs"] = [dict(pair) for pair in asked.pairs]
    made = bench.plan("evaluate", inputs, settings, extra=extra, program="include.eval.judge", **tokens)
    return replace(made, settings={**made.settings, **where})


def shadow(
    bench: Bench,
    candidate: ModelRef,
    other: ModelRef,
    other_role: str,
    prompts: DatasetRef,
    released: Mapping[str, Any] | None = None,
) -> Plan:
    """The canary: `other_role` is champion, or sft at the first release. `released`: the champion's deployment as it was released."""
    inputs = {"model_candidate": _model(candidate), f"model_{other_role}": _model(other), "prompts": _data(prompts)}
    own = {"candidate": deployment(bench.recipe, candidate), other_role: dict(released or deployment(bench.recipe, other))}
    tokens = {"tokenizer": candidate.tokenizer, "chat_template": candidate.chat_template}
    return bench.plan("shadow", inputs, bench.recipe.shadow, extra={"deployments": own}, **tokens)


def candidates_of(result_outputs: Mapping[str, Any], key: str) -> ArtifactRef:
    """The candidate set among a generation run's outputs."""
    out = result_outputs["candidates"]
    return ArtifactRef(out["kind"], out["digest"], key, "candidates")
