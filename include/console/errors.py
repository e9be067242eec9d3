"""Which HTTP status an error of ours has."""

from include.domain.errors import AlignmentError


class ConsoleError(AlignmentError):
    """The console cannot answer as it is set up."""


def status_of(error: Exception) -> int:
    """404 for what is not there, 409 for what contradicts an earlier request, 422 for a field that cannot be honoured, 503 for a service
    that is not ready; 500 for a catalog that is not as it should be."""
    from include.console.run_body import FieldRefused, Unusable
    from include.stores.errors import Conflict, NotFound

    if isinstance(error, NotFound):
        return 404
    if isinstance(error, Conflict):
        return 409
    if isinstance(error, FieldRefused):
        return 422
    return 503 if isinstance(error, Unusable) else 500
