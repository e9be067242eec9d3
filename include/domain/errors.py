"""The one base of every error of ours; each room keeps its own below it, in a module of its own."""


class AlignmentError(Exception):
    """Something of ours went wrong: the message says what, quotes what was seen, and says what to do next."""


class RecordError(AlignmentError, ValueError):
    """A record, digest or key breaks its contract; the message names the field."""


class IntegrityError(AlignmentError):
    """Bytes are not what their digest says; the message names the file."""


class SpecError(AlignmentError, ValueError):
    """A run specification is not complete or not consistent: a run with a missing pin is refused."""
