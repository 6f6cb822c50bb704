"""The one interface behind which every kind of resource stands."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

import msgspec
from msgspec import Struct, field

from holdfast.errors import Fail
from holdfast.jobs.aws.access import Access
from holdfast.jobs.aws.compare import difference


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

    A key that a config leaves out is left as it is; one that it has is the whole of what is wanted there.
    """

    TYPE: ClassVar[str]
    SHORT: ClassVar[str]
    KEYS: ClassVar[Mapping[str, Any]]
    """What a config may have, with the type of each as far as it is checked before the service is asked."""
    EITHER: ClassVar[tuple[str, ...]] = ()
    EITHER_IS_NEEDED: ClassVar[bool] = False
    """Keys of which a config has one at most, and whether it must."""
    FIXED: ClassVar[frozenset[str]] = frozenset()
    """What can't be changed once the resource is there."""

    def __init__(self, name: str, config: dict[str, Any], access: Access) -> None:
        self.name = name
        self.config = config
        self.access = access
        self.found: dict[str, Any] = {}
        """What was read last."""

    @classmethod
    def check(cls, config: dict[str, Any], action: str) -> None:
        """Raise ValueError if a config can't be right for an action."""
        for key, value in config.items():
            if key not in cls.KEYS:
                known = ", ".join(sorted(cls.KEYS))
                raise ValueError(f"config of {cls.TYPE} has no key {key!r}; it may have {known}")
            try:
                msgspec.convert(value, cls.KEYS[key])
            except msgspec.ValidationError as error:
                raise ValueError(f"config.{key}: {error}") from None
        given = [key for key in cls.EITHER if key in config]
        if len(given) > 1:
            raise ValueError(f"config has both {' and '.join(given)}")
        if action == "sync" and cls.EITHER_IS_NEEDED and not given:
            raise ValueError(f"config of {cls.TYPE} needs {' or '.join(cls.EITHER)}")

    def __str__(self) -> str:
        return f"{self.TYPE} {self.name!r}"

    @cached_property
    def wanted(self) -> dict[str, Any]:
        """The config in the form that `read` tells."""
        return self.normal(self.config)

    def normal(self, config: dict[str, Any]) -> dict[str, Any]:
        return config

    def changes(self) -> dict[str, Any]:
        """What is wanted and was not found. Raises Fail if it can't be changed."""
        return self.difference(self.wanted)

    def difference(self, wanted: dict[str, Any]) -> dict[str, Any]:
        changes = difference(wanted, self.found)
        for key in sorted(changes.keys() & self.FIXED):
            raise self.cannot_change(key)
        return changes

    def adjust(self) -> None:
        """Change what differs after creation: a service may have answered with what was there before."""
        found = self.read()
        if found is not None:
            self.found = found
            changes = self.changes()
            if changes:
                self.update(changes)

    def cannot_change(self, what: str) -> Fail:
        """The error of a wish that only another resource could fulfil."""
        return Fail(f"{self} is there with another {what}, which can't be changed")

    @abstractmethod
    def exists(self) -> bool:
        """Whether the resource is there, and stays."""

    @abstractmethod
    def read(self) -> dict[str, Any] | None:
        """What is found under the wanted keys, and the ARN under "arn"; None if the resource is not there."""

    @abstractmethod
    def create(self) -> str | None:
        """Create the resource as wanted and return its ARN. Raises Exists if it is there already."""

    @abstractmethod
    def update(self, changes: dict[str, Any]) -> None:
        """Change what is not as wanted."""

    @abstractmethod
    def delete(self) -> bool:
        """Delete the resource; False if it was gone already."""
