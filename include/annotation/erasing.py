"""Taking texts out of the service: prompts and the answers to them are replaced; ids, labels and history stay."""

from collections.abc import Sequence

from sqlalchemy import case, null, update

from include.annotation.batches import answer_column
from include.annotation.database import Database
from include.annotation.tables import tasks
from include.domain.canonical import canonical_bytes

ERASED = "[erased]"


def erase_prompts(database: Database, prompt_ids: Sequence[str]) -> int:
    """Replaces the texts of every task of these prompts, and hands none of them out any more; how many tasks there are."""
    prompt = {"messages": [{"role": "user", "content": ERASED, "tool_calls": None, "name": None}], "tools": None}
    answer = answer_column(ERASED, None)
    values = {
        "prompt": canonical_bytes(prompt).decode(),
        "a_answer": answer,
        "b_answer": answer,
        "filled": True,
        "wanted": case((tasks.c.wanted.is_(None), null()), else_=0),  # nobody is missing there any more
    }
    with database.write() as connection:
        return connection.execute(update(tasks).where(tasks.c.prompt_id.in_(prompt_ids)).values(**values)).rowcount
