"""Asks a site what it offers: some ten small questions over the one connection, each part by itself.

A part that can't be asked or read is noted and left open; whatever else is known still counts.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from airflow_slurm.errors import ControllerUnreachable, SlurmError, SshUnreachable
from airflow_slurm.site import commands as site_commands
from airflow_slurm.site import parse as site_parse
from airflow_slurm.site.capability import Capability


class Asked(Protocol):
    """What is needed of a client to get to know its site."""

    @property
    def conn_id(self) -> str:
        """The Airflow connection."""

    @property
    def cluster(self) -> str | None:
        """The cluster named in it, where one login node serves several."""

    async def version(self) -> str:
        """Slurm's version."""

    async def ask(self, argv: Sequence[str]) -> str:
        """What a command that changes nothing prints."""


async def probe(client: Asked) -> Capability:
    """The record of now.

    :raises SlurmError: if nobody could be asked: a record of a site that is down would be worse than the last one.
    """
    version = await client.version()
    parts = _Parts(client)
    user, config = await asyncio.gather(
        parts.of("user", site_commands.user(), str.strip),
        parts.of("configuration", site_commands.configuration(client.cluster), site_parse.configuration),
    )
    config = config or {}
    accounting = _accounting(config)
    known, recorded = await asyncio.gather(_of_controller(parts), _of_accounting(parts, user, config.get("ClusterName"), accounting))
    return Capability(
        probed_at=time.time(),
        version=config.get("SLURM_VERSION") or version,
        cluster=config.get("ClusterName") or client.cluster,
        user=user,
        enforce=_enforced(config.get("AccountingStorageEnforce")),
        max_array_size=_whole(config.get("MaxArraySize", "")),
        requeue=config["JobRequeue"] == "1" if "JobRequeue" in config else None,
        kill_wait_s=_whole(config.get("KillWait", "").removesuffix(" sec")),
        preemption=config.get("PreemptType"),
        rewrites=None if config.get("JobSubmitPlugins", "(null)") in ("(null)", "") else config["JobSubmitPlugins"],
        accounting=accounting,
        not_checked=dict(sorted(parts.open.items())),
        **known,
        **recorded,
    )


class _Parts:
    """Asks for one part at a time and notes those that stay open."""

    def __init__(self, client: Asked) -> None:
        self.client = client
        self.open: dict[str, str] = {}

    async def of(self, name: str, argv: Sequence[str], read: Callable[[str], Any]) -> Any:
        try:
            return read(await self.client.ask(argv))
        except (SshUnreachable, ControllerUnreachable):
            raise
        except (SlurmError, KeyError, ValueError) as error:
            self.open[name] = (str(error) or type(error).__name__)[:300]
            return None


async def _of_controller(parts: _Parts) -> dict[str, Any]:
    cluster = parts.client.cluster
    asked = {
        "partitions": (site_commands.partitions(cluster), site_parse.partitions),
        "nodes": (site_commands.nodes(cluster), site_parse.nodes),
        "reservations": (site_commands.reservations(cluster), site_parse.reservations),
        "licenses": (site_commands.licenses(cluster), site_parse.licenses),
    }
    answers = await asyncio.gather(*(parts.of(name, *how) for name, how in asked.items()))
    return dict(zip(asked, answers, strict=True))


async def _of_accounting(parts: _Parts, user: str | None, cluster: str | None, accounting: bool | None) -> dict[str, Any]:
    if accounting is False:
        parts.open |= dict.fromkeys(("qos", "associations"), "the site keeps no accounting")
        return {}
    asked: dict[str, tuple[Sequence[str], Callable[[str], Any]]] = {
        "qos": (site_commands.qos(), site_parse.qos),
        "clusters": (site_commands.clusters(), site_parse.clusters),
        "json": (site_commands.json_ability(), _is_json),
    }
    if user and re.fullmatch(r"[A-Za-z0-9._@-]+", user):
        asked["associations"] = (site_commands.associations(user), lambda text: site_parse.associations(text, cluster))
    answers = await asyncio.gather(*(parts.of(name, *how) for name, how in asked.items()))
    return dict(zip(asked, answers, strict=True))


def _accounting(config: dict[str, str]) -> bool | None:
    kind = config.get("AccountingStorageType", "")
    return None if not kind else "slurmdbd" in kind


def _enforced(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(word for word in text.lower().split(",") if word != "none")


def _is_json(text: str) -> bool:
    """An answer of any content: with a plugin missing, sacct ends with an error or prints its table."""
    return text.lstrip().startswith("{")


def _whole(text: str) -> int | None:
    return int(text) if text.strip().isdigit() else None
