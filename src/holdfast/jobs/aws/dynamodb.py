"""Tables of DynamoDB."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from msgspec import Struct, field

from holdfast.errors import Retry
from holdfast.jobs.aws import access
from holdfast.jobs.aws.adapter import Adapter, Tags
from holdfast.jobs.aws.compare import equal, key_as_named, same, tag_map

_SETTLED = ("ACTIVE", "ARCHIVED", "INACCESSIBLE_ENCRYPTION_CREDENTIALS")
_PROVISIONED = "PROVISIONED"
_ALONE = ("TableClass", "SSESpecification", "DeletionProtectionEnabled")
"""What UpdateTable is given one at a time: some it does not take together."""
_AFTERWARDS = {
    "TimeToLiveSpecification": ("update_time_to_live", "Enabled"),
    "PointInTimeRecoverySpecification": ("update_continuous_backups", "PointInTimeRecoveryEnabled"),
}
"""What calls of their own set, once the table is there, and the switch in each."""


class Index(Struct):
    """What every index has."""

    name: str = field(name="IndexName")


class Table(Adapter):
    """A table; the parameters of CreateTable, UpdateTimeToLive and UpdateContinuousBackups."""

    TYPE = "AWS::DynamoDB::Table"
    GONE = ("ResourceNotFoundException", "TableNotFoundException")
    TAKEN = ("ResourceInUseException", "TableAlreadyExistsException")
    FIXED = frozenset({"KeySchema"})
    KEYS: ClassVar[Mapping[str, Any]] = {
        "AttributeDefinitions": list[dict[str, Any]],
        "KeySchema": list[dict[str, Any]],
        "BillingMode": str,
        "ProvisionedThroughput": dict[str, Any],
        "LocalSecondaryIndexes": list[Index] | None,
        "GlobalSecondaryIndexes": list[Index] | None,
        "StreamSpecification": dict[str, Any],
        "SSESpecification": dict[str, Any],
        "TableClass": str,
        "DeletionProtectionEnabled": bool,
        "Tags": Tags,
        "TimeToLiveSpecification": dict[str, Any],
        "PointInTimeRecoverySpecification": dict[str, Any],
    }

    def describe(self) -> Any | None:
        answer = self.ask("describe_table", TableName=self.name)
        return None if answer is None else answer["Table"]

    def exists(self) -> bool:
        table = self.describe()
        return table is not None and table["TableStatus"] != "DELETING"

    def read(self) -> dict[str, Any] | None:
        table = self._settled()
        if table is None:
            return None
        found = {**table, "arn": table["TableArn"]}
        found["BillingMode"] = table.get("BillingModeSummary", {}).get("BillingMode", _PROVISIONED)
        found["TableClass"] = table.get("TableClassSummary", {}).get("TableClass", "STANDARD")
        found.setdefault("DeletionProtectionEnabled", False)
        found.setdefault("StreamSpecification", {"StreamEnabled": False})
        encryption, key = table.get("SSEDescription", {}), self.wanted.get("SSESpecification", {})
        found["SSESpecification"] = {
            "Enabled": encryption.get("Status") in ("ENABLED", "ENABLING", "UPDATING"),
            "SSEType": encryption.get("SSEType"),
            "KMSMasterKeyId": key_as_named(encryption.get("KMSMasterKeyArn"), key.get("KMSMasterKeyId")),
        }
        if "Tags" in self.wanted:
            pages = self.api.get_paginator("list_tags_of_resource")
            tags = pages.paginate(ResourceArn=found["arn"]).build_full_result()
            found["Tags"] = tag_map(tags["Tags"])
        if "TimeToLiveSpecification" in self.wanted:
            answer = self.api.describe_time_to_live(TableName=self.name)["TimeToLiveDescription"]
            enabled = answer.get("TimeToLiveStatus") in ("ENABLED", "ENABLING")
            found["TimeToLiveSpecification"] = {**answer, "Enabled": enabled}
        if "PointInTimeRecoverySpecification" in self.wanted:
            answer = self.api.describe_continuous_backups(TableName=self.name)
            recovery = answer["ContinuousBackupsDescription"].get("PointInTimeRecoveryDescription", {})
            enabled = recovery.get("PointInTimeRecoveryStatus") == "ENABLED"
            found["PointInTimeRecoverySpecification"] = {**recovery, "PointInTimeRecoveryEnabled": enabled}
        return found

    def changes(self) -> dict[str, Any]:
        wanted, found = self.wanted, self.found
        known = {each["AttributeName"]: each["AttributeType"] for each in found["AttributeDefinitions"]}
        for each in wanted.get("AttributeDefinitions") or []:
            if known.get(each.get("AttributeName"), each.get("AttributeType")) != each.get("AttributeType"):
                raise self.cannot_change(f"type of the attribute {each['AttributeName']!r}")
        # These are lists of things with names, to which the service adds what it knows of them.
        aside = ("AttributeDefinitions", "GlobalSecondaryIndexes", "LocalSecondaryIndexes")
        changes = self.difference({key: wanted[key] for key in wanted if key not in aside})
        ours, theirs = (_by_name(each.get("LocalSecondaryIndexes")) for each in (wanted, found))
        if "LocalSecondaryIndexes" in wanted and (ours.keys() != theirs.keys() or not same(ours, theirs)):
            raise self.cannot_change("LocalSecondaryIndexes")
        time_to_live = changes.get("TimeToLiveSpecification", {"Enabled": True})
        if not time_to_live.get("Enabled") and not found["TimeToLiveSpecification"]["Enabled"]:
            del changes["TimeToLiveSpecification"]  # it is off, whatever else is named
        if found["BillingMode"] != _PROVISIONED and wanted.get("BillingMode") != _PROVISIONED:
            changes.pop("ProvisionedThroughput", None)  # which it has not
        if "GlobalSecondaryIndexes" in wanted and list(self._index_changes(found)):
            changes["GlobalSecondaryIndexes"] = wanted["GlobalSecondaryIndexes"]
        return changes

    def create(self) -> str:
        answer = self.api.create_table(TableName=self.name, **self.parameters(without=_AFTERWARDS))
        self._settled()
        are_on = [key for key, (_, switch) in _AFTERWARDS.items() if self.wanted.get(key, {}).get(switch)]
        self._set_afterwards({key: self.wanted[key] for key in are_on})
        return str(answer["TableDescription"]["TableArn"])

    def update(self, changes: dict[str, Any]) -> None:
        wanted, found = self.wanted, self.found
        capacity = {key: changes[key] for key in changes if key in ("BillingMode", "ProvisionedThroughput")}
        if capacity.get("BillingMode") == _PROVISIONED and "ProvisionedThroughput" in wanted:
            capacity["ProvisionedThroughput"] = wanted["ProvisionedThroughput"]
            # The service wants that of the indexes in the same call.
            updates = [change for change in self._index_changes(found) if "Update" in change]
            capacity |= {"GlobalSecondaryIndexUpdates": updates} if updates else {}
        if capacity:
            self._update(**capacity)
        for key in _ALONE:
            if key in changes:
                self._update(**{key: changes[key]})
        if "StreamSpecification" in changes:
            before, after = found["StreamSpecification"], changes["StreamSpecification"]
            if before.get("StreamEnabled") and after.get("StreamEnabled"):
                self._update(StreamSpecification={"StreamEnabled": False})  # its view can't be changed
            self._update(StreamSpecification=after)
        if "GlobalSecondaryIndexes" in changes:
            attributes = wanted.get("AttributeDefinitions") or found["AttributeDefinitions"]
            # The billing has given some of them their throughput already.
            for change in self._index_changes(self.describe() or found):
                self._update(AttributeDefinitions=attributes, GlobalSecondaryIndexUpdates=[change])
        self._set_afterwards(changes)

    def delete(self) -> bool:
        self._settled()
        if self.ask("delete_table", TableName=self.name) is None:
            return False
        self._settled()
        return True

    def _settled(self) -> Any | None:
        """The table once neither it nor an index of it is under way: only then it takes another change."""
        pauses, deadline = self.access.pauses(), time.monotonic() + access.SETTLING
        while not _is_settled(table := self.describe()):
            if time.monotonic() > deadline:
                raise Retry(f"{self} is still being changed after {access.SETTLING:g} s")
            next(pauses)
        return table

    def _update(self, **parameters: Any) -> None:
        self.api.update_table(TableName=self.name, **parameters)
        self._settled()

    def _set_afterwards(self, settings: dict[str, Any]) -> None:
        for key, (operation, _) in _AFTERWARDS.items():
            if key in settings:
                getattr(self.api, operation)(TableName=self.name, **{key: settings[key]})

    def _index_changes(self, found: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The changes to the global indexes, one at a time, as UpdateTable wants them."""
        ours = _by_name(self.wanted.get("GlobalSecondaryIndexes"))
        theirs = _by_name(found.get("GlobalSecondaryIndexes"))
        for name in theirs.keys() - ours.keys():
            yield {"Delete": {"IndexName": name}}
        for name, index in ours.items():
            if name not in theirs:
                yield {"Create": index}
                continue
            for key in ("KeySchema", "Projection"):
                if key in index and not equal(index[key], theirs[name].get(key)):
                    raise self.cannot_change(f"{key} of the index {name!r}")
            throughput = index.get("ProvisionedThroughput")
            if throughput and not same(throughput, theirs[name].get("ProvisionedThroughput")):
                yield {"Update": {"IndexName": name, "ProvisionedThroughput": throughput}}


def _is_settled(table: dict[str, Any] | None) -> bool:
    if table is None:
        return True
    states = [index.get("IndexStatus", "ACTIVE") for index in table.get("GlobalSecondaryIndexes") or []]
    return table["TableStatus"] in _SETTLED and all(state == "ACTIVE" for state in states)


def _by_name(indexes: Any) -> dict[str, dict[str, Any]]:
    return {str(index.get("IndexName")): index for index in indexes or []}
