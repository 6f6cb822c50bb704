"""Queues of SQS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from holdfast.jobs.aws.adapter import Adapter, Object
from holdfast.jobs.aws.compare import as_texts, difference, tag_changes
from holdfast.jobs.aws.trouble import ask, make

GONE = ("AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist")
TAKEN = ("QueueAlreadyExists", "QueueNameExists")


class MessageQueue(Adapter):
    """A queue of messages; the parameters of CreateQueue. Attributes may be numbers, switches and objects."""

    TYPE = "AWS::SQS::Queue"
    SHORT = "sqs_queue"
    KEYS: ClassVar[Mapping[str, Any]] = {"Attributes": Object, "tags": dict[str, str] | None}

    def normal(self, config: dict[str, Any]) -> dict[str, Any]:
        return {key: as_texts(value or {}) for key, value in config.items()}

    def exists(self) -> bool:
        return self._url() is not None

    def read(self) -> dict[str, Any] | None:
        url = self._url()
        if url is None:
            return None
        # It may go between two looks.
        answer = ask(self._sqs.get_queue_attributes, GONE, QueueUrl=url, AttributeNames=["All"])
        if answer is None:
            return None
        attributes = answer["Attributes"]
        tags = self._sqs.list_queue_tags(QueueUrl=url).get("Tags", {}) if "tags" in self.wanted else {}
        return {"arn": attributes["QueueArn"], "url": url, "Attributes": attributes, "tags": tags}

    def changes(self) -> dict[str, Any]:
        wanted, found = self.wanted, self.found
        changes = {}
        attributes = difference(wanted.get("Attributes", {}), found["Attributes"])
        is_fifo = found["Attributes"].get("FifoQueue", "false")
        if attributes.pop("FifoQueue", is_fifo) != is_fifo:
            raise self.cannot_change("FifoQueue")
        if attributes:
            changes["Attributes"] = attributes
        if any(tag_changes(wanted.get("tags", found["tags"]), found["tags"])):
            changes["tags"] = wanted["tags"]
        return changes

    def create(self) -> str:
        parameters = {key: value for key, value in self.wanted.items() if value}
        url = make(self._sqs.create_queue, TAKEN, QueueName=self.name, **parameters)["QueueUrl"]
        self.adjust()
        answer = self._sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
        return str(answer["Attributes"]["QueueArn"])

    def update(self, changes: dict[str, Any]) -> None:
        if "Attributes" in changes:
            self._sqs.set_queue_attributes(QueueUrl=self.found["url"], Attributes=changes["Attributes"])
        if "tags" in changes:
            to_set, to_remove = tag_changes(changes["tags"], self.found["tags"])
            if to_set:
                self._sqs.tag_queue(QueueUrl=self.found["url"], Tags=to_set)
            if to_remove:
                self._sqs.untag_queue(QueueUrl=self.found["url"], TagKeys=to_remove)

    def delete(self) -> bool:
        url = self._url()
        return url is not None and ask(self._sqs.delete_queue, GONE, QueueUrl=url) is not None

    @property
    def _sqs(self) -> Any:
        return self.access.client("sqs")

    def _url(self) -> str | None:
        answer = ask(self._sqs.get_queue_url, GONE, QueueName=self.name)
        return None if answer is None else str(answer["QueueUrl"])
