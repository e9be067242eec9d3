"""Keeps each site's record between tasks: a JSON file a login and cluster, with the time it was made, made anew when it is old.

Tasks are processes of their own. Of many that find the record old at once, one asks the site and the others go on with
what there is.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from airflow_slurm.errors import ImpossibleRequest, SlurmError
from airflow_slurm.site import possible
from airflow_slurm.site.capability import Capability
from airflow_slurm.site.probe import Asked, probe

if TYPE_CHECKING:
    from airflow_slurm.spec import JobSpec

log = structlog.get_logger(__name__)

#: A request is refused on the word of a record that is at most this old, in seconds: the site may have changed.
FRESH_S = 60.0
#: For asking the site before a submission; what isn't known by then is not checked.
PROBE_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class SiteRecords:
    """The record of one login at one cluster.

    :ivar path: its file. :ivar max_age_s: from this age on it is made anew.
    """

    path: Path
    max_age_s: float = 3600.0

    @classmethod
    def of(cls, target: str, max_age_s: float) -> SiteRecords:
        """Below ``$AIRFLOW_HOME/slurm_sites``.

        :param target: login, login node and cluster. Connections to the same share a record, whatever they are called: the
            *Test* button makes a connection of a random name each time.
        """
        home = Path(os.environ.get("AIRFLOW_HOME") or "~/airflow").expanduser()
        name = hashlib.sha256(target.encode()).hexdigest()[:16]
        return cls(home / "slurm_sites" / f"{name}.json", max_age_s)

    def load(self) -> Capability | None:
        """What was kept; None if there is nothing, or nothing that can be read."""
        try:
            return Capability.from_json(json.loads(self.path.read_text("utf-8")))
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def save(self, record: Capability) -> None:
        """Keep it: whole or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=".new-")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(record.to_json(), file, indent=1)
        Path(name).replace(self.path)

    async def get(self, client: Asked, max_age_s: float | None = None) -> Capability | None:
        """The record, asked for anew if it is old; an old one if somebody else is asking or the site doesn't answer.

        :returns: None if nothing at all is known.
        """
        kept = self.load()
        if kept is not None and 0 <= time.time() - kept.probed_at <= (self.max_age_s if max_age_s is None else max_age_s):
            return kept
        try:
            with self._alone() as alone:
                if not alone:
                    return kept
                async with asyncio.timeout(PROBE_TIMEOUT_S):
                    record = await probe(client)
                self.save(record)
                return record
        except (SlurmError, OSError, TimeoutError) as error:
            log.warning("what the site offers could not be asked", conn_id=client.conn_id, error=str(error) or type(error).__name__)
            return kept

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(self.path.with_suffix(".lock"), "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True


async def check_possible(client: Asked, records: SiteRecords, spec: JobSpec) -> None:
    """Refuse a job that can't run at this site, before anything of it is sent.

    :raises ImpossibleRequest: on the word of a fresh record only.
    """
    site = await records.get(client)
    if site is None:
        log.warning("the request was not checked against the site: nothing is known of it", conn_id=client.conn_id)
        return
    verdict = possible.check(spec, site)
    if verdict.impossible and time.time() - site.probed_at > FRESH_S:
        fresh = await records.get(client, FRESH_S)
        if fresh is None or time.time() - fresh.probed_at > FRESH_S:
            log.warning("the request may be impossible; an old record says so", found=[str(item) for item in verdict.impossible])
            return
        site, verdict = fresh, possible.check(spec, fresh)
    if verdict.not_checked:
        log.info("not checked against the site", parts=sorted(set(verdict.not_checked)))
    if verdict.impossible:
        raise ImpossibleRequest([str(item) for item in verdict.impossible], site.cluster or client.conn_id)
