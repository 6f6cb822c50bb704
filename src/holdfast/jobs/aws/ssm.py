"""Parameters of Systems Manager."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from holdfast.jobs.aws.adapter import Adapter, Tags, Text
from holdfast.jobs.aws.compare import key_as_named, tag_changes, tag_list, tag_map
from holdfast.jobs.aws.trouble import ask, make

GONE = ("ParameterNotFound",)
TAKEN = ("ParameterAlreadyExists",)
_DESCRIBED = frozenset({"Description", "KeyId", "AllowedPattern", "Tier", "Policies", "DataType"})


class Parameter(Adapter):
    """A parameter; the parameters of PutParameter.

    `SecretValue` stands for `Value` where it is to be shown to nobody: payloads are redacted by names.
    """

    TYPE = "AWS::SSM::Parameter"
    SHORT = "ssm_parameter"
    KEYS: ClassVar[Mapping[str, Any]] = {
        **dict.fromkeys(_DESCRIBED, str),
        "Description": Text,
        "AllowedPattern": Text,
        "Type": Literal["String", "StringList", "SecureString"],
        "Value": str,
        "SecretValue": str,
        "Tags": Tags,
    }

    EITHER = ("Value", "SecretValue")
    EITHER_IS_NEEDED = True

    def normal(self, config: dict[str, Any]) -> dict[str, Any]:
        wanted = dict(config)
        if "SecretValue" in wanted:
            wanted["Value"] = wanted.pop("SecretValue")
            wanted.setdefault("Type", "SecureString")
        wanted.setdefault("Type", "String")
        if "Tags" in wanted:
            wanted["Tags"] = tag_map(wanted["Tags"] or [])
        return wanted

    def exists(self) -> bool:
        return ask(self._ssm.get_parameter, GONE, Name=self.name) is not None

    def read(self) -> dict[str, Any] | None:
        answer = ask(self._ssm.get_parameter, GONE, Name=self.name, WithDecryption=True)
        if answer is None:
            return None
        found = {"arn": answer["Parameter"].get("ARN"), **answer["Parameter"]}
        if not _DESCRIBED.isdisjoint(self.wanted):
            found |= self._described()
            found["KeyId"] = key_as_named(found.get("KeyId"), self.wanted.get("KeyId"))
        if "Tags" in self.wanted:
            answer = self._ssm.list_tags_for_resource(ResourceType="Parameter", ResourceId=self.name)
            found["Tags"] = tag_map(answer["TagList"])
        return found

    def changes(self) -> dict[str, Any]:
        wanted, found = self.wanted, self.found
        plain = {key: value for key, value in wanted.items() if key not in ("Value", "Tags")}
        if plain.get("Tier") == "Intelligent-Tiering":  # the service then chooses one of the others
            del plain["Tier"]
        changes = self.difference(plain)
        if wanted["Value"] != found["Value"]:  # to the letter, also where it is JSON
            changes["Value"] = wanted["Value"]
        if "Tags" in wanted and wanted["Tags"] != found["Tags"]:
            changes["Tags"] = wanted["Tags"]
        return changes

    def create(self) -> str | None:
        parameters = {key: value for key, value in self.wanted.items() if value is not None and key != "Tags"}
        if self.wanted.get("Tags"):
            parameters["Tags"] = tag_list(self.wanted["Tags"])
        make(self._ssm.put_parameter, TAKEN, Name=self.name, **parameters)
        answer = ask(self._ssm.get_parameter, GONE, Name=self.name)
        return None if answer is None else answer["Parameter"].get("ARN")

    def update(self, changes: dict[str, Any]) -> None:
        if changes.keys() - {"Tags"}:
            # A change is a new version of the whole parameter.
            parameters = {
                key: "" if value is None else value for key, value in self.wanted.items() if key != "Tags"
            }
            self._ssm.put_parameter(Name=self.name, Overwrite=True, **parameters)
        if "Tags" in changes:
            to_set, to_remove = tag_changes(changes["Tags"], self.found["Tags"])
            which = {"ResourceType": "Parameter", "ResourceId": self.name}
            if to_set:
                self._ssm.add_tags_to_resource(**which, Tags=tag_list(to_set))
            if to_remove:
                self._ssm.remove_tags_from_resource(**which, TagKeys=to_remove)

    def delete(self) -> bool:
        return ask(self._ssm.delete_parameter, GONE, Name=self.name) is not None

    @property
    def _ssm(self) -> Any:
        return self.access.client("ssm")

    def _described(self) -> dict[str, Any]:
        filters = [{"Key": "Name", "Option": "Equals", "Values": [self.name]}]
        for page in self._ssm.get_paginator("describe_parameters").paginate(ParameterFilters=filters):
            for parameter in page["Parameters"]:
                told = {key: parameter.get(key) for key in _DESCRIBED - {"Policies"}}
                policies = ",".join(policy["PolicyText"] for policy in parameter.get("Policies") or [])
                return {**told, "Policies": f"[{policies}]"}
        return {}
