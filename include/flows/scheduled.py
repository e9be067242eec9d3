"""Which recipes have a schedule, from the environment of the DAG processor. Read when DAGs are parsed, so nothing else is opened."""

import os
import re

from include.flows.errors import FlowError

RECIPES = "ALIGN_REFRESH_RECIPES"
"""Recipes with commas between them; the first is also what the forms show. Left out: `quickstart`."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(@v?\d+)?\Z")


def scheduled(dag_id: str) -> list[tuple[str, str]]:
    """(DAG, recipe): the first recipe has `dag_id` itself, each further one a DAG of its own, as `alignment_refresh_assistant-7b`.

    Raises:
        FlowError: a name that is none, or stands twice; Airflow shows it as an import error of the DAG file.
    """
    names = [name.strip() for name in (os.environ.get(RECIPES) or "quickstart").split(",")]
    for name in names:
        if not _NAME.match(name):
            raise FlowError(f"{RECIPES}: {name!r} is no recipe; write names of files in configs/recipes, with commas between them")
    plain = [name.partition("@")[0] for name in names]
    if len(set(plain)) != len(plain):
        raise FlowError(f"{RECIPES}: {', '.join(names)} names a recipe twice")
    return [(dag_id if not n else f"{dag_id}_{plain[n]}", name) for n, name in enumerate(names)]
