"""Errors of the stores, all below the one base in `include.domain.errors`."""

from include.domain.errors import AlignmentError


class StoreError(AlignmentError):
    """A store refused, or was not as it should be."""


class NotFound(StoreError):
    """What was asked for is not in the store; the message names it and the place."""


class Erased(NotFound):
    """It was there and was removed on purpose; the message says when, by whom and why."""


class Conflict(StoreError):
    """The same name was used for something else before."""


class KeyHeld(StoreError):
    """Another job works on this key and cannot be shared: try again when it has ended."""


class CatalogUnsafe(StoreError):
    """The catalog's place cannot keep its promises, such as SQLite on a network mount."""


class LedgerBroken(StoreError):
    """The ledger's chain does not hold; the message names the first broken row."""


class ReleaseRefused(StoreError):
    """A release step whose conditions are not met."""


class NotApproved(ReleaseRefused):
    """Too few approvals for exactly this dossier, or a rejection."""


class ApproverRefused(ReleaseRefused):
    """This person may not approve this dossier."""


class EvidenceChanged(ReleaseRefused):
    """The evidence is another one than the approved one: the approval is void."""


class ChampionMoved(ReleaseRefused):
    """The champion is another one than the dossier was made against: the approval is void."""


class CanaryMissing(ReleaseRefused):
    """The dossier plans a canary, and the ledger holds none that passed."""


class Tainted(ReleaseRefused):
    """The deployment, or something it came from, is tainted."""


class NoRollbackTarget(ReleaseRefused):
    """There is no untainted earlier deployment to go back to."""


class RegistryError(StoreError):
    """The MLflow registry refused, or is not as it should be."""
