"""Buckets of S3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from msgspec import Struct, field

from holdfast.jobs.aws.adapter import Adapter, Object, Switch, Tags
from holdfast.jobs.aws.compare import as_text, same
from holdfast.jobs.aws.trouble import ask, make

GONE = ("404", "NoSuchBucket", "NotFound")


class _Part(NamedTuple):
    """A part of a bucket's configuration: the calls that tell, set and remove it."""

    get: str
    put: str
    remove: str | None
    unset: tuple[str, ...] = ()
    """The codes that mean that it was never set."""


_PARTS = {
    "PublicAccessBlockConfiguration": _Part(
        "get_public_access_block",
        "put_public_access_block",
        "delete_public_access_block",
        ("NoSuchPublicAccessBlockConfiguration",),
    ),
    "OwnershipControls": _Part(
        "get_bucket_ownership_controls",
        "put_bucket_ownership_controls",
        "delete_bucket_ownership_controls",
        ("OwnershipControlsNotFoundError",),
    ),
    "ServerSideEncryptionConfiguration": _Part(
        "get_bucket_encryption",
        "put_bucket_encryption",
        "delete_bucket_encryption",
        ("ServerSideEncryptionConfigurationNotFoundError",),
    ),
    "VersioningConfiguration": _Part("get_bucket_versioning", "put_bucket_versioning", None),
    "Tagging": _Part("get_bucket_tagging", "put_bucket_tagging", "delete_bucket_tagging", ("NoSuchTagSet",)),
    "LifecycleConfiguration": _Part(
        "get_bucket_lifecycle_configuration",
        "put_bucket_lifecycle_configuration",
        "delete_bucket_lifecycle",
        ("NoSuchLifecycleConfiguration",),
    ),
    "CORSConfiguration": _Part(
        "get_bucket_cors", "put_bucket_cors", "delete_bucket_cors", ("NoSuchCORSConfiguration",)
    ),
    "Policy": _Part(
        "get_bucket_policy", "put_bucket_policy", "delete_bucket_policy", ("NoSuchBucketPolicy",)
    ),
}
# These answers are the configuration itself, the others have it under its own name.
_BARE = ("VersioningConfiguration", "Tagging", "LifecycleConfiguration", "CORSConfiguration")


class Tagging(Struct, forbid_unknown_fields=True):
    """The tags of a bucket."""

    tag_set: Tags = field(name="TagSet")


class Bucket(Adapter):
    """A bucket; its parts are the parameters of CreateBucket and of the calls PutBucket…"""

    TYPE = "AWS::S3::Bucket"
    SHORT = "s3_bucket"
    FIXED = frozenset({"CreateBucketConfiguration", "ObjectLockEnabledForBucket"})
    KEYS: ClassVar[Mapping[str, Any]] = {
        "CreateBucketConfiguration": Object,
        "ObjectLockEnabledForBucket": Switch,
        **dict.fromkeys(_PARTS, Object),
        "Tagging": Tagging | None,
        "Policy": dict[str, Any] | str | None,
    }

    def exists(self) -> bool:
        return ask(self._s3.head_bucket, GONE, Bucket=self.name) is not None

    def read(self) -> dict[str, Any] | None:
        if not self.exists():
            return None
        found: dict[str, Any] = {"arn": self._arn}
        for key in self.wanted:
            found[key] = self._found(key)
        return found

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
        region = self._s3.meta.region_name
        if region != "us-east-1":  # which must not be named
            parameters.setdefault("CreateBucketConfiguration", {"LocationConstraint": region})
        make(self._s3.create_bucket, ("BucketAlreadyOwnedByYou",), Bucket=self.name, **parameters)
        self.update({key: value for key, value in self.wanted.items() if value and key not in self.FIXED})
        return self._arn

    def update(self, changes: dict[str, Any]) -> None:
        for key, part in _PARTS.items():  # in this order: what closes the bucket comes first
            if key not in changes:
                continue
            self.access.check()
            value = changes[key]
            if value or part.remove is None:
                setting = as_text(value) if key == "Policy" else value
                getattr(self._s3, part.put)(Bucket=self.name, **{key: setting})
            else:
                getattr(self._s3, part.remove)(Bucket=self.name)

    def delete(self) -> bool:
        return ask(self._s3.delete_bucket, GONE, Bucket=self.name) is not None

    @property
    def _s3(self) -> Any:
        return self.access.client("s3")

    @property
    def _arn(self) -> str:
        return f"arn:{self._s3.meta.partition}:s3:::{self.name}"

    def _found(self, key: str) -> Any:
        if key == "CreateBucketConfiguration":
            location = self._s3.get_bucket_location(Bucket=self.name).get("LocationConstraint")
            return {"LocationConstraint": location}
        if key == "ObjectLockEnabledForBucket":
            unset = ("ObjectLockConfigurationNotFoundError",)
            lock = ask(self._s3.get_object_lock_configuration, unset, Bucket=self.name) or {}
            return lock.get("ObjectLockConfiguration", {}).get("ObjectLockEnabled") == "Enabled"
        part = _PARTS[key]
        answer = ask(getattr(self._s3, part.get), part.unset, Bucket=self.name)
        if answer is None:
            return None
        answer.pop("ResponseMetadata", None)
        return answer if key in _BARE else answer.get(key)
