"""The interface that every kind of resource implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import msgspec
from msgspec import Struct, field

from holdfast.errors import Fail
from holdfast.jobs.aws.access import Access
from holdfast.jobs.aws.compare import difference, tag_list, tag_map
from holdfast.jobs.aws.trouble import Exists, code_of


class Tag(Struct, forbid_unknown_fields=True):
    """A tag in a config."""

    key: str = field(name="Key")
    value: str = field(name="Value")


Tags = list[Tag] | None
Text = str | None
Switch = bool | None
Object = dict[str, Any] | None


class Adapter(ABC):
    """A resource by its name. A config has the keys of the service's own API.

    A key that a config omits stays unchanged; a key that it has replaces the whole value.
    """

    TYPE: ClassVar[str]
    SHORT: ClassVar[str]
    SERVICE: ClassVar[str]
    """The name of its client. Both follow from the type: AWS::S3::Bucket is s3_bucket, and s3 serves it."""
    GONE: ClassVar[tuple[str, ...]]
    TAKEN: ClassVar[tuple[str, ...]] = ()
    """The codes of answers that mean that the resource is not there, and that it is there already."""
    KEYS: ClassVar[Mapping[str, Any]]
    """What a config may have, with the type of each as far as it is checked before the service is asked."""
    EITHER: ClassVar[tuple[str, ...]] = ()
    EITHER_IS_NEEDED: ClassVar[bool] = False
    """Keys of which a config has one at most, and whether it must."""
    FIXED: ClassVar[frozenset[str]] = frozenset()
    """What can't be changed once the resource is there."""
    EXACT: ClassVar[frozenset[str]] = frozenset()
    """What is compared to the letter, also where it is JSON; tags are, too."""
    TAGS: ClassVar[str] = "Tags"
    TAGGING: ClassVar[tuple[str, str]] = ("tag_resource", "untag_resource")
    """Where a config has its tags, and the operations that set and remove some."""

    def __init_subclass__(cls) -> None:
        if "TYPE" in vars(cls):
            _, cls.SERVICE, kind = cls.TYPE.lower().split("::")
            cls.SHORT = f"{cls.SERVICE}_{kind}"

    def __init__(self, type: str, name: str, config: dict[str, Any], access: Access) -> None:
        self.type = type
        self.name = name
        self.config = config
        self.access = access
        self.wanted = self.normal(config)
        """The config in the form that `read` tells."""
        self.found: dict[str, Any] = {}
        """What was read last."""

    @classmethod
    def check(cls, config: dict[str, Any], action: str) -> None:
        """Raise ValueError if a config can't be right for an action."""
        for key, value in config.items():
            if key not in cls.KEYS:
                known = ", ".join(sorted(cls.KEYS))
                raise ValueError(f"config of {cls.TYPE} does not support {key!r}; supported: {known}")
            try:
                msgspec.convert(value, cls.KEYS[key])
            except msgspec.ValidationError as error:
                raise ValueError(f"config.{key}: {error}") from None
        given = [key for key in cls.EITHER if key in config]
        if len(given) > 1:
            raise ValueError(f"config can't have both {' and '.join(given)}")
        if action == "sync" and cls.EITHER_IS_NEEDED and not given:
            raise ValueError(f"config of {cls.TYPE} requires {' or '.join(cls.EITHER)}")

    def __str__(self) -> str:
        return f"{self.type} {self.name!r}"

    @property
    def api(self) -> Any:
        return self.access.client(self.SERVICE)

    def ask(self, operation: str, /, **parameters: Any) -> Any | None:
        """What the service answers; None if its code means that there is nothing."""
        try:
            return getattr(self.api, operation)(**parameters)
        except Exception as error:
            if code_of(error) in self.GONE:
                return None
            raise

    def is_taken(self, error: Exception) -> bool:
        """Whether an error of `create` means that the resource already exists."""
        return isinstance(error, Exists) or code_of(error) in self.TAKEN

    def normal(self, config: dict[str, Any]) -> dict[str, Any]:
        if self.TAGS not in config:
            return config
        tags = config[self.TAGS] or {}
        return {**config, self.TAGS: tags if isinstance(tags, dict) else tag_map(tags)}

    def changes(self) -> dict[str, Any]:
        """The values to change. Raises Fail if one of them can't be changed."""
        return self.difference(self.wanted)

    def difference(self, wanted: dict[str, Any]) -> dict[str, Any]:
        exact = wanted.keys() & {*self.EXACT, self.TAGS}
        changes = difference({key: wanted[key] for key in wanted if key not in exact}, self.found)
        for key in exact:
            if wanted[key] != self.found.get(key):
                changes[key] = wanted[key]
        for key in sorted(changes.keys() & self.FIXED):
            raise self.cannot_change(key)
        return changes

    def parameters(self, without: Collection[str] = ()) -> dict[str, Any]:
        """The config as the service takes it for a new resource: without empty values."""
        wanted = {**self.wanted, "Tags": tag_list(self.wanted.get("Tags", {}))}
        return {
            key: value for key, value in wanted.items() if key not in without and value not in (None, [], {})
        }

    def adjust(self) -> bool | None:
        """Change what differs; whether anything did, and None if the resource is not there."""
        found = self.read()
        if found is None:
            return None
        self.found = found
        changes = self.changes()
        if changes:
            self.update(changes)
            if self.TAGS in changes:
                self._change_tags(changes[self.TAGS], found[self.TAGS])
        return bool(changes)

    def _change_tags(self, wanted: dict[str, str], found: dict[str, str]) -> None:
        """Tags that the config doesn't list are removed."""
        set, remove = (getattr(self.api, operation) for operation in self.TAGGING)
        if to_set := {key: value for key, value in wanted.items() if found.get(key) != value}:
            set(**self.tagged(), Tags=tag_list(to_set) if self.TAGS == "Tags" else to_set)
        if to_remove := sorted(found.keys() - wanted.keys()):
            remove(**self.tagged(), TagKeys=to_remove)

    def tagged(self) -> dict[str, str]:
        """How the operations on tags name the resource."""
        return {"ResourceArn": self.found["arn"]}

    def cannot_change(self, what: str) -> Fail:
        """The error of a wish that only another resource could fulfil."""
        return Fail(f"{self} already exists with a different {what}, which can't be changed")

    def exists(self) -> bool:
        """Whether the resource exists and is not being deleted."""
        return self.describe() is not None

    @abstractmethod
    def describe(self) -> Any | None:
        """What the service says of the resource in one call; None if the resource is not there."""

    @abstractmethod
    def read(self) -> dict[str, Any] | None:
        """What is found under the wanted keys, and the ARN under "arn"; None if the resource is not there."""

    @abstractmethod
    def create(self) -> str | None:
        """Create the resource as wanted and return its ARN."""

    @abstractmethod
    def update(self, changes: dict[str, Any]) -> None:
        """Change whatever differs, except tags."""

    @abstractmethod
    def delete(self) -> bool:
        """Delete the resource; False if it was gone already."""
