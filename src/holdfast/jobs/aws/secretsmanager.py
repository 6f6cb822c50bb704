"""Secrets of Secrets Manager."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, ClassVar

from holdfast.jobs.aws.adapter import Adapter, Tags, Text
from holdfast.jobs.aws.compare import key_as_named, tag_map

_VALUES = ("SecretString", "SecretBinary")
_FOR_DELETION = frozenset({"RecoveryWindowInDays", "ForceDeleteWithoutRecovery"})


class Secret(Adapter):
    """A secret; the parameters of CreateSecret, with SecretBinary as base64, and of DeleteSecret.

    A secret that is scheduled for deletion counts as gone; syncing it restores it.
    """

    TYPE = "AWS::SecretsManager::Secret"
    GONE = ("ResourceNotFoundException",)
    TAKEN = ("ResourceExistsException",)
    EXACT = frozenset(_VALUES)
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
            raise ValueError("config.SecretBinary is not valid base64") from None

    def normal(self, config: dict[str, Any]) -> dict[str, Any]:
        config = super().normal(config)
        wanted = {key: value for key, value in config.items() if key not in _FOR_DELETION}
        if "SecretBinary" in wanted:
            wanted["SecretBinary"] = base64.b64decode(wanted["SecretBinary"])
        return wanted

    def describe(self) -> Any | None:
        return self.ask("describe_secret", SecretId=self.name)

    def exists(self) -> bool:
        answer = self.describe()
        return answer is not None and "DeletedDate" not in answer

    def read(self) -> dict[str, Any] | None:
        answer = self.describe()
        if answer is None:
            return None
        found = {"arn": answer["ARN"], **{key: answer.get(key) for key in ("Description", "KmsKeyId")}}
        found["KmsKeyId"] = key_as_named(found["KmsKeyId"], self.wanted.get("KmsKeyId"))
        found["Tags"] = tag_map(answer.get("Tags") or [])
        found["deleted"] = "DeletedDate" in answer
        if not found["deleted"] and any(key in self.wanted for key in _VALUES):
            value = self.ask("get_secret_value", SecretId=self.name) or {}
            found |= {key: value.get(key) for key in (*_VALUES, "VersionId")}
        return found

    def changes(self) -> dict[str, Any]:
        restored = {"deleted": False} if self.found["deleted"] else {}
        return {**restored, **self.difference(self.wanted)}

    def create(self) -> str:
        token = self.access.token("create")
        answer = self.api.create_secret(Name=self.name, ClientRequestToken=token, **self.parameters())
        return str(answer["ARN"])

    def update(self, changes: dict[str, Any]) -> None:
        if "deleted" in changes:
            self.api.restore_secret(SecretId=self.name)
        settings = changes.keys() - {"deleted", "Tags"}
        if settings:
            token = self.access.token("update", str(self.found.get("VersionId")))
            values = {key: "" if changes[key] is None else changes[key] for key in settings}
            self.api.update_secret(SecretId=self.name, ClientRequestToken=token, **values)

    def tagged(self) -> dict[str, str]:
        return {"SecretId": self.name}

    def delete(self) -> bool:
        if not self.exists():
            return False
        how = {key: value for key, value in self.config.items() if key in _FOR_DELETION}
        return self.ask("delete_secret", SecretId=self.name, **how) is not None
