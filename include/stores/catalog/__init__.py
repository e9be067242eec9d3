"""The catalog: what exists, what came from what, who decided. Its own database, SQLite or PostgreSQL."""

from include.stores.catalog.facade import Catalog

__all__ = ["Catalog"]
