"""Times as the service writes them: UTC, fixed width, so that text order is time order."""

from datetime import UTC, datetime


def now() -> datetime:
    return datetime.now(UTC)


def stamp(moment: datetime) -> str:
    """For example ``2026-03-01T09:30:00.000000Z``."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
