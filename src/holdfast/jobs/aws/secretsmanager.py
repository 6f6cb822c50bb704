"""Secrets of Secrets Manager."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, ClassVar

from holdfast.jobs.aws.adapter import Adapter, Tags, Text
from holdfast.jobs.aws.compare import key_as_named, same, tag_changes, tag_list, tag_map
from holdfast.jobs.aws.trouble import ask, make

GONE = ("ResourceNotFoundException",)
TAKEN = ("ResourceExistsException",)
_VALUES = ("SecretString", "SecretBinary")
_FOR_DELETION = frozenset({"RecoveryWindowInDays", "ForceDeleteWithoutRecovery"})


class Secret(Adapter):
    """A secret; the parameters of CreateSecret, with SecretBinary as base64, and those of DeleteSecret.

    One that is scheduled for deletion counts as gone; to sync it is to restore it.
    """

    TYPE = "AWS::SecretsManager::Secret"
    SHORT = "secretsmanager_secret"
    KEYS: ClassVar[Mapping[str, Any]] = {
        "SecretString": str,
        "SecretBinary": str,
        "Description": Text,
        "KmsKeyId": Text,
        "Tags": Tags,
        "RecoveryWindowInDays": int,
        "ForceDeleteWithoutRecovery": bool,
    }

    EITHER = _VALUES

    @classmethod
    def check(cls, config: dict[str, Any], action: str) -> None:
        super().check(config, action)
        try:
            base64.b64decode(config.get("SecretBinary", ""), validate=True)
        except ValueError:
            raise ValueError("config.SecretBinary is not base64") from None

    def normal(self, config: dict[str, Any]) -> dict[str, Any]:
        wanted = {key: value for key, value in config.items() if key not in _FOR_DELETION}
        if "SecretBinary" in wanted:
            wanted["SecretBinary"] = base64.b64decode(wanted["SecretBinary"])
        if "Tags" in wanted:
            wanted["Tags"] = tag_map(wanted["Tags"] or [])
        return wanted

    def exists(self) -> bool:
        answer = ask(self._secrets.describe_secret, GONE, SecretId=self.name)
        return answer is not None and "DeletedDate" not in answer

    def read(self) -> dict[str, Any] | None:
        answer = ask(self._secrets.describe_secret, GONE, SecretId=self.name)
        if answer is None:
            return None
        found = {"arn": answer["ARN"], **{key: answer.get(key) for key in ("Description", "KmsKeyId")}}
        found["KmsKeyId"] = key_as_named(found["KmsKeyId"], self.wanted.get("KmsKeyId"))
        found["Tags"] = tag_map(answer.get("Tags") or [])
        found["deleted"] = "DeletedDate" in answer
        if not found["deleted"] and any(key in self.wanted for key in _VALUES):
            value = ask(self._secrets.get_secret_value, GONE, SecretId=self.name) or {}
            found |= {key: value.get(key) for key in (*_VALUES, "VersionId")}
        return found

    def changes(self) -> dict[str, Any]:
        found = self.found
        changes: dict[str, Any] = {"deleted": False} if found["deleted"] else {}
        for key, value in self.wanted.items():
            # Values and tags to the letter, also where they are JSON.
            is_same = value == found.get(key) if key in (*_VALUES, "Tags") else same(value, found.get(key))
            if not is_same:
                changes[key] = value
        return changes

    def create(self) -> str:
        parameters = {key: value for key, value in self.wanted.items() if value is not None}
        if "Tags" in self.wanted:
            parameters["Tags"] = tag_list(self.wanted["Tags"])
        parameters["ClientRequestToken"] = self.access.token("create")
        return str(make(self._secrets.create_secret, TAKEN, Name=self.name, **parameters)["ARN"])

    def update(self, changes: dict[str, Any]) -> None:
        if "deleted" in changes:
            self._secrets.restore_secret(SecretId=self.name)
        settings = {key: value for key, value in changes.items() if key not in ("deleted", "Tags")}
        if settings:
            token = self.access.token("update", str(self.found.get("VersionId")))
            values = {key: "" if value is None else value for key, value in settings.items()}
            self._secrets.update_secret(SecretId=self.name, ClientRequestToken=token, **values)
        if "Tags" in changes:
            to_set, to_remove = tag_changes(changes["Tags"], self.found["Tags"])
            if to_set:
                self._secrets.tag_resource(SecretId=self.name, Tags=tag_list(to_set))
            if to_remove:
                self._secrets.untag_resource(SecretId=self.name, TagKeys=to_remove)

    def delete(self) -> bool:
        if not self.exists():
            return False
        how = {key: value for key, value in self.config.items() if key in _FOR_DELETION}
        return ask(self._secrets.delete_secret, GONE, SecretId=self.name, **how) is not None

    @property
    def _secrets(self) -> Any:
        return self.access.client("secretsmanager")
