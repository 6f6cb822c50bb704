"""Parameters of Systems Manager."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from holdfast.jobs.aws.adapter import Adapter, Tags, Text
from holdfast.jobs.aws.compare import key_as_named, tag_map

_DESCRIBED = frozenset({"Description", "KeyId", "AllowedPattern", "Tier", "Policies", "DataType"})


class Parameter(Adapter):
    """A parameter; the parameters of PutParameter.

    `SecretValue` is used instead of `Value` if nobody should see it: payloads are redacted by field name.
    """

    TYPE = "AWS::SSM::Parameter"
    GONE = ("ParameterNotFound",)
    TAKEN = ("ParameterAlreadyExists",)
    EXACT = frozenset({"Value"})
    TAGGING = ("add_tags_to_resource", "remove_tags_from_resource")
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
        wanted = dict(super().normal(config))
        if "SecretValue" in wanted:
            wanted["Value"] = wanted.pop("SecretValue")
            wanted.setdefault("Type", "SecureString")
        wanted.setdefault("Type", "String")
        return wanted

    def describe(self) -> Any | None:
        return self.ask("get_parameter", Name=self.name)

    def read(self) -> dict[str, Any] | None:
        answer = self.ask("get_parameter", Name=self.name, WithDecryption=True)
        if answer is None:
            return None
        found = {"arn": answer["Parameter"].get("ARN"), **answer["Parameter"]}
        if not _DESCRIBED.isdisjoint(self.wanted):
            found |= self._described()
            found["KeyId"] = key_as_named(found.get("KeyId"), self.wanted.get("KeyId"))
        if "Tags" in self.wanted:
            found["Tags"] = tag_map(self.api.list_tags_for_resource(**self.tagged())["TagList"])
        return found

    def changes(self) -> dict[str, Any]:
        wanted = dict(self.wanted)
        if wanted.get("Tier") == "Intelligent-Tiering":  # the service then chooses one of the others
            del wanted["Tier"]
        return self.difference(wanted)

    def create(self) -> str | None:
        self.api.put_parameter(Name=self.name, **self.parameters())
        answer = self.describe()
        return None if answer is None else answer["Parameter"].get("ARN")

    def update(self, changes: dict[str, Any]) -> None:
        if changes.keys() - {"Tags"}:
            # A change is a new version of the whole parameter.
            parameters = {
                key: "" if value is None else value for key, value in self.wanted.items() if key != "Tags"
            }
            self.api.put_parameter(Name=self.name, Overwrite=True, **parameters)

    def tagged(self) -> dict[str, str]:
        return {"ResourceType": "Parameter", "ResourceId": self.name}

    def delete(self) -> bool:
        return self.ask("delete_parameter", Name=self.name) is not None

    def _described(self) -> dict[str, Any]:
        filters = [{"Key": "Name", "Option": "Equals", "Values": [self.name]}]
        for page in self.api.get_paginator("describe_parameters").paginate(ParameterFilters=filters):
            for parameter in page["Parameters"]:
                told = {key: parameter.get(key) for key in _DESCRIBED - {"Policies"}}
                policies = ",".join(policy["PolicyText"] for policy in parameter.get("Policies") or [])
                return {**told, "Policies": f"[{policies}]"}
        return {}
