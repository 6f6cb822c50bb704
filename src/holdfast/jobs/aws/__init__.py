"""The type `sync_aws`: makes an AWS resource match its config, or deletes it.

Idempotent: it first reads the current state and changes only what differs, so a second run, or an attempt
after a crash, finds what the previous one did.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from holdfast.context import Context
from holdfast.core.job import Job
from holdfast.errors import Retry
from holdfast.jobs.aws.access import Access
from holdfast.jobs.aws.adapter import Adapter
from holdfast.jobs.aws.cloud_control import AnyResource
from holdfast.jobs.aws.dynamodb import Table
from holdfast.jobs.aws.messaging import MessageQueue, Topic
from holdfast.jobs.aws.s3 import Bucket
from holdfast.jobs.aws.secretsmanager import Secret
from holdfast.jobs.aws.ssm import Parameter
from holdfast.jobs.aws.trouble import told

ADAPTERS: tuple[type[Adapter], ...] = (Bucket, MessageQueue, Topic, Table, Parameter, Secret)

_BY_NAME = {name: adapter for adapter in ADAPTERS for name in (adapter.TYPE, adapter.SHORT)}
_TYPES = "|".join(adapter.SHORT for adapter in ADAPTERS)
_LOOKS = 3
"""How many times one attempt reads a resource that others create and delete in the meantime."""


class Resource(Struct, rename="camel", forbid_unknown_fields=True):
    """The payload of sync_aws: a resource by type and name, and its config in the terms of its own API."""

    # Python's $ alone would let a line end pass, and \Z is not for the JSON Schema that is published.
    resource_type: Annotated[str, Meta(pattern=rf"^(AWS::[A-Za-z0-9]+::[A-Za-z0-9]+|{_TYPES})(?!\n)$")]
    resource_id: Annotated[str, Meta(min_length=1, max_length=2048)]
    config: dict[str, Any]
    action: Literal["sync", "delete"] = "sync"

    def __post_init__(self) -> None:
        adapter = _BY_NAME.get(self.resource_type)
        if adapter is not None:
            adapter.check(self.config, self.action)

    @property
    def type(self) -> str:
        """The long name of its type."""
        adapter = _BY_NAME.get(self.resource_type)
        return adapter.TYPE if adapter else self.resource_type

    def adapter(self, access: Access) -> Adapter:
        kind = _BY_NAME.get(self.resource_type, AnyResource)
        return kind(self.type, self.resource_id, self.config, access)


def sync(payload: Resource, ctx: Context) -> dict[str, Any]:
    """Create a resource or update it to match its config, or delete it; the result says what was done."""
    with told(payload.config, ctx.detail), Access(ctx) as access:
        resource = payload.adapter(access)
        if payload.action == "delete":
            done, arn = "deleted" if resource.delete() else "absent", None
        else:
            done, arn = _make(resource)
    result = {"action": done, "resourceType": payload.type, "resourceId": payload.resource_id}
    return {**result, "arn": arn} if arn else result


def subject(job: Job) -> str:
    """The resource that a job is about: only the last completed job for it says how it should be."""
    payload = msgspec.convert(job.payload, Resource)
    return f"{payload.type} {payload.resource_id}"


def differs(job: Job) -> str | None:
    """What is not as a completed job left it, in one sentence; None if the resource is there, or gone after
    a delete. An exception means that it could not be checked."""
    payload = msgspec.convert(job.payload, Resource)
    with told(payload.config), Access() as access:
        exists = payload.adapter(access).exists()
    if payload.action == "delete":
        return "the resource exists" if exists else None
    return None if exists else "the resource is missing"


def _make(resource: Adapter) -> tuple[str, str | None]:
    for _ in range(_LOOKS):
        has_changed = resource.adjust()
        if has_changed is not None:
            return ("updated" if has_changed else "unchanged"), resource.found["arn"]
        try:
            return "created", resource.create()
        except Exception as error:
            if not resource.is_taken(error):  # else another was faster: it may be as wanted, or not
                raise
    raise Retry(f"{resource} keeps being created and deleted by others")
