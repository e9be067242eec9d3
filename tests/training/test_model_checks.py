"""What is checked of models before the first step: modes, gradients, weights that are the policy's own."""

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from include.training.errors import TrainingError  # noqa: E402
from include.training.model_checks import check_frozen, check_trained  # noqa: E402


class Stubborn(torch.nn.Linear):
    """A part that does not follow its module's mode."""

    def train(self, mode: bool = True) -> Any:
        return super().train(False)


def _engine(module: Any) -> Any:
    return SimpleNamespace(module=module, train=module.train)


def _model(*more: Any) -> Any:
    return torch.nn.Sequential(torch.nn.Linear(2, 2), *more)


def test_a_model_to_be_trained_is_put_into_train_mode() -> None:
    model = _model().eval()
    check_trained(_engine(model))
    assert all(part.training for part in model.modules())


def test_a_part_that_stays_in_eval_mode_is_refused_by_name() -> None:
    with pytest.raises(TrainingError, match=r"1 \(and 0 more parts\) is in eval mode, it must be in train mode"):
        check_trained(_engine(_model(Stubborn(2, 2))))


def test_a_model_without_a_trainable_weight_is_refused_and_one_weight_is_enough() -> None:
    model = _model(torch.nn.Linear(2, 2)).requires_grad_(False)
    with pytest.raises(TrainingError, match="every parameter of the model is frozen"):
        check_trained(_engine(model))
    model[1].bias.requires_grad_(True)
    check_trained(_engine(model))


def _frozen() -> Any:
    return _model().requires_grad_(False).eval()


def test_a_frozen_model_with_weights_of_its_own_passes() -> None:
    check_frozen("reference", _frozen(), _engine(_model()))


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (lambda model: model.train(), "reference is in train mode, it must be in eval mode"),
        (lambda model: model[0].bias.requires_grad_(True), r"reference: 0.bias \(and 0 more\) has a gradient, it must have none"),
    ],
)
def test_a_frozen_model_in_a_wrong_state_is_refused(broken: Any, said: str) -> None:
    model = _frozen()
    broken(model)
    with pytest.raises(TrainingError, match=said):
        check_frozen("reference", model, _engine(_model()))


def test_a_reference_that_would_move_with_the_policy_is_refused_and_a_shared_frozen_base_is_not() -> None:
    policy, reference = _model(torch.nn.Linear(2, 2)), _frozen()
    reference[0].weight = torch.nn.Parameter(policy[0].weight.data, requires_grad=False)
    with pytest.raises(TrainingError, match=r"reference shares the trained weight 0.weight with the policy"):
        check_frozen("reference", reference, _engine(policy))
    policy[0].requires_grad_(False)  # as with adapters: the base is frozen in the policy too
    check_frozen("reference", reference, _engine(policy))
