"""Topics of SNS."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

from holdfast.jobs.aws.adapter import Adapter, Object, Tags
from holdfast.jobs.aws.compare import as_texts, difference, tag_changes, tag_list, tag_map
from holdfast.jobs.aws.trouble import Exists, ask, message_of

GONE = ("NotFound", "NotFoundException", "ResourceNotFound", "ResourceNotFoundException")


class Topic(Adapter):
    """A topic; the parameters of CreateTopic. Attributes may be numbers, switches and objects."""

    TYPE = "AWS::SNS::Topic"
    SHORT = "sns_topic"
    KEYS: ClassVar[Mapping[str, Any]] = {"Attributes": Object, "Tags": Tags}

    def normal(self, config: dict[str, Any]) -> dict[str, Any]:
        wanted: dict[str, Any] = {}
        if "Attributes" in config:
            wanted["Attributes"] = as_texts(config["Attributes"] or {})
        if "Tags" in config:
            wanted["Tags"] = tag_map(config["Tags"] or [])
        return wanted

    def exists(self) -> bool:
        return ask(self._sns.get_topic_attributes, GONE, TopicArn=self._arn) is not None

    def read(self) -> dict[str, Any] | None:
        answer = ask(self._sns.get_topic_attributes, GONE, TopicArn=self._arn)
        if answer is None:
            return None
        tags = {}
        if "Tags" in self.wanted:
            tags = tag_map(self._sns.list_tags_for_resource(ResourceArn=self._arn)["Tags"])
        return {"arn": self._arn, "Attributes": answer["Attributes"], "Tags": tags}

    def changes(self) -> dict[str, Any]:
        wanted, found = self.wanted, self.found
        changes = {}
        attributes = difference(wanted.get("Attributes", {}), found["Attributes"])
        is_fifo = found["Attributes"].get("FifoTopic", "false")
        if attributes.pop("FifoTopic", is_fifo) != is_fifo:
            raise self.cannot_change("FifoTopic")
        if attributes:
            changes["Attributes"] = attributes
        if any(tag_changes(wanted.get("Tags", found["Tags"]), found["Tags"])):
            changes["Tags"] = wanted["Tags"]
        return changes

    def create(self) -> str:
        parameters: dict[str, Any] = {}
        if self.wanted.get("Attributes"):
            parameters["Attributes"] = self.wanted["Attributes"]
        if self.wanted.get("Tags"):
            parameters["Tags"] = tag_list(self.wanted["Tags"])
        try:
            arn = str(self._sns.create_topic(Name=self.name, **parameters)["TopicArn"])
        except Exception as error:
            if "already exists" in message_of(error):  # with other attributes or tags: it has no code for it
                raise Exists from None
            raise
        self.adjust()
        return arn

    def update(self, changes: dict[str, Any]) -> None:
        for name, value in changes.get("Attributes", {}).items():
            self.access.check()
            self._sns.set_topic_attributes(TopicArn=self._arn, AttributeName=name, AttributeValue=value)
        if "Tags" in changes:
            to_set, to_remove = tag_changes(changes["Tags"], self.found["Tags"])
            if to_set:
                self._sns.tag_resource(ResourceArn=self._arn, Tags=tag_list(to_set))
            if to_remove:
                self._sns.untag_resource(ResourceArn=self._arn, TagKeys=to_remove)

    def delete(self) -> bool:
        # Deleting what is gone is no error to the service, so it does not tell.
        if not self.exists():
            return False
        return ask(self._sns.delete_topic, GONE, TopicArn=self._arn) is not None

    @property
    def _sns(self) -> Any:
        return self.access.client("sns")

    @cached_property
    def _arn(self) -> str:
        return self.access.arn("sns", self.name)
