"""Tables of DynamoDB."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from msgspec import Struct, field

from holdfast.jobs.aws.adapter import Adapter, Tags
from holdfast.jobs.aws.compare import equal, key_as_named, same, tag_changes, tag_list, tag_map
from holdfast.jobs.aws.trouble import ask, make

GONE = ("ResourceNotFoundException", "TableNotFoundException")
TAKEN = ("ResourceInUseException", "TableAlreadyExistsException")
_SETTLED = ("ACTIVE", "ARCHIVED", "INACCESSIBLE_ENCRYPTION_CREDENTIALS")
_PROVISIONED = "PROVISIONED"
_ALONE = ("TableClass", "SSESpecification", "DeletionProtectionEnabled")
"""What UpdateTable is given one at a time: some it does not take together."""
_AFTERWARDS = frozenset({"Tags", "TimeToLiveSpecification", "PointInTimeRecoverySpecification"})
"""What calls of their own set, once the table is there."""


class Index(Struct):
    """What every index has."""

    name: str = field(name="IndexName")


class Table(Adapter):
    """A table; the parameters of CreateTable, UpdateTimeToLive and UpdateContinuousBackups."""

    TYPE = "AWS::DynamoDB::Table"
    SHORT = "dynamodb_table"
    FIXED = frozenset({"KeySchema", "LocalSecondaryIndexes"})

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

    def normal(self, config: dict[str, Any]) -> dict[str, Any]:
        if "Tags" not in config:
            return config
        return {**config, "Tags": tag_map(config["Tags"] or [])}

    def exists(self) -> bool:
        table = self._table()
        return table is not None and table["TableStatus"] != "DELETING"

    def read(self) -> dict[str, Any] | None:
        self._wait()
        table = self._table()
        if table is None:
            return None
        found = {**table, "arn": table["TableArn"]}
        found["BillingMode"] = table.get("BillingModeSummary", {}).get("BillingMode", _PROVISIONED)
        found["TableClass"] = table.get("TableClassSummary", {}).get("TableClass", "STANDARD")
        found.setdefault("DeletionProtectionEnabled", False)
        found.setdefault("StreamSpecification", {"StreamEnabled": False})
        key = (self.wanted.get("SSESpecification") or {}).get("KMSMasterKeyId")
        found["SSESpecification"] = _encryption(table.get("SSEDescription"), key)
        if "Tags" in self.wanted:
            pages = self._dynamodb.get_paginator("list_tags_of_resource")
            tags = pages.paginate(ResourceArn=found["arn"]).build_full_result()
            found["Tags"] = tag_map(tags["Tags"])
        if "TimeToLiveSpecification" in self.wanted:
            answer = self._dynamodb.describe_time_to_live(TableName=self.name)["TimeToLiveDescription"]
            enabled = answer.get("TimeToLiveStatus") in ("ENABLED", "ENABLING")
            found["TimeToLiveSpecification"] = {**answer, "Enabled": enabled}
        if "PointInTimeRecoverySpecification" in self.wanted:
            answer = self._dynamodb.describe_continuous_backups(TableName=self.name)
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
        aside = ("AttributeDefinitions", "GlobalSecondaryIndexes", "LocalSecondaryIndexes", "Tags")
        changes = self.difference({key: wanted[key] for key in wanted if key not in aside})
        if "LocalSecondaryIndexes" in wanted and not self._has_local_indexes():
            raise self.cannot_change("LocalSecondaryIndexes")
        if _is_off(wanted, found, "TimeToLiveSpecification", "Enabled"):
            del changes["TimeToLiveSpecification"]
        if found["BillingMode"] != _PROVISIONED and wanted.get("BillingMode") != _PROVISIONED:
            changes.pop("ProvisionedThroughput", None)  # which it has not
        if "GlobalSecondaryIndexes" in wanted and list(self._index_changes(found)):
            changes["GlobalSecondaryIndexes"] = wanted["GlobalSecondaryIndexes"]
        if "Tags" in wanted and wanted["Tags"] != found["Tags"]:
            changes["Tags"] = wanted["Tags"]
        return changes

    def create(self) -> str:
        wanted = self.wanted
        parameters = {key: value for key, value in wanted.items() if value and key not in _AFTERWARDS}
        if wanted.get("Tags"):
            parameters["Tags"] = tag_list(wanted["Tags"])
        answer = make(self._dynamodb.create_table, TAKEN, TableName=self.name, **parameters)
        self._wait()
        for key in ("TimeToLiveSpecification", "PointInTimeRecoverySpecification"):
            if any((wanted.get(key) or {}).get(name) for name in ("Enabled", "PointInTimeRecoveryEnabled")):
                self._set_afterwards(key, wanted[key])
        return str(answer["TableDescription"]["TableArn"])

    def update(self, changes: dict[str, Any]) -> None:
        wanted, found = self.wanted, self.found
        capacity = {key: changes[key] for key in changes if key in ("BillingMode", "ProvisionedThroughput")}
        if capacity.get("BillingMode") == _PROVISIONED and "ProvisionedThroughput" in wanted:
            capacity["ProvisionedThroughput"] = wanted["ProvisionedThroughput"]
        if capacity:
            self._update(**capacity, **self._index_throughput(capacity))
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
            for change in self._index_changes(self._table() or found):
                self._update(AttributeDefinitions=attributes, GlobalSecondaryIndexUpdates=[change])
        for key in ("TimeToLiveSpecification", "PointInTimeRecoverySpecification"):
            if key in changes:
                self._set_afterwards(key, changes[key])
        if "Tags" in changes:
            self._tag(changes["Tags"])

    def delete(self) -> bool:
        self._wait()
        if ask(self._dynamodb.delete_table, GONE, TableName=self.name) is None:
            return False
        self._wait()
        return True

    @property
    def _dynamodb(self) -> Any:
        return self.access.client("dynamodb")

    def _table(self) -> dict[str, Any] | None:
        answer = ask(self._dynamodb.describe_table, GONE, TableName=self.name)
        return None if answer is None else answer["Table"]

    def _wait(self) -> None:
        """Until neither the table nor one of its indexes is under way: only then it takes another change."""

        def is_settled() -> bool:
            table = self._table()
            if table is None:
                return True
            indexes = table.get("GlobalSecondaryIndexes") or []
            return table["TableStatus"] in _SETTLED and all(
                index.get("IndexStatus", "ACTIVE") == "ACTIVE" for index in indexes
            )

        self.access.wait(is_settled, str(self))

    def _update(self, **parameters: Any) -> None:
        self._dynamodb.update_table(TableName=self.name, **parameters)
        self._wait()

    def _set_afterwards(self, key: str, value: Any) -> None:
        if key == "TimeToLiveSpecification":
            self._dynamodb.update_time_to_live(TableName=self.name, **{key: value})
        else:
            self._dynamodb.update_continuous_backups(TableName=self.name, **{key: value})

    def _tag(self, wanted: dict[str, str]) -> None:
        found = self.found
        to_set, to_remove = tag_changes(wanted, found["Tags"])
        if to_set:
            self._dynamodb.tag_resource(ResourceArn=found["arn"], Tags=tag_list(to_set))
        if to_remove:
            self._dynamodb.untag_resource(ResourceArn=found["arn"], TagKeys=to_remove)

    def _has_local_indexes(self) -> bool:
        ours = _by_name(self.wanted.get("LocalSecondaryIndexes"))
        theirs = _by_name(self.found.get("LocalSecondaryIndexes"))
        return ours.keys() == theirs.keys() and all(same(ours[name], theirs[name]) for name in ours)

    def _index_throughput(self, capacity: dict[str, Any]) -> dict[str, Any]:
        """What the indexes get when a table becomes provisioned: the service wants it in the same call."""
        if capacity.get("BillingMode") != _PROVISIONED:
            return {}
        ours = _by_name(self.wanted.get("GlobalSecondaryIndexes"))
        updates = [
            _throughput_update(ours[name])
            for name in _by_name(self.found.get("GlobalSecondaryIndexes"))
            if "ProvisionedThroughput" in ours.get(name, {})
        ]
        return {"GlobalSecondaryIndexUpdates": updates} if updates else {}

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
                yield _throughput_update(index)


def _throughput_update(index: dict[str, Any]) -> dict[str, Any]:
    return {
        "Update": {
            "IndexName": index["IndexName"],
            "ProvisionedThroughput": index["ProvisionedThroughput"],
        }
    }


def _by_name(indexes: Any) -> dict[str, dict[str, Any]]:
    return {str(index.get("IndexName")): index for index in indexes or []}


def _encryption(description: dict[str, Any] | None, key: str | None) -> dict[str, Any]:
    if description is None:
        return {"Enabled": False}
    enabled = description.get("Status") in ("ENABLED", "ENABLING", "UPDATING")
    return {
        "Enabled": enabled,
        "SSEType": description.get("SSEType"),
        "KMSMasterKeyId": key_as_named(description.get("KMSMasterKeyArn"), key),
    }


def _is_off(wanted: dict[str, Any], found: dict[str, Any], key: str, switch: str) -> bool:
    """Whether something is wanted off and is off, with whatever else it names."""
    if key not in wanted or same(wanted[key], found.get(key)):
        return False
    return not wanted[key].get(switch) and not found[key].get(switch)
