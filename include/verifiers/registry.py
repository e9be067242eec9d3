"""Which verifier a reference means: by name and version, both exact. A reference of another version is never guessed at."""

from collections.abc import Callable, Mapping
from typing import Any

from include.domain.records import Reference
from include.verifiers import arithmetic
from include.verifiers.errors import VerifierError
from include.verifiers.result import VerifierResult

Check = Callable[[Any, str], VerifierResult]

VERIFIERS: Mapping[tuple[str, str], Check] = {(arithmetic.NAME, arithmetic.VERSION): arithmetic.check}


def verify(reference: Reference, text: str) -> VerifierResult:
    """What the reference's own verifier says of `text`.

    Raises:
        VerifierError: no such verifier, or not in that version; the message lists those there are.
    """
    check = VERIFIERS.get((reference.verifier, reference.verifier_version))
    if check is None:
        known = ", ".join(f"{name}@{version}" for name, version in sorted(VERIFIERS))
        raise VerifierError(f"no verifier {reference.verifier}@{reference.verifier_version}; there are: {known}")
    return check(reference.expected, text)
