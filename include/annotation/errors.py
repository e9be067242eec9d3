"""What the service refuses, with the HTTP status and a code that programs can rely on."""

from include.domain.errors import AlignmentError


class ServiceError(AlignmentError):
    """A request that was not carried out; `code` is stable, the message is for people."""

    status = 400

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Unauthenticated(ServiceError):
    status = 401


class Forbidden(ServiceError):
    status = 403


class NotFound(ServiceError):
    status = 404


class Conflict(ServiceError):
    status = 409


class Refused(ServiceError):
    status = 422


class ConfigurationError(AlignmentError):
    """The service can't start as it is set up; the message names the variable or file."""
