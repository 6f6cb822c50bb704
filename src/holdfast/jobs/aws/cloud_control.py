"""All other resource types, through the Cloud Control API.

The config is the resource's desired state, as CloudFormation properties. Changes are requests that continue
by themselves; each carries a token, so that an attempt after a crash finds the request of the previous one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from holdfast.errors import Fail, Retry
from holdfast.jobs.aws.adapter import Adapter
from holdfast.jobs.aws.compare import equal
from holdfast.jobs.aws.trouble import Exists, is_transient, secrets_of, without

_UNDER_WAY = ("PENDING", "IN_PROGRESS", "CANCEL_IN_PROGRESS")


class AnyResource(Adapter):
    """A resource by the name of its type and its primary identifier."""

    SERVICE = "cloudcontrol"
    GONE = ("ResourceNotFoundException",)
    TAKEN = ("AlreadyExistsException",)

    def normal(self, config: dict[str, Any]) -> dict[str, Any]:
        return config

    def describe(self) -> Any | None:
        return self.ask("get_resource", TypeName=self.type, Identifier=self.name)

    def read(self) -> dict[str, Any] | None:
        answer = self.describe()
        if answer is None:
            return None
        properties: dict[str, Any] = json.loads(answer["ResourceDescription"]["Properties"])
        return {"arn": properties.get("Arn"), "properties": properties}

    def changes(self) -> dict[str, Any]:
        patch = list(patches(self.wanted, self.found["properties"]))
        return {"patch": patch} if patch else {}

    def create(self) -> str | None:
        self._refuse_to_let_aws_choose()
        state = json.dumps(self.wanted, sort_keys=True)
        token = self._token("create", state)
        answer = self.api.create_resource(TypeName=self.type, DesiredState=state, ClientToken=token)
        event = self._follow(answer["ProgressEvent"], token)
        if event.get("ErrorCode") == "AlreadyExists":
            raise Exists
        made = event.get("Identifier", self.name)
        if made != self.name:
            raise Fail(
                f"{self.type} was created, but AWS named it {made!r}, not {self.name!r}; "
                "use that name as its resourceId"
            )
        model = json.loads(event.get("ResourceModel") or "{}")
        return model.get("Arn") if isinstance(model, dict) else None

    def update(self, changes: dict[str, Any]) -> None:
        patch = json.dumps(changes["patch"], sort_keys=True)
        token = self._token("update", patch)
        answer = self.api.update_resource(
            TypeName=self.type, Identifier=self.name, PatchDocument=patch, ClientToken=token
        )
        event = self._follow(answer["ProgressEvent"], token)
        if event.get("ErrorCode") == "NotFound":
            raise Retry(f"{self} was deleted in the meantime")

    def delete(self) -> bool:
        if not self.exists():
            return False
        token = self._token("delete")
        answer = self.ask("delete_resource", TypeName=self.type, Identifier=self.name, ClientToken=token)
        if answer is None:
            return False
        return self._follow(answer["ProgressEvent"], token).get("ErrorCode") != "NotFound"

    def _token(self, operation: str, document: str = "") -> str:
        """The same for the same operation in every attempt, until its request has failed."""
        spent = [(failure.detail or {}).get("failedRequest") for failure in self.access.ctx.job.errors]
        number = 0
        while (token := self.access.token(operation, document, str(number))) in spent:
            number += 1
        return token

    def _follow(self, event: dict[str, Any], token: str) -> dict[str, Any]:
        """Poll a request until it has ended and return its result; raises if it failed."""
        pauses = self.access.pauses()
        while event["OperationStatus"] in _UNDER_WAY:
            next(pauses)
            answer = self.api.get_resource_request_status(RequestToken=event["RequestToken"])
            event = answer["ProgressEvent"]
        if event["OperationStatus"] == "SUCCESS":
            return event
        # For a day and a half the same token would only tell of this failure again.
        self.access.ctx.detail(failedRequest=token)
        code = event.get("ErrorCode", event["OperationStatus"])
        if code in ("AlreadyExists", "NotFound"):
            return event
        words = f"{event.get('Operation', 'request')}: {code}: {event.get('StatusMessage', '')}"
        text = without(words, secrets_of(self.config))
        if is_transient(code) or event["OperationStatus"] == "CANCEL_COMPLETE":
            raise Retry(text)
        raise Fail(text)

    def _refuse_to_let_aws_choose(self) -> None:
        """Raise Fail if nothing in the config names the resource: each run would create another one."""
        values = {str(value) for value in self.wanted.values()}
        for part in self.name.split("|"):
            if not values & {part, part.rpartition(":")[2], part.rpartition("/")[2]}:
                raise Fail(
                    f"{self} does not exist, and no property of its config is {part!r}: AWS would choose "
                    "another name, and every run would create another resource"
                )


def patches(wanted: dict[str, Any], found: dict[str, Any], path: str = "") -> Iterator[dict[str, Any]]:
    """The JSON Patch that makes what is found as wanted. What an object leaves out is left as it is; null
    removes a property; a list is the whole."""
    for name, value in wanted.items():
        where = f"{path}/{name.replace('~', '~0').replace('/', '~1')}"
        there = found.get(name)
        if value is None:
            if name in found:
                yield {"op": "remove", "path": where}
        elif isinstance(value, dict) and isinstance(there, dict):
            yield from patches(value, there, where)
        elif name not in found:
            if value not in ({}, []):
                yield {"op": "add", "path": where, "value": value}
        elif not equal(value, there):
            yield {"op": "replace", "path": where, "value": value}
