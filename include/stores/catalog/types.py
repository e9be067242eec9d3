"""Column types and the metadata that all tables of the catalog share."""

import json
from typing import Any

import sqlalchemy as sa

from include.domain.canonical import canonical_bytes

NAMING = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}
metadata = sa.MetaData(naming_convention=NAMING)


class CanonicalJson(sa.types.TypeDecorator[Any]):
    """JSON kept as its canonical text: the same value is the same bytes in every database, and NaN is refused."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> str | None:
        return None if value is None else canonical_bytes(value).decode()

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> Any:
        return None if value is None else json.loads(value)


def text(name: str, *, primary_key: bool = False, null: bool = False, index: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.Text, primary_key=primary_key, nullable=null, index=index)


def number(name: str, *, primary_key: bool = False, null: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger, primary_key=primary_key, nullable=null, autoincrement=False)


def json_value(name: str, *, null: bool = False) -> sa.Column[Any]:
    return sa.Column(name, CanonicalJson, nullable=null)
