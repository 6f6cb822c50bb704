"""Topics of SNS and queues of SQS, which are both a map of attributes and tags."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

from holdfast.jobs.aws.adapter import Adapter, Object, Tags
from holdfast.jobs.aws.compare import as_text, difference, tag_map
from holdfast.jobs.aws.trouble import message_of


class Messaging(Adapter):
    """What both have. Attributes may be numbers, switches and objects in a config, and are texts to AWS."""

    FIFO: ClassVar[str]
    """The attribute that can't be changed."""

    def normal(self, config: dict[str, Any]) -> dict[str, Any]:
        wanted = super().normal(config)
        if "Attributes" not in config:
            return wanted
        texts = {name: as_text(value) for name, value in (config["Attributes"] or {}).items()}
        return {**wanted, "Attributes": texts}

    def changes(self) -> dict[str, Any]:
        found = self.found["Attributes"]
        changes = self.difference({key: self.wanted[key] for key in self.wanted if key != "Attributes"})
        attributes = difference(self.wanted.get("Attributes", {}), found)
        is_fifo = found.get(self.FIFO, "false")
        if attributes.pop(self.FIFO, is_fifo) != is_fifo:
            raise self.cannot_change(self.FIFO)
        return {**changes, "Attributes": attributes} if attributes else changes


class Topic(Messaging):
    """A topic; the parameters of CreateTopic."""

    TYPE = "AWS::SNS::Topic"
    GONE = ("NotFound", "NotFoundException", "ResourceNotFound", "ResourceNotFoundException")
    FIFO = "FifoTopic"
    KEYS: ClassVar[Mapping[str, Any]] = {"Attributes": Object, "Tags": Tags}

    def describe(self) -> Any | None:
        return self.ask("get_topic_attributes", TopicArn=self._arn)

    def read(self) -> dict[str, Any] | None:
        answer = self.describe()
        if answer is None:
            return None
        tags = {}
        if "Tags" in self.wanted:
            tags = tag_map(self.api.list_tags_for_resource(ResourceArn=self._arn)["Tags"])
        return {"arn": self._arn, "Attributes": answer["Attributes"], "Tags": tags}

    def create(self) -> str:
        arn = str(self.api.create_topic(Name=self.name, **self.parameters())["TopicArn"])
        self.adjust()  # it answers with one that was there before as if it had created it
        return arn

    def is_taken(self, error: Exception) -> bool:
        return "already exists" in message_of(error)  # with other attributes or tags: it has no code for it

    def update(self, changes: dict[str, Any]) -> None:
        for name, value in changes.get("Attributes", {}).items():
            self.api.set_topic_attributes(TopicArn=self._arn, AttributeName=name, AttributeValue=value)

    def delete(self) -> bool:
        # Deleting what is gone is no error to the service, so it does not tell.
        return self.exists() and self.ask("delete_topic", TopicArn=self._arn) is not None

    @cached_property
    def _arn(self) -> str:
        account = self.access.client("sts").get_caller_identity()["Account"]
        return f"arn:{self.api.meta.partition}:sns:{self.api.meta.region_name}:{account}:{self.name}"


class MessageQueue(Messaging):
    """A queue of messages; the parameters of CreateQueue, whose tags are a map."""

    TYPE = "AWS::SQS::Queue"
    GONE = ("AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist")
    TAKEN = ("QueueAlreadyExists", "QueueNameExists")
    FIFO = "FifoQueue"
    KEYS: ClassVar[Mapping[str, Any]] = {"Attributes": Object, "tags": dict[str, str] | None}
    TAGS = "tags"
    TAGGING = ("tag_queue", "untag_queue")

    def describe(self) -> Any | None:
        return self.ask("get_queue_url", QueueName=self.name)

    def read(self) -> dict[str, Any] | None:
        url = (self.describe() or {}).get("QueueUrl")
        answer = url and self.ask("get_queue_attributes", QueueUrl=url, AttributeNames=["All"])
        if answer is None:
            return None
        attributes = answer["Attributes"]
        tags = self.api.list_queue_tags(QueueUrl=url).get("Tags", {}) if "tags" in self.wanted else {}
        return {"arn": attributes["QueueArn"], "url": url, "Attributes": attributes, "tags": tags}

    def create(self) -> str:
        url = self.api.create_queue(QueueName=self.name, **self.parameters())["QueueUrl"]
        self.adjust()  # as with a topic
        answer = self.api.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
        return str(answer["Attributes"]["QueueArn"])

    def update(self, changes: dict[str, Any]) -> None:
        if "Attributes" in changes:
            self.api.set_queue_attributes(QueueUrl=self.found["url"], Attributes=changes["Attributes"])

    def tagged(self) -> dict[str, str]:
        return {"QueueUrl": self.found["url"]}

    def delete(self) -> bool:
        found = self.describe()
        return found is not None and self.ask("delete_queue", QueueUrl=found["QueueUrl"]) is not None
