"""Learning rates that are seldom meant: a policy is moved 10 to 100 times more gently than SFT moved it."""

from include.settings.recipes import Recipe

POLICY_STAGES = ("dpo", "ppo")
GENTLER = (10.0, 100.0)
"""SFT's rate divided by the policy's: below, the policy forgets what SFT taught; above, it hardly moves in a run of the usual length."""
_ROUNDING = 1e-9


def unusual_rate(recipe: Recipe, stage: str) -> str | None:
    """What is to be said of the policy's learning rate in `stage`; None where it is usual, or cannot be compared.

    Adapters take larger rates than whole weights, so a stage with `lora` is compared with an SFT that has it too, and not else.
    """
    if stage not in POLICY_STAGES:
        return None
    settings = getattr(recipe, stage)
    if (getattr(settings, "lora", None) is None) != (recipe.sft.lora is None):
        return None
    times = recipe.sft.learning_rate / settings.learning_rate
    least, most = GENTLER
    if least * (1 - _ROUNDING) <= times <= most * (1 + _ROUNDING):
        return None
    low, high = recipe.sft.learning_rate / most, recipe.sft.learning_rate / least
    return (
        f"{stage}.learning_rate {settings.learning_rate:g} is {times:.3g} times below sft.learning_rate {recipe.sft.learning_rate:g}; "
        f"usual is {least:g} to {most:g} times, here {low:.3g} to {high:.3g}"
    )
