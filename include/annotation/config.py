"""What the service is started with, from the environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from include.annotation.errors import ConfigurationError


@dataclass(frozen=True)
class Config:
    """Where things lie. `database` and `identity_database` are SQLAlchemy URLs."""

    database: str
    identity_database: str
    tokens_file: Path
    pseudonym_key_file: Path
    host: str = "127.0.0.1"
    port: int = 8090
    lease_s: float = 1800.0
    https: bool = False


def database_url(value: str) -> str:
    """A path becomes the URL of an SQLite file; a URL stays."""
    return value if "://" in value else f"sqlite:///{Path(value).absolute()}"


def _number(environ: Mapping[str, str], name: str, default: str) -> float:
    try:
        return float(environ.get(name) or default)
    except ValueError as error:
        raise ConfigurationError(f"{name}={environ[name]!r} is not a number") from error


def _needed(environ: Mapping[str, str], name: str) -> str:
    if not environ.get(name):
        raise ConfigurationError(f"{name} is not set: the annotation service needs it")
    return environ[name]


def tokens_file(environ: Mapping[str, str] = os.environ) -> Path:
    return Path(_needed(environ, "ANNOTATION_TOKENS_FILE"))


def from_environment(environ: Mapping[str, str] = os.environ) -> Config:
    """Raises ConfigurationError naming the variable that is missing or wrong."""
    database = _needed(environ, "ANNOTATION_DB")
    identities = environ.get("ANNOTATION_IDENTITY_DB")
    if not identities:
        if "://" in database:
            raise ConfigurationError("ANNOTATION_IDENTITY_DB is not set: with a database URL, say where identities are kept (apart)")
        identities = str(Path(database).absolute().with_name("identities.sqlite"))
    if database_url(identities) == database_url(database):
        raise ConfigurationError("ANNOTATION_IDENTITY_DB must be another database than ANNOTATION_DB: identities are kept apart")
    return Config(
        database=database_url(database),
        identity_database=database_url(identities),
        tokens_file=tokens_file(environ),
        pseudonym_key_file=Path(_needed(environ, "ANNOTATION_PSEUDONYM_KEY_FILE")),
        host=environ.get("ANNOTATION_HOST") or "127.0.0.1",
        port=int(_number(environ, "ANNOTATION_PORT", "8090")),
        lease_s=_number(environ, "ANNOTATION_LEASE_S", "1800"),
        https=environ.get("ANNOTATION_HTTPS", "") == "1",
    )
