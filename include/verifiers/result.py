"""What a verifier says of one answer."""

from dataclasses import dataclass


@dataclass(frozen=True)
class VerifierResult:
    """right: None where the verifier cannot decide; in_form: as the prompt asked; detail: one word for why."""

    right: bool | None
    in_form: bool
    detail: str
