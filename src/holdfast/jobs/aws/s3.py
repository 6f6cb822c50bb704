"""Buckets of S3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec import Struct, field

from holdfast.jobs.aws.adapter import Adapter, Object, Switch, Tags
from holdfast.jobs.aws.compare import as_text, same

_PARTS: Mapping[str, tuple[str, str | None]] = {
    "CreateBucketConfiguration": ("bucket_location", None),
    "PublicAccessBlockConfiguration": ("public_access_block", "NoSuchPublicAccessBlockConfiguration"),
    "OwnershipControls": ("bucket_ownership_controls", "OwnershipControlsNotFoundError"),
    "ServerSideEncryptionConfiguration": (
        "bucket_encryption",
        "ServerSideEncryptionConfigurationNotFoundError",
    ),
    "VersioningConfiguration": ("bucket_versioning", None),
    "Tagging": ("bucket_tagging", "NoSuchTagSet"),
    "LifecycleConfiguration": ("bucket_lifecycle_configuration", "NoSuchLifecycleConfiguration"),
    "CORSConfiguration": ("bucket_cors", "NoSuchCORSConfiguration"),
    "Policy": ("bucket_policy", "NoSuchBucketPolicy"),
}
"""The parts of a bucket's configuration: what the operations get_…, put_… and delete_… of each are called,
and the code that means that it was never set. What has no such code can only be set."""
_UNSET = tuple(unset for _, unset in _PARTS.values() if unset)
_NO_LOCK = "ObjectLockConfigurationNotFoundError"


class Tagging(Struct, forbid_unknown_fields=True):
    """The tags of a bucket."""

    tag_set: Tags = field(name="TagSet")


class Bucket(Adapter):
    """A bucket; its parts are the parameters of CreateBucket and of the calls PutBucket…"""

    TYPE = "AWS::S3::Bucket"
    GONE = ("404", "NoSuchBucket", "NotFound", _NO_LOCK, *_UNSET)
    TAKEN = ("BucketAlreadyOwnedByYou",)
    FIXED = frozenset({"CreateBucketConfiguration", "ObjectLockEnabledForBucket"})
    KEYS: ClassVar[Mapping[str, Any]] = {
        "ObjectLockEnabledForBucket": Switch,
        **dict.fromkeys(_PARTS, Object),
        "Tagging": Tagging | None,
        "Policy": dict[str, Any] | str | None,
    }

    def describe(self) -> Any | None:
        return self.ask("head_bucket", Bucket=self.name)

    def read(self) -> dict[str, Any] | None:
        if not self.exists():
            return None
        return {"arn": self._arn, **{key: self._found(key) for key in self.wanted}}

    def changes(self) -> dict[str, Any]:
        changes = super().changes()
        # The service adds its own choices to a rule of encryption.
        key = "ServerSideEncryptionConfiguration"
        rules, told = ((each.get(key) or {}).get("Rules") or [] for each in (self.wanted, self.found))
        if key in changes and rules and len(rules) == len(told) and all(map(same, rules, told)):
            del changes[key]
        return changes

    def create(self) -> str:
        parameters = {key: value for key, value in self.wanted.items() if key in self.FIXED}
        region = self.api.meta.region_name
        if region != "us-east-1":  # which must not be named
            parameters.setdefault("CreateBucketConfiguration", {"LocationConstraint": region})
        self.api.create_bucket(Bucket=self.name, **parameters)
        self.update({key: value for key, value in self.wanted.items() if value and key not in self.FIXED})
        return self._arn

    def update(self, changes: dict[str, Any]) -> None:
        for key, (name, unset) in _PARTS.items():  # in this order: what closes the bucket comes first
            if key not in changes:
                continue
            value = changes[key]
            if value or unset is None:
                setting = as_text(value) if key == "Policy" else value
                getattr(self.api, f"put_{name}")(Bucket=self.name, **{key: setting})
            else:
                remove = f"delete_{name.removesuffix('_configuration')}"
                getattr(self.api, remove)(Bucket=self.name)

    def delete(self) -> bool:
        return self.ask("delete_bucket", Bucket=self.name) is not None

    @property
    def _arn(self) -> str:
        return f"arn:{self.api.meta.partition}:s3:::{self.name}"

    def _found(self, key: str) -> Any:
        if key == "ObjectLockEnabledForBucket":
            lock = self.ask("get_object_lock_configuration", Bucket=self.name) or {}
            return lock.get("ObjectLockConfiguration", {}).get("ObjectLockEnabled") == "Enabled"
        answer = self.ask(f"get_{_PARTS[key][0]}", Bucket=self.name)
        if answer is None:
            return None
        answer.pop("ResponseMetadata", None)
        return answer.get(key, answer)  # some answers are the configuration itself
