"""What can go wrong with verifiers."""

from include.domain.errors import AlignmentError


class VerifierError(AlignmentError, ValueError):
    """A reference names no verifier of ours, another version of one, or holds what that verifier cannot read."""
