"""What must hold before PPO's first step: modes, gradients, weights of their own, one tokenizer, one sequence for all."""

from collections.abc import Mapping, Sequence, Set
from typing import Any

from include.domain.errors import AlignmentError

TRAINED = ("actor", "critic")
FROZEN = ("reference", "reward_model")


class ModelsError(AlignmentError):
    """The models of PPO are not in the state they must be in; the message names the model and what is wrong."""


def freeze(model: Any) -> Any:
    """Eval mode, no gradients."""
    model.eval()
    model.requires_grad_(False)
    return model


def check_models(models: Mapping[str, Any], learnt: Mapping[str, Set[str]] | None = None) -> None:
    """`models` by role: actor, critic, reference, reward_model (more of an ensemble as reward_model_2 …). `learnt`: names of what is learnt of a
    trained one, by role; left out, all its weights are.

    Raises:
        ModelsError: one is in the wrong mode, has gradients it must not have (or none it must), another vocabulary, or
            shares a weight with one that is trained.
    """
    for role, model in models.items():
        trained = role in TRAINED
        if model.training != trained:
            raise ModelsError(
                f"{role} is in {'train' if model.training else 'eval'} mode, it must be in {'train' if trained else 'eval'} mode"
            )
        own = dict(model.named_parameters())
        due = (learnt or {}).get(role, set(own)) if trained else set()
        wrong = [name for name, parameter in own.items() if parameter.requires_grad != (name in due)]
        if wrong:
            raise ModelsError(
                f"{role}: {wrong[0]} (and {len(wrong) - 1} more) {'has no gradient' if wrong[0] in due else 'has a gradient'}"
            )
    _check_vocabulary(models)
    _check_shared(models)


def _check_vocabulary(models: Mapping[str, Any]) -> None:
    sizes = {role: embedding_rows(model) for role, model in models.items()}
    if len(set(sizes.values())) > 1:
        raise ModelsError(f"vocabularies differ: {', '.join(f'{role} {size}' for role, size in sizes.items())}")


def embedding_rows(model: Any) -> int:
    """Rows of the token embedding, whatever is wrapped around it."""
    while not hasattr(model, "get_input_embeddings"):
        model = next(iter(model.children()))
    return int(model.get_input_embeddings().weight.shape[0])


def _check_shared(models: Mapping[str, Any]) -> None:
    owner: dict[int, str] = {}
    for role, model in models.items():
        for name, parameter in model.named_parameters():
            other = owner.setdefault(parameter.data_ptr(), role)
            if other != role:
                raise ModelsError(f"{role} shares the weight {name} with {other}: each model needs its own")


def check_same_sequence(encoded: Mapping[str, Sequence[int]]) -> None:
    """The same conversation as each model's own tokenizer and template write it, by role: they must be one sequence."""
    (first, ids), *others = encoded.items()
    for role, other in others:
        if list(ids) != list(other):
            at = next((i for i, (a, b) in enumerate(zip(ids, other, strict=False)) if a != b), min(len(ids), len(other)))
            raise ModelsError(
                f"{first} and {role} do not see the same sequence: they differ at token {at} ({len(ids)} and {len(other)} tokens)"
            )
