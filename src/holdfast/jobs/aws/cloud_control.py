"""Resources of every other type, over the Cloud Control API.

Its config is the resource's desired state, with the properties of CloudFormation. Changes are requests that
go on by themselves; each carries a token, so that an attempt that comes after a crash finds the request of
the one before it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from holdfast.errors import Fail, Retry
from holdfast.jobs.aws import access as timing
from holdfast.jobs.aws.access import Access
from holdfast.jobs.aws.adapter import Adapter
from holdfast.jobs.aws.compare import equal
from holdfast.jobs.aws.trouble import Exists, ask, make, secrets_of, without

GONE = ("ResourceNotFoundException",)
TAKEN = ("AlreadyExistsException",)
_UNDER_WAY = ("PENDING", "IN_PROGRESS", "CANCEL_IN_PROGRESS")
_PASSING = frozenset(
    {
        "InternalFailure",
        "NetworkFailure",
        "NotStabilized",
        "ResourceConflict",
        "ServiceInternalError",
        "ServiceTimeout",
        "Throttling",
    }
)


class AnyResource(Adapter):
    """A resource by the name of its type and its primary identifier."""

    def __init__(self, type: str, name: str, config: dict[str, Any], access: Access) -> None:
        super().__init__(name, config, access)
        self._type = type

    def __str__(self) -> str:
        return f"{self._type} {self.name!r}"

    def exists(self) -> bool:
        return self._resource() is not None

    def read(self) -> dict[str, Any] | None:
        resource = self._resource()
        if resource is None:
            return None
        properties: dict[str, Any] = json.loads(resource["Properties"])
        return {"arn": properties.get("Arn"), "properties": properties}

    def changes(self) -> dict[str, Any]:
        patch = list(patches(self.wanted, self.found["properties"]))
        return {"patch": patch} if patch else {}

    def create(self) -> str | None:
        self._refuse_to_let_aws_choose()
        state = json.dumps(self.wanted, sort_keys=True)
        token = self._token("create", state)
        answer = make(
            self._api.create_resource, TAKEN, TypeName=self._type, DesiredState=state, ClientToken=token
        )
        event = self._follow(answer["ProgressEvent"], token)
        if event.get("ErrorCode") == "AlreadyExists":
            raise Exists
        made = event.get("Identifier", self.name)
        if made != self.name:
            raise Fail(
                f"{self._type} was created, but AWS has named it {made!r}, not {self.name!r}: "
                "use that as its resourceId"
            )
        model = json.loads(event.get("ResourceModel") or "{}")
        return model.get("Arn") if isinstance(model, dict) else None

    def update(self, changes: dict[str, Any]) -> None:
        patch = json.dumps(changes["patch"], sort_keys=True)
        token = self._token("update", patch)
        answer = self._api.update_resource(
            TypeName=self._type, Identifier=self.name, PatchDocument=patch, ClientToken=token
        )
        event = self._follow(answer["ProgressEvent"], token)
        if event.get("ErrorCode") == "NotFound":
            raise Retry(f"{self} was deleted meanwhile")

    def delete(self) -> bool:
        if not self.exists():
            return False
        token = self._token("delete")
        answer = ask(
            self._api.delete_resource, GONE, TypeName=self._type, Identifier=self.name, ClientToken=token
        )
        if answer is None:
            return False
        return self._follow(answer["ProgressEvent"], token).get("ErrorCode") != "NotFound"

    @property
    def _api(self) -> Any:
        return self.access.client("cloudcontrol")

    def _resource(self) -> dict[str, Any] | None:
        answer = ask(self._api.get_resource, GONE, TypeName=self._type, Identifier=self.name)
        return None if answer is None else answer["ResourceDescription"]

    def _token(self, operation: str, document: str = "") -> str:
        """The same for the same operation in every attempt, until its request has failed."""
        spent = self.access.failed_requests()
        number = 0
        while (token := self.access.token(operation, document, str(number))) in spent:
            number += 1
        return token

    def _follow(self, event: dict[str, Any], token: str) -> dict[str, Any]:
        """Look at a request until it has ended, and return its end; raises what it failed by."""
        pause = timing.FIRST_PAUSE
        while event["OperationStatus"] in _UNDER_WAY:
            self.access.pause(pause)
            pause = min(2 * pause, timing.LONGEST_PAUSE)
            answer = self._api.get_resource_request_status(RequestToken=event["RequestToken"])
            event = answer["ProgressEvent"]
        if event["OperationStatus"] == "SUCCESS":
            return event
        # For a day and a half the same token would only tell of this failure again.
        self.access.note(failedRequest=token)
        code = event.get("ErrorCode", event["OperationStatus"])
        if code in ("AlreadyExists", "NotFound"):
            return event
        words = f"{event.get('Operation', 'request')}: {code}: {event.get('StatusMessage', '')}"
        text = without(words, secrets_of(self.config))
        if code in _PASSING or event["OperationStatus"] == "CANCEL_COMPLETE":
            raise Retry(text)
        raise Fail(text)

    def _refuse_to_let_aws_choose(self) -> None:
        """Raise Fail if nothing in the config names the resource: each run would create another one."""
        values = {str(value) for value in self.wanted.values()}
        for part in self.name.split("|"):
            if not values & {part, part.rpartition(":")[2], part.rpartition("/")[2]}:
                raise Fail(
                    f"{self} is not there, and no property of its config is {part!r}: AWS would choose "
                    "another name, and every run would create one more"
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
