"""configs/gold/*.yaml: comparisons whose verdict is known, and by whom it was confirmed."""

from typing import Literal

from pydantic import Field, model_validator

from include.settings.base import Settings


class GoldTurn(Settings):
    role: Literal["system", "user", "assistant"]
    content: str = Field(min_length=1)


class GoldItem(Settings):
    """One comparison. `prompt`: the user's text, or a conversation that ends with the user's turn."""

    prompt: str | tuple[GoldTurn, ...] = Field(min_length=1)
    a: str
    b: str
    verdict: Literal["A", "B", "tie", "both_bad"]
    confirmed_by: tuple[str, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _two_answers(self) -> "GoldItem":
        if self.a == self.b:
            raise ValueError("a and b are the same text")
        if not isinstance(self.prompt, str) and self.prompt[-1].role != "user":
            raise ValueError("a conversation ends with the user's turn")
        return self


class GoldSet(Settings):
    name: str
    version: int = Field(ge=1)
    items: tuple[GoldItem, ...] = Field(min_length=1)
