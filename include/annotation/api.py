"""The HTTP API, version 1."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Response

from include.annotation.access import Caller, only
from include.annotation.assignment import Desk, next_task
from include.annotation.batches import Order, close_batch, create_batch
from include.annotation.erasing import erase_prompts
from include.annotation.errors import NotFound
from include.annotation.interval import labels_between
from include.annotation.labels import Submission, own_task, previous_task, submit
from include.annotation.progress import all_progress, progress
from include.annotation.requests import BatchIn, ErasureIn, LabelIn, WithdrawalIn
from include.annotation.service import Service, service_of
from include.annotation.snapshot import snapshot
from include.annotation.withdrawals import Withdrawal, all_withdrawals, withdraw, withdraw_all_of

router = APIRouter(prefix="/v1")

Running = Annotated[Service, Depends(service_of)]
Pipeline = Annotated[Caller, Depends(only("pipeline"))]
Overseer = Annotated[Caller, Depends(only("pipeline", "admin"))]
Labeller = Annotated[Caller, Depends(only("annotator", "verifier"))]
Admin = Annotated[Caller, Depends(only("admin"))]
Key = Annotated[str, Header(alias="Idempotency-Key", min_length=1, max_length=200)]


@router.post("/annotation-batches", status_code=201)
def post_batch(body: BatchIn, caller: Pipeline, service: Running, response: Response, key: Key) -> dict[str, Any]:
    receipt, created = create_batch(service.database, Order(key, body, caller.pseudonym, service.clock()))
    response.status_code = 201 if created else 200
    return receipt


@router.get("/annotation-batches")
def get_batches(caller: Overseer, service: Running) -> dict[str, Any]:
    return {"batches": all_progress(service.database)}


@router.get("/annotation-batches/{batch_id}")
def get_batch(batch_id: str, caller: Overseer, service: Running) -> dict[str, Any]:
    return progress(service.database, batch_id)


@router.post("/annotation-batches/{batch_id}/close")
def post_close(batch_id: str, caller: Pipeline, service: Running) -> dict[str, Any]:
    return {"batch_id": batch_id, "closed_at": close_batch(service.database, batch_id, service.clock())}


@router.get("/annotation-batches/{batch_id}/labels")
def get_labels(batch_id: str, caller: Pipeline, service: Running, up_to: Annotated[int | None, Query(ge=0)] = None) -> dict[str, Any]:
    return snapshot(service.database, batch_id, up_to)


@router.get("/annotation-tasks/next")
def get_next(caller: Labeller, service: Running, batch_id: str | None = None) -> dict[str, Any]:
    desk = Desk(caller.annotator, service.clock(), service.config.lease_s)
    offer = next_task(service.database, desk, batch_id)
    task = {**offer.shown.blind(), "label": None} if offer.shown else None
    return {"task": task, "progress": {"done": offer.done, "of": offer.of}, "reason": offer.reason}


@router.get("/annotation-tasks/previous")
def get_previous(caller: Labeller, service: Running, before: str | None = None) -> dict[str, Any]:
    return {"task": previous_task(service.database, caller.annotator, before)}


@router.get("/annotation-tasks/{task_id}")
def get_task(task_id: str, caller: Labeller, service: Running) -> dict[str, Any]:
    return {"task": own_task(service.database, caller.annotator, task_id)}


@router.post("/annotation-tasks/{task_id}/labels", status_code=201)
def post_label(task_id: str, body: LabelIn, caller: Labeller, service: Running, response: Response) -> dict[str, Any]:
    label, created = submit(service.database, Submission(caller.annotator, task_id, body, service.clock()))
    response.status_code = 201 if created else 200
    return label


@router.get("/labels")
def get_labels_between(
    caller: Pipeline,
    service: Running,
    since: datetime,
    until: datetime,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 500,
) -> dict[str, Any]:
    return labels_between(service.database, since, until, service.clock(), after, limit)


@router.post("/labels/{label_id}/withdraw", status_code=201)
def post_withdrawal(label_id: str, body: WithdrawalIn, caller: Overseer, service: Running, response: Response) -> dict[str, Any]:
    event, created = withdraw(service.database, Withdrawal(label_id, body.reason, caller.pseudonym, service.clock()))
    response.status_code = 201 if created else 200
    return event


@router.post("/erasures")
def post_erasure(body: ErasureIn, caller: Pipeline, service: Running) -> dict[str, Any]:
    return {"tasks": erase_prompts(service.database, body.prompt_ids)}


@router.get("/withdrawals")
def get_withdrawals(caller: Overseer, service: Running, batch_id: str | None = None) -> dict[str, Any]:
    return {"withdrawals": all_withdrawals(service.database, batch_id)}


@router.post("/annotators/{annotator_id}/withdraw")
def post_withdrawals_of(annotator_id: str, body: WithdrawalIn, caller: Overseer, service: Running) -> dict[str, Any]:
    return {"withdrawals": withdraw_all_of(service.database, annotator_id, body.reason, caller.pseudonym, service.clock())}


@router.get("/annotators/{annotator_id}")
def get_annotator(annotator_id: str, caller: Admin, service: Running) -> dict[str, Any]:
    identity = service.identities.identity_of(annotator_id)
    if identity is None:
        raise NotFound("unknown_annotator", f"there is no annotator {annotator_id}")
    return identity
