"""What a follower asks when a job is missing, or ended as a restarted controller would end it: was the controller started anew, and did we end it?"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from airflow_slurm.errors import SlurmError
from airflow_slurm.slurm.parse import Controller
from airflow_slurm.truth.holds import QUESTIONS, as_doubted, asks_nodes, may_be_mistaken, nodes_of
from airflow_slurm.truth.reconcile import forgotten, started_anew
from airflow_slurm.truth.view import JobView
from airflow_slurm.watch.poller import Hub
from airflow_slurm.watch.waiting import Wait

Name = TypeVar("Name")


class Doubts:
    """Of one follower; it remembers what it asked, so that nothing is asked in every look."""

    def __init__(self, wait: Wait, hub: Hub, log: Any) -> None:
        self._wait, self._hub, self._log = wait, hub, log
        self._asked_about = 0
        self._booted_at: float | None = None
        #: Seconds by which this process's clock is ahead of the controller's.
        self._ahead_s = 0.0
        self._questions = QUESTIONS

    async def lost_a_run(self, view: JobView) -> bool | None:
        """Whether the controller was started anew since the submission, and may have lost a run of the job; None if it does not say."""
        controller = await self._controller() if self._hub.client is not None else None
        return None if controller is None else started_anew(controller.booted_at, self._queued_at(view))

    async def started_anew(self, candidates: Collection[JobView], at: float) -> bool:
        """Whether the controller was, since the submission; asked again only when more jobs or tasks than before seem to be lost. ``at``: now."""
        if len(candidates) > self._asked_about and self._hub.client is not None:
            if (controller := await self._controller()) is None:
                return False
            self._booted_at, self._asked_about = controller.booted_at, len(candidates)
            self._ahead_s = 0.0 if controller.said_at is None else at - controller.said_at
        return all(started_anew(self._booted_at, self._waits_since(view)) for view in candidates)

    async def forgotten(self, views: Mapping[Name, JobView], at: float) -> dict[Name, JobView]:
        """Jobs of which all that is known fits one that was lost before it ran, judged once the nodes have reported: it may have run unseen."""
        if not await self.started_anew(views.values(), at) or self._booted_at is None:
            return dict(views)
        if at - self._ahead_s - self._booted_at < self._wait.hold_grace_s:
            return dict(views)
        return {name: forgotten(view, self._booted_at, self._waits_since(view)) for name, view in views.items()}

    async def ends(self, before: Mapping[Name, JobView], now: Mapping[Name, JobView]) -> dict[Name, JobView]:
        """The views of this look; an end that may be a mistake is marked as doubtful. Where the controller can't be asked about it, the view of
        before stays for some looks."""
        suspects = [name for name, view in now.items() if may_be_mistaken(view)]
        if not suspects or self._hub.client is None or not self._wait.receipts:
            return dict(now)
        controller = await self._controller()
        if controller is None and self._questions:
            self._questions -= 1
            return {**now, **{name: before[name] for name in suspects}}
        by_us = await self._ended_by_us()
        return {**now, **{name: await self._judged(now[name], controller or Controller(), by_us) for name in suspects}}

    async def _judged(self, view: JobView, controller: Controller, by_us: bool) -> JobView:
        asks = not by_us and asks_nodes(view, controller, self._queued_at(view))
        reasons = await self._node_reasons(nodes_of(view)) if asks else []
        judged = as_doubted(view, controller, self._queued_at(view), reasons, ended_by_us=by_us)
        if judged.cause != view.cause:
            self._log.error(
                "%s: its node has a job of that id, which the controller had forgotten. The node is drained now.", view.describe()
            )
        if judged.doubtful:
            self._log.warning("%s. What it made tells more.", judged.describe())
        return judged

    async def _node_reasons(self, nodes: str) -> list[str]:
        if (client := self._hub.client) is None:  # it may have gone since it was asked about the controller
            return []
        try:
            return await self._hub.node_reasons(client, nodes, self._wait.cluster)
        except SlurmError as error:
            self._log.debug("The controller does not say why %s may be drained: %s", nodes, error)
            return []

    async def _controller(self) -> Controller | None:
        if (client := self._hub.client) is None:
            return None
        try:
            return await self._hub.controller(client, self._wait.cluster)
        except SlurmError as error:
            self._log.debug("The controller does not say when it was started: %s", error)
            return None

    async def _ended_by_us(self) -> bool:
        """Whether the submission was given up, or is closed; what can't be read is taken for that, so that Slurm is believed."""
        try:
            live = await asyncio.to_thread(lambda: self._wait.store().get(self._wait.key))
        except Exception as error:  # noqa: BLE001
            # The store is the application's and may raise anything; it must not end the wait for the job.
            self._log.warning("The receipt store could not say whether the job was given up: %s", error)
            return True
        return live is None or live.n != self._wait.n or live.ending

    def _queued_at(self, view: JobView) -> float | None:
        """When it was submitted by the cluster's clock; a later time (of a requeue) only makes less sure that the controller was started after it."""
        return self._wait.queued_at or view.submit_time

    def _waits_since(self, view: JobView) -> float | None:
        """The same of a job that Slurm may have put back since: a controller that saw to that knew it."""
        return view.put_back_at or self._queued_at(view)
