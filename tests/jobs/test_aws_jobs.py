"""Jobs that sync resources of AWS, against moto's server and stand-ins on loopback."""

from __future__ import annotations

import base64
import json
import os
import socket
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Job, Queue
from holdfast.core.redact import redact
from holdfast.errors import Fail, InvalidPayload, Retry
from holdfast.events import HandlerStuck
from holdfast.jobs import aws
from holdfast.jobs.aws import access
from holdfast.jobs.aws.compare import difference, equal, same
from holdfast.jobs.aws.trouble import secrets_of, without
from tests.jobs.aws_cloud_control import CloudControl, HangUp, Refused, Script, served
from tests.support import Recorder, wait_until
from tests.worker.support import PATIENCE, get, run_script, supersede

pytestmark = pytest.mark.slow

StartWorker = Callable[..., Any]
Config = dict[str, Any]

LOG_GROUP = "AWS::Logs::LogGroup"
REGION = "eu-west-1"
TRIES = access.TRIES
SECRET = "hunter2-is-the-word"


@pytest.fixture(scope="module")
def moto_server() -> Iterator[str]:
    """moto's server; its address."""
    from moto.server import ThreadedMotoServer  # a second, which only who runs these tests should pay

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Credentials of nobody, no file of this machine's user, no wait that a test does not want."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_REGION", REGION)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    monkeypatch.setattr(access, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(access, "TRIES", 1)


@pytest.fixture
def cloud(moto_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An account with nothing in it."""
    request = urllib.request.Request(f"{moto_server}/moto-api/reset", method="POST")
    urllib.request.urlopen(request, timeout=PATIENCE).close()
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_server)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    """A service that answers as the test says."""
    script = Script()
    with served(script.answer) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        yield script


@pytest.fixture
def control(monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudControl]:
    """A Cloud Control API with no resources."""
    control = CloudControl()
    with served(control.answer) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        yield control


@pytest.fixture
def queue(queue: Queue) -> Queue:
    queue.register("sync_aws", aws.sync)
    return queue


def payload(type: str, name: str, config: Config | None = None, **more: Any) -> Config:
    return {"resourceType": type, "resourceId": name, "config": config or {}, **more}


def run(queue: Queue, type: str, name: str, config: Config | None = None, **more: Any) -> Job:
    """Run one job to the end of its first attempt."""
    job = queue.enqueue("sync_aws", payload(type, name, config, **more), max_attempts=1)
    queue.drain(limit=1)
    return get(queue, job.id)


def outcome(job: Job) -> str:
    """What a job that completed says it has done."""
    assert job.error is None, job.error
    assert isinstance(job.result, dict)
    return str(job.result["action"])


def client(service: str) -> Any:
    import boto3  # type: ignore[import-untyped]

    return boto3.client(service, region_name=REGION)


# The kinds of resources, each with a config to begin with, one for everything that can be changed, and one
# that the service refuses.

KEYS = {
    "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
    "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "S"}],
}
MORE_ATTRIBUTES = {
    "AttributeDefinitions": [{"AttributeName": name, "AttributeType": "S"} for name in ("owner", "id")]
}
LITTLE = {"ReadCapacityUnits": 1, "WriteCapacityUnits": 1}
MORE = {"ReadCapacityUnits": 2, "WriteCapacityUnits": 3}
TAGS = [{"Key": "team", "Value": "payments"}, {"Key": "App", "Value": "shop"}]


def index(name: str, **more: Any) -> Config:
    schema = [{"AttributeName": "owner", "KeyType": "HASH"}]
    return {"IndexName": name, "KeySchema": schema, "Projection": {"ProjectionType": "ALL"}, **more}


POLICY = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Deny", "Principal": "*", "Action": "*", "Resource": "*"}],
}

FIRST: dict[str, tuple[str, Config]] = {
    "s3_bucket": ("a-bucket", {"Tagging": {"TagSet": [{"Key": "old", "Value": "1"}]}}),
    "sqs_queue": ("a-queue", {"Attributes": {"VisibilityTimeout": 30}, "tags": {"old": "1"}}),
    "sns_topic": ("a-topic", {"Attributes": {"DisplayName": "A"}, "Tags": [{"Key": "old", "Value": "1"}]}),
    "dynamodb_table": (
        "a-table",
        {
            **KEYS,
            "BillingMode": "PROVISIONED",
            "ProvisionedThroughput": LITTLE,
            "Tags": [{"Key": "old", "Value": "1"}],
        },
    ),
    "ssm_parameter": ("/an/parameter", {"Value": "one", "Tags": [{"Key": "old", "Value": "1"}]}),
    "secretsmanager_secret": ("a-secret", {"SecretString": "one", "Tags": [{"Key": "old", "Value": "1"}]}),
}

CHANGES: list[tuple[str, Config]] = [
    ("s3_bucket", {"VersioningConfiguration": {"Status": "Enabled"}}),
    ("s3_bucket", {"Tagging": {"TagSet": TAGS}}),
    ("s3_bucket", {"Tagging": None}),
    ("s3_bucket", {"Policy": POLICY}),
    ("s3_bucket", {"Policy": json.dumps({**POLICY, "Id": "as text"}, indent=1)}),
    ("s3_bucket", {"PublicAccessBlockConfiguration": {"BlockPublicAcls": True}}),
    ("s3_bucket", {"OwnershipControls": {"Rules": [{"ObjectOwnership": "ObjectWriter"}]}}),
    (
        "s3_bucket",
        {
            "ServerSideEncryptionConfiguration": {
                "Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms"}}]
            }
        },
    ),
    (
        "s3_bucket",
        {
            "LifecycleConfiguration": {
                "Rules": [
                    {"ID": "a", "Status": "Enabled", "Filter": {"Prefix": "x"}, "Expiration": {"Days": 3}}
                ]
            }
        },
    ),
    (
        "s3_bucket",
        {"CORSConfiguration": {"CORSRules": [{"AllowedMethods": ["GET"], "AllowedOrigins": ["*"]}]}},
    ),
    ("sqs_queue", {"Attributes": {"VisibilityTimeout": "31", "DelaySeconds": 5}}),
    ("sqs_queue", {"Attributes": {"Policy": POLICY}}),
    ("sqs_queue", {"tags": {"team": "payments"}}),
    ("sqs_queue", {"tags": {}}),
    ("sns_topic", {"Attributes": {"DisplayName": "B"}}),
    ("sns_topic", {"Attributes": {"Policy": POLICY}}),
    ("sns_topic", {"Tags": TAGS}),
    ("sns_topic", {"Tags": None}),
    ("dynamodb_table", {"ProvisionedThroughput": MORE}),
    ("dynamodb_table", {"BillingMode": "PAY_PER_REQUEST"}),
    (
        "dynamodb_table",
        {**MORE_ATTRIBUTES, "GlobalSecondaryIndexes": [index("by-owner", ProvisionedThroughput=LITTLE)]},
    ),
    (
        "dynamodb_table",
        {"StreamSpecification": {"StreamEnabled": True, "StreamViewType": "KEYS_ONLY"}},
    ),
    ("dynamodb_table", {"DeletionProtectionEnabled": True}),
    ("dynamodb_table", {"Tags": TAGS}),
    ("dynamodb_table", {"TimeToLiveSpecification": {"Enabled": True, "AttributeName": "at"}}),
    (
        "dynamodb_table",
        {"PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": True}},
    ),
    ("ssm_parameter", {"Value": "two"}),
    ("ssm_parameter", {"SecretValue": "one"}),
    ("ssm_parameter", {"Value": "one", "Type": "StringList"}),
    ("ssm_parameter", {"Value": "one", "Description": "what it is"}),
    ("ssm_parameter", {"Value": "one", "AllowedPattern": "[a-z]+"}),
    ("ssm_parameter", {"Value": "one", "Tier": "Advanced"}),
    ("ssm_parameter", {"SecretValue": "one", "KeyId": "alias/mine"}),
    ("ssm_parameter", {"Value": "one", "Tags": TAGS}),
    ("secretsmanager_secret", {"SecretString": "two"}),
    ("secretsmanager_secret", {"SecretBinary": base64.b64encode(b"\0two").decode()}),
    ("secretsmanager_secret", {"Description": "what it is"}),
    ("secretsmanager_secret", {"KmsKeyId": "alias/mine"}),
    ("secretsmanager_secret", {"Tags": TAGS}),
]

WRONG: list[tuple[str, str, Config]] = [
    ("s3_bucket", "a-bucket", {"VersioningConfiguration": {"State": "Enabled"}}),
    ("s3_bucket", "Not A Bucket", {}),
    ("sqs_queue", "a-queue", {"Attributes": {"FifoQueue": True}}),
    ("sqs_queue", "not a queue!", {}),
    ("sns_topic", "not a topic!", {}),
    ("dynamodb_table", "a-table", {**KEYS, "SSESpecification": {"On": True}}),
    ("dynamodb_table", "a-table", {**KEYS, "BillingMode": "FREE"}),
    ("ssm_parameter", "/aws/taken", {"Value": "1"}),
    ("ssm_parameter", "/a/b", {"Value": ""}),
    ("secretsmanager_secret", "a-secret", {"SecretString": "x", "Tags": [{"Key": "", "Value": ""}]}),
]


@pytest.mark.parametrize("type", FIRST)
def test_a_resource_is_created_once_and_deleted_once(type: str, queue: Queue, cloud: None) -> None:
    name, config = FIRST[type]
    created = run(queue, type, name, config)
    assert outcome(created) == "created"
    assert created.result["resourceType"].startswith("AWS::")
    assert created.result["resourceId"] == name
    assert created.result["arn"].startswith("arn:aws:")
    again = run(queue, type, name, config)
    assert outcome(again) == "unchanged"
    assert again.result["arn"] == created.result["arn"]
    assert aws.differs(again) is None

    deleted = run(queue, type, name, action="delete")
    assert outcome(deleted) == "deleted"
    assert aws.differs(deleted) is None
    assert aws.differs(again) == "the resource is missing"
    assert outcome(run(queue, type, name, action="delete")) == "absent"
    run(queue, type, name, config)
    assert aws.differs(deleted) == "the resource exists"


@pytest.mark.parametrize("type", FIRST)
def test_every_change_is_made_once_and_what_a_config_leaves_out_is_left_as_it_is(
    type: str, queue: Queue, cloud: None
) -> None:
    name, first = FIRST[type]
    assert outcome(run(queue, type, name, first)) == "created"
    left_out = {key: first[key] for key in first if key in ("Tagging", "tags", "Tags")}
    if type == "ssm_parameter":
        left_out["Value"] = "two"
    for place, config in enumerate(config for kind, config in CHANGES if kind == type):
        assert outcome(run(queue, type, name, config)) == "updated", config
        assert outcome(run(queue, type, name, config)) == "unchanged", config
        if place == 0:  # which is no change of tags
            assert outcome(run(queue, type, name, left_out)) == "unchanged"


@pytest.mark.parametrize("type", FIRST)
def test_a_resource_is_created_with_its_whole_config(type: str, queue: Queue, cloud: None) -> None:
    name, whole = FIRST[type]
    for kind, config in CHANGES:
        if kind == type and not config.keys() & {"SecretValue", "SecretBinary", "BillingMode"}:
            whole = {**whole, **config}
    assert outcome(run(queue, type, name, whole)) == "created"
    assert outcome(run(queue, type, name, whole)) == "unchanged"


@pytest.mark.parametrize("type", FIRST)
def test_what_another_has_just_created_is_taken_as_it_is_or_changed(
    type: str, queue: Queue, cloud: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, first = FIRST[type]
    change = next(config for kind, config in CHANGES if kind == type)
    run(queue, type, name, first)
    adapter = next(kind for kind in aws.ADAPTERS if type == kind.SHORT)
    read = adapter.read
    for wanted, expected in ((first, "unchanged"), ({**first, **change}, "updated")):
        looks: list[Any] = []

        def read_too_early(self: Any, looks: list[Any] = looks) -> Config | None:
            looks.append(self)
            return None if len(looks) == 1 else read(self)

        monkeypatch.setattr(adapter, "read", read_too_early)
        done = outcome(run(queue, type, name, wanted))
        if type in ("sqs_queue", "sns_topic"):  # which answer as if they had created it
            assert done in ("created", "unchanged", "updated")
        else:
            assert done == expected
        assert len(looks) == 2
    assert outcome(run(queue, type, name, wanted)) == "unchanged"


def test_what_a_service_refuses_fails_for_good(queue: Queue, cloud: None) -> None:
    for type, name, config in WRONG:
        job = queue.enqueue("sync_aws", payload(type, name, config), max_attempts=5)
        queue.drain(limit=2)
        job = get(queue, job.id)
        assert (job.status, job.attempts) == ("failed", 1), (type, config, job.error)
        assert job.error is not None
        assert job.error.startswith("Fail: ")


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"Value": "1", "SecretValue": "2"}, "config can't have both Value and SecretValue"),
        ({}, "config of AWS::SSM::Parameter requires Value or SecretValue"),
        ({"Value": 1}, "config.Value: Expected str, got int"),
        ({"Value": "1", "Tags": {"a": "b"}}, "config.Tags: Expected array | null, got object"),
        ({"Value": "1", "Type": "Text"}, "config.Type: Invalid enum value"),
        (
            {"Value": "1", "Overwrite": True},
            "config of AWS::SSM::Parameter does not support 'Overwrite'; supported:",
        ),
    ],
)
def test_a_config_that_cannot_be_right_is_refused_at_enqueue(
    config: Config, problem: str, queue: Queue
) -> None:
    with pytest.raises(InvalidPayload) as refused:
        queue.enqueue("sync_aws", payload("ssm_parameter", "/a", config))
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"resourceType": "s3_object"},
        {"resourceType": "AWS::S3"},
        {"resourceType": "AWS::S3::Bucket\n"},
        {"resourceType": "Other::S3::Bucket"},
        {"resourceId": ""},
        {"resourceId": 7},
        {"config": None},
        {"config": []},
        {"action": "destroy"},
        {"resourceType": "dynamodb_table", "config": {"StreamSpecification": None}},
        {"resourceType": "dynamodb_table", "config": {"GlobalSecondaryIndexes": [{"Name": "x"}]}},
        {"config": {"Tagging": {"TagSet": [{"Key": "a"}]}}},
        {"region": "eu-west-1"},
    ],
    ids=str,
)
def test_a_wrong_payload_is_refused_at_enqueue(wrong: Config, queue: Queue) -> None:
    with pytest.raises(InvalidPayload):
        queue.enqueue("sync_aws", {**payload("s3_bucket", "a-bucket"), **wrong})


def test_binary_that_is_not_base64_is_refused_and_not_shown(queue: Queue) -> None:
    with pytest.raises(InvalidPayload, match="SecretBinary is not valid base64") as refused:
        queue.enqueue("sync_aws", payload("secretsmanager_secret", "a", {"SecretBinary": f"!{SECRET}!"}))
    assert SECRET not in str(refused.value)


def test_what_cannot_be_changed_fails_and_nothing_is_touched(queue: Queue, cloud: None) -> None:
    for type, (name, first) in FIRST.items():
        run(queue, type, name, first)
    fixed: list[tuple[str, Config]] = [
        ("s3_bucket", {"CreateBucketConfiguration": {"LocationConstraint": "us-west-2"}, "Tagging": None}),
        ("s3_bucket", {"ObjectLockEnabledForBucket": True, "Tagging": None}),
        ("sqs_queue", {"Attributes": {"FifoQueue": True}, "tags": {}}),
        ("sns_topic", {"Attributes": {"FifoTopic": True}, "Tags": []}),
        ("dynamodb_table", {"KeySchema": [{"AttributeName": "other", "KeyType": "HASH"}], "Tags": []}),
        ("dynamodb_table", {"AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "N"}]}),
        ("dynamodb_table", {"LocalSecondaryIndexes": [index("local")], "Tags": []}),
    ]
    for type, config in fixed:
        job = run(queue, type, FIRST[type][0], config)
        assert job.error is not None
        assert job.error.startswith("Fail: AWS::")
        assert job.error.endswith(", which can't be changed")
    for type, (name, first) in FIRST.items():
        assert outcome(run(queue, type, name, first)) == "unchanged"


@pytest.mark.parametrize(("type", "switch"), [("sqs_queue", "FifoQueue"), ("sns_topic", "FifoTopic")])
def test_what_is_first_in_first_out_stays_so(type: str, switch: str, queue: Queue, cloud: None) -> None:
    name, attributes = "orders.fifo", {switch: True, "ContentBasedDeduplication": False}
    assert outcome(run(queue, type, name, {"Attributes": attributes})) == "created"
    assert outcome(run(queue, type, name, {"Attributes": {switch: "true"}})) == "unchanged"
    assert outcome(run(queue, type, name, {"Attributes": {"ContentBasedDeduplication": True}})) == "updated"
    refused = run(queue, type, name, {"Attributes": {switch: "false"}})
    assert (refused.error or "").endswith(f"already exists with a different {switch}, which can't be changed")


def test_a_bucket_with_objects_is_not_emptied(queue: Queue, cloud: None) -> None:
    run(queue, "s3_bucket", "a-bucket")
    s3 = client("s3")
    s3.put_object(Bucket="a-bucket", Key="dear", Body=b"")
    job = run(queue, "s3_bucket", "a-bucket", action="delete")
    assert job.error is not None
    assert job.error.startswith("Fail: DeleteBucket: BucketNotEmpty")
    assert s3.list_objects_v2(Bucket="a-bucket")["KeyCount"] == 1
    s3.close()


def test_a_secret_is_deleted_with_a_way_back_unless_said_otherwise(queue: Queue, cloud: None) -> None:
    def delete(**how: Any) -> Job:
        return run(queue, "secretsmanager_secret", "a-secret", how, action="delete")

    first = {"SecretString": "one", "Description": "first"}
    kept = run(queue, "secretsmanager_secret", "a-secret", first)
    assert outcome(delete(RecoveryWindowInDays=7)) == "deleted"
    assert outcome(delete()) == "absent"
    assert aws.differs(kept) == "the resource is missing"
    assert outcome(run(queue, "secretsmanager_secret", "a-secret", first)) == "updated"
    assert aws.differs(kept) is None
    assert outcome(run(queue, "secretsmanager_secret", "a-secret", first)) == "unchanged"
    assert outcome(delete(ForceDeleteWithoutRecovery=True)) == "deleted"
    assert outcome(run(queue, "secretsmanager_secret", "a-secret", first)) == "created"


def test_a_secret_is_compared_to_the_letter(queue: Queue, cloud: None) -> None:
    for text in ('{"a": 1}', '{"a":1}', '{"a":1,"b":2}', '{"a":1}'):
        done = outcome(run(queue, "secretsmanager_secret", "a-secret", {"SecretString": text}))
        assert done in ("created", "updated")
        assert outcome(run(queue, "ssm_parameter", "/a", {"SecretValue": text})) == done


def test_indexes_of_a_table_are_the_whole(queue: Queue, cloud: None) -> None:
    first = {**KEYS, **MORE_ATTRIBUTES, "BillingMode": "PAY_PER_REQUEST"}
    several = [index("by-owner"), index("second")]
    assert (
        outcome(run(queue, "dynamodb_table", "t", {**first, "GlobalSecondaryIndexes": several})) == "created"
    )
    changed = {**MORE_ATTRIBUTES, "GlobalSecondaryIndexes": [index("third"), index("second")]}
    assert outcome(run(queue, "dynamodb_table", "t", changed)) == "updated"
    assert outcome(run(queue, "dynamodb_table", "t", changed)) == "unchanged"
    dynamodb = client("dynamodb")
    table = dynamodb.describe_table(TableName="t")["Table"]
    dynamodb.close()
    assert {each["IndexName"] for each in table["GlobalSecondaryIndexes"]} == {"second", "third"}
    provisioned = [index(name, ProvisionedThroughput=MORE) for name in ("third", "second")]
    config = {
        "BillingMode": "PROVISIONED",
        "ProvisionedThroughput": LITTLE,
        "GlobalSecondaryIndexes": provisioned,
    }
    assert outcome(run(queue, "dynamodb_table", "t", config)) == "updated"
    assert outcome(run(queue, "dynamodb_table", "t", config)) == "unchanged"
    other = {"GlobalSecondaryIndexes": [index("third", Projection={"ProjectionType": "KEYS_ONLY"})]}
    job = run(queue, "dynamodb_table", "t", {**MORE_ATTRIBUTES, **other})
    assert job.error is not None
    assert "a different Projection of the index 'third', which can't be changed" in job.error


# Errors: which can get better, which can't, and what is told of them.

TABLE = ("dynamodb_table", "a-table")


CAN_GET_BETTER = [
    ("ThrottlingException", 400),
    ("ProvisionedThroughputExceededException", 400),
    ("RequestLimitExceeded", 400),
    ("LimitExceededException", 400),
    ("InternalServerError", 500),
    ("ServiceUnavailable", 503),
    ("SomethingNew", 502),
    ("TooMany", 429),
    ("ExpiredTokenException", 400),
    ("RequestTimeTooSkewed", 403),
    ("AWS.SimpleQueueService.QueueDeletedRecently", 400),
    ("ResourceInUseException", 400),
]


def test_what_can_get_better_is_tried_again(queue: Queue, script: Script) -> None:
    queue.set_config("backoff_factor", 3600)
    for code, status in CAN_GET_BETTER:
        script.answers["DescribeTable"] = [Refused(code, "not now", status)]
        job = queue.enqueue("sync_aws", payload(*TABLE), max_attempts=2)
        queue.drain(limit=1)
        job = get(queue, job.id)
        assert job.status == "scheduled", code
        assert job.error == f"Retry: DescribeTable: {code}: not now"
        detail = {"operation": "DescribeTable", "code": code, "status": status, "requestId": "request-1"}
        assert job.errors[0].detail == {"aws": detail}
        if "Deleted" in code:
            assert job.next_retry_at is not None
            assert 55 < (job.next_retry_at - job.errors[0].finished_at).total_seconds() < 65


CANNOT_GET_BETTER = [
    ("AccessDeniedException", 400),
    ("AccessDenied", 403),
    ("ValidationException", 400),
    ("SerializationException", 400),
    ("UnrecognizedClientException", 400),
    ("InvalidClientTokenId", 403),
    ("InvalidSignatureException", 400),
    ("OptInRequired", 403),
    ("SomethingNew", 400),
]


def test_what_cannot_get_better_fails_at_once(queue: Queue, script: Script) -> None:
    for code, status in CANNOT_GET_BETTER:
        script.answers["DescribeTable"] = [Refused(code, "never", status)]
        job = queue.enqueue("sync_aws", payload(*TABLE), max_attempts=9)
        queue.drain(limit=1)
        job = get(queue, job.id)
        assert (job.status, job.attempts) == ("failed", 1), code
        assert job.error == f"Fail: DescribeTable: {code}: never"
        assert job.errors[0].detail is not None
        with pytest.raises(Fail, match=code):
            aws.differs(job)


def test_a_blip_costs_no_attempt(queue: Queue, script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "TRIES", TRIES)
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0.0)
    script.answers["DescribeTable"] = [Refused("ServiceUnavailable", "", 503), table()]
    assert outcome(run(queue, *TABLE, KEYS)) == "unchanged"
    script.asked.clear()
    script.answers["DescribeTable"] = [Refused("ServiceUnavailable", "", 503)]
    assert run(queue, *TABLE, KEYS).status == "failed"
    assert script.operations() == ["DescribeTable"] * TRIES


def test_the_next_attempt_does_what_the_first_could_not(
    queue: Queue, script: Script, start_worker: StartWorker
) -> None:
    gone = Refused("ResourceNotFoundException")
    script.answers["DescribeTable"] = [HangUp(), Refused("ThrottlingException"), gone]
    script.answers["DeleteTable"] = [gone]
    start_worker()
    job = queue.enqueue("sync_aws", payload(*TABLE, action="delete"), max_attempts=5)
    job = queue.wait(job.id, timeout=PATIENCE)
    assert (job.status, job.attempts) == ("completed", 3)
    assert [failure.error.partition(":")[0] for failure in job.errors] == ["Retry", "Retry"]


def test_no_answer_is_tried_again(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        monkeypatch.setattr(access, "READ_SECONDS", 0.1)
        job = run(queue, *TABLE)
        assert job.error is not None
        assert job.error.startswith("Retry: ReadTimeoutError: ")
    job = run(queue, *TABLE)
    assert job.error is not None
    assert job.error.startswith("Retry: EndpointConnectionError: ")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}, "Retry: NoCredentialsError"),
        ({"AWS_SECRET_ACCESS_KEY": None}, "Fail: PartialCredentialsError"),
        ({"AWS_REGION": None}, "Fail: NoRegionError"),
        ({"AWS_PROFILE": "nobody"}, "Fail: ProfileNotFound"),
        ({"AWS_ENDPOINT_URL": "nonsense"}, "Fail: Invalid endpoint: nonsense"),
    ],
    ids=str,
)
def test_a_wrong_environment_fails_but_for_credentials_that_may_come(
    change: dict[str, str | None], error: str, queue: Queue, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in change.items():
        if value is None:
            monkeypatch.delenv(name)
        else:
            monkeypatch.setenv(name, value)
    job = run(queue, *TABLE)
    assert job.error is not None
    assert job.error.startswith(error)
    assert script.asked == []


def test_the_region_is_read_from_both_names(
    queue: Queue, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    with access.Access() as both:
        assert both.client("sts").meta.region_name == REGION
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "sa-east-1")
    with access.Access() as default:
        assert default.client("sts").meta.region_name == "sa-east-1"


def test_where_boto3_is_missing_the_job_names_the_extra(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    job = run(queue, *TABLE)
    assert job.error == "Fail: boto3 is not installed: pip install 'holdfast-queue[aws]'"


@pytest.mark.process
def test_a_payload_is_checked_where_boto3_is_not_loaded(tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
import sys
sys.modules["boto3"] = sys.modules["botocore"] = None
from holdfast import Queue
from holdfast.errors import InvalidPayload
from holdfast.jobs import aws
with Queue("sqlite:///queue.db") as queue:
    queue.register("sync_aws", aws.sync)
    good = {"resourceType": "s3_bucket", "resourceId": "a", "config": {}}
    print(queue.enqueue("sync_aws", good).status)
    try:
        queue.enqueue("sync_aws", {**good, "config": {"No": 1}})
    except InvalidPayload as error:
        print(error)
""",
    )
    assert done.stderr == ""
    assert done.stdout.startswith(
        "pending\npayload: config of AWS::S3::Bucket does not support 'No'; supported: "
    )


# Secrets.


def everything_shown(job: Job) -> str:
    return repr((job.error, job.errors, job.result))


@pytest.mark.parametrize(
    ("type", "config"),
    [
        ("secretsmanager_secret", {"SecretString": SECRET}),
        ("secretsmanager_secret", {"SecretBinary": base64.b64encode(SECRET.encode()).decode()}),
        ("ssm_parameter", {"SecretValue": SECRET}),
        ("ssm_parameter", {"Type": "SecureString", "Value": SECRET}),
        ("AWS::RDS::DBInstance", {"Name": "db", "MasterUserPassword": SECRET}),
    ],
)
def test_a_secret_that_a_service_repeats_is_not_told(
    type: str, config: Config, queue: Queue, script: Script
) -> None:
    told = next(value for value in config.values() if len(value) > len("SecureString"))
    refusal = Refused("ValidationException", f"1 validation error: '{told}' is too short")
    for operation in ("DescribeSecret", "GetParameter", "GetResource"):
        script.answers[operation] = [refusal]
    job = run(queue, type, "db", config)
    assert job.error is not None
    assert job.error.endswith("ValidationException: 1 validation error: '[redacted]' is too short")
    assert told not in everything_shown(job)
    with pytest.raises(Fail) as failed:
        aws.differs(job)
    assert told not in str(failed.value)


def test_a_secret_that_boto3_repeats_is_not_told(queue: Queue, script: Script) -> None:
    script.answers["DescribeSecret"] = [Refused("ResourceNotFoundException")]
    config = {"SecretString": SECRET, "Tags": [{"Key": SECRET, "Value": SECRET}], "KmsKeyId": SECRET * 999}
    job = run(queue, "secretsmanager_secret", "x", config)
    assert job.status == "failed"
    assert SECRET not in everything_shown(job)


def test_secrets_are_found_in_every_form() -> None:
    config = {"Nested": {"DbPassword": 'a"b\nlong line'}, "Tokens": [1234], "Plain": "shown", "Secret": True}
    secrets = secrets_of(config)
    for text in ('a"b\nlong line', repr('a"b\nlong line'), json.dumps('a"b\nlong line'), "long line", "1234"):
        told = without(f"<{text}> shown True", secrets)
        assert "long line" not in told
        assert "1234" not in told
        assert told.endswith("shown True")


def test_the_payloads_of_secrets_are_shown_redacted() -> None:
    for config in ({"SecretString": SECRET}, {"SecretBinary": SECRET}, {"SecretValue": SECRET}):
        assert SECRET not in repr(redact(payload("ssm_parameter", "/a", config)))


def test_results_hold_no_secret(queue: Queue, cloud: None) -> None:
    for type, config in (
        ("ssm_parameter", {"SecretValue": SECRET}),
        ("secretsmanager_secret", {"SecretString": SECRET}),
    ):
        for expected in ("created", "unchanged"):
            job = run(queue, type, "mine", config)
            assert outcome(job) == expected
            assert SECRET not in everything_shown(job)


# What moto does not play: tables in transition, and changes that it does not keep.


def table(status: str = "ACTIVE", **more: Any) -> Config:
    described = {
        "TableName": "a-table",
        "TableArn": "arn:aws:dynamodb:eu-west-1:123456789012:table/a-table",
        "TableStatus": status,
        **KEYS,
        **more,
    }
    return {"Table": described}


def test_a_table_in_transition_is_waited_for(queue: Queue, script: Script) -> None:
    script.answers["DescribeTable"] = [table("CREATING"), table("UPDATING"), table()]
    assert outcome(run(queue, *TABLE, KEYS)) == "unchanged"
    assert script.operations() == ["DescribeTable"] * 3


def test_a_table_that_stays_in_transition_is_left_to_a_later_attempt(
    queue: Queue, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "SETTLING", 0.1)
    script.answers["DescribeTable"] = [table("CREATING")]
    job = run(queue, *TABLE, KEYS)
    assert job.error == "Retry: AWS::DynamoDB::Table 'a-table' is still being changed after 0.1 s"
    assert aws.differs(job) is None
    script.answers["DescribeTable"] = [table("DELETING")]
    assert aws.differs(job) == "the resource is missing"


def test_a_table_being_deleted_is_created_anew_when_it_is_gone(queue: Queue, script: Script) -> None:
    gone = Refused("ResourceNotFoundException")
    script.answers["DescribeTable"] = [table("DELETING"), gone, table("CREATING"), table()]
    script.answers["CreateTable"] = [{"TableDescription": table()["Table"]}]
    assert outcome(run(queue, *TABLE, KEYS)) == "created"
    assert script.operations()[-3:] == ["CreateTable", "DescribeTable", "DescribeTable"]


def test_changes_of_a_table_come_one_at_a_time_and_each_is_waited_for(queue: Queue, script: Script) -> None:
    before = table(StreamSpecification={"StreamEnabled": True, "StreamViewType": "KEYS_ONLY"})
    indexing = table(GlobalSecondaryIndexes=[{**index("by-owner"), "IndexStatus": "CREATING"}])
    script.answers["DescribeTable"] = [before, table("UPDATING"), indexing, before]
    script.answers["UpdateTable"] = [{}]
    stream = {"StreamEnabled": True, "StreamViewType": "NEW_IMAGE"}
    config = {
        "TableClass": "STANDARD_INFREQUENT_ACCESS",
        "SSESpecification": {"Enabled": True, "KMSMasterKeyId": "1234"},
        "StreamSpecification": stream,
    }
    assert outcome(run(queue, *TABLE, config)) == "updated"
    sent = [body for operation, body in script.asked if operation == "UpdateTable"]
    assert [{key: body[key] for key in body if key != "TableName"} for body in sent] == [
        {"TableClass": "STANDARD_INFREQUENT_ACCESS"},
        {"SSESpecification": {"Enabled": True, "KMSMasterKeyId": "1234"}},
        {"StreamSpecification": {"StreamEnabled": False}},
        {"StreamSpecification": stream},
    ]
    assert script.operations()[1:5] == ["UpdateTable", "DescribeTable", "DescribeTable", "DescribeTable"]

    script.asked.clear()
    arn = "arn:aws:kms:eu-west-1:123456789012:key/1234"
    script.answers["DescribeTable"] = [
        table(
            TableClassSummary={"TableClass": "STANDARD_INFREQUENT_ACCESS"},
            SSEDescription={"Status": "ENABLED", "SSEType": "KMS", "KMSMasterKeyArn": arn},
            StreamSpecification=stream,
        )
    ]
    assert outcome(run(queue, *TABLE, config)) == "unchanged"
    assert "UpdateTable" not in script.operations()


def test_policies_of_a_parameter_are_compared_by_what_they_say(queue: Queue, script: Script) -> None:
    policy = {"Type": "Expiration", "Version": "1.0", "Attributes": {"Timestamp": "2030-12-02T21:34:33.000Z"}}
    found = {"Name": "/a", "Type": "String", "Value": "1", "ARN": "arn:aws:ssm:::parameter/a"}
    script.answers["GetParameter"] = [{"Parameter": found}]
    told = [
        {"PolicyText": json.dumps(policy, indent=2), "PolicyType": "Expiration", "PolicyStatus": "Pending"}
    ]
    script.answers["DescribeParameters"] = [{"Parameters": [{**found, "Policies": told}]}]
    script.answers["PutParameter"] = [{"Version": 2}]
    config = {"Value": "1", "Policies": json.dumps([policy])}
    assert outcome(run(queue, "ssm_parameter", "/a", config)) == "unchanged"
    other = {**config, "Policies": json.dumps([{**policy, "Version": "2.0"}])}
    assert outcome(run(queue, "ssm_parameter", "/a", other)) == "updated"
    assert script.asked[-1][1]["Overwrite"] is True


def test_a_resource_that_comes_and_goes_is_left_to_a_later_attempt(queue: Queue, script: Script) -> None:
    script.answers["GetParameter"] = [Refused("ParameterNotFound")]
    script.answers["PutParameter"] = [Refused("ParameterAlreadyExists")]
    job = run(queue, "ssm_parameter", "/a", {"Value": "1"})
    assert job.error is not None
    assert job.error.startswith("Retry: AWS::SSM::Parameter '/a' keeps being created and deleted by others")


# The Cloud Control API.


def group(**properties: Any) -> tuple[str, str, Config]:
    return LOG_GROUP, "a-group", {"LogGroupName": "a-group", **properties}


def test_any_other_type_is_created_changed_and_deleted_over_cloud_control(
    queue: Queue, control: CloudControl
) -> None:
    control.polls = 3
    created = run(queue, *group(RetentionInDays=7, Tags=TAGS))
    assert outcome(created) == "created"
    assert created.result["arn"] == "arn:aws:fake:eu-west-1:123456789012:a-group"
    assert control.count("GetResourceRequestStatus") == 4
    assert aws.differs(created) is None

    again = run(queue, *group(RetentionInDays=7, Tags=TAGS[::-1]))
    assert outcome(again) == "unchanged"
    assert again.result == {**created.result, "action": "unchanged"}

    control.resources[LOG_GROUP, "a-group"]["Extra"] = {"kept": 1, "gone": 2, "a/b~c": 3}
    config = group(RetentionInDays=14, Extra={"gone": None, "a/b~c": 4}, KmsKeyId="k")
    assert outcome(run(queue, *config)) == "updated"
    assert control.resources[LOG_GROUP, "a-group"] == {
        "LogGroupName": "a-group",
        "RetentionInDays": 14,
        "Tags": TAGS,
        "Arn": created.result["arn"],
        "KmsKeyId": "k",
        "Extra": {"kept": 1, "a/b~c": 4},
    }
    assert outcome(run(queue, *config)) == "unchanged"

    deleted = run(queue, LOG_GROUP, "a-group", action="delete")
    assert outcome(deleted) == "deleted"
    assert control.resources == {}
    assert aws.differs(deleted) is None
    assert aws.differs(created) == "the resource is missing"
    assert outcome(run(queue, LOG_GROUP, "a-group", action="delete")) == "absent"


def test_an_answer_that_was_lost_is_found_again_by_its_token(
    queue: Queue, control: CloudControl, start_worker: StartWorker
) -> None:
    control.hang_up = {"CreateResource", "UpdateResource", "DeleteResource"}
    start_worker()
    jobs = []
    for config, action in ((group(), "sync"), (group(KmsKeyId="k"), "sync"), (group(), "delete")):
        job = queue.enqueue("sync_aws", payload(*config, action=action), max_attempts=3)
        jobs.append(queue.wait(job.id, timeout=PATIENCE))
    assert [(job.status, job.attempts, outcome(job)) for job in jobs] == [
        ("completed", 2, "created"),
        ("completed", 2, "updated"),
        ("completed", 2, "deleted"),
    ]
    for operation in ("CreateResource", "UpdateResource", "DeleteResource"):
        first, second = control.tokens(operation)
        assert first == second
    assert len({*control.tokens("CreateResource"), *control.tokens("UpdateResource")}) == 2


def test_two_jobs_never_share_a_token(queue: Queue, control: CloudControl) -> None:
    for _ in range(2):
        assert outcome(run(queue, *group())) == "created"
        assert outcome(run(queue, *group(), action="delete")) == "deleted"
    assert len(set(control.tokens("CreateResource") + control.tokens("DeleteResource"))) == 4


@pytest.mark.parametrize(
    "code",
    [
        "Throttling",
        "ServiceInternalError",
        "InternalFailure",
        "NetworkFailure",
        "ServiceTimeout",
        "NotStabilized",
        "ResourceConflict",
    ],
)
def test_a_request_that_failed_by_chance_is_sent_anew_with_another_token(
    code: str, queue: Queue, control: CloudControl, start_worker: StartWorker
) -> None:
    control.failures = [(code, "not now")]
    start_worker()
    job = queue.enqueue("sync_aws", payload(*group()), max_attempts=3)
    job = queue.wait(job.id, timeout=PATIENCE)
    assert (job.status, job.attempts, outcome(job)) == ("completed", 2, "created")
    assert job.errors[0].error == f"Retry: CREATE: {code}: not now"
    first, second = control.tokens("CreateResource")
    assert first != second
    assert job.errors[0].detail == {"failedRequest": first}


@pytest.mark.parametrize(
    "code",
    [
        "AccessDenied",
        "InvalidRequest",
        "InvalidCredentials",
        "NotUpdatable",
        "ServiceLimitExceeded",
        "GeneralServiceException",
        "UnauthorizedTaggingOperation",
    ],
)
def test_a_request_that_failed_for_good_fails_the_job(code: str, queue: Queue, control: CloudControl) -> None:
    control.failures = [(code, f"no: {SECRET}")]
    job = queue.enqueue("sync_aws", payload(*group(DbPassword=SECRET)), max_attempts=9)
    queue.drain(limit=1)
    job = get(queue, job.id)
    assert (job.status, job.error) == ("failed", f"Fail: CREATE: {code}: no: [redacted]")
    # A person may have given the right since, and tries again: that is another request.
    queue.retry(job.id)
    queue.drain(limit=1)
    assert outcome(get(queue, job.id)) == "created"


@pytest.mark.parametrize(
    ("code", "word"),
    [
        ("TypeNotFoundException", "Fail"),
        ("UnsupportedActionException", "Fail"),
        ("InvalidRequestException", "Fail"),
        ("ConcurrentOperationException", "Retry"),
        ("ThrottlingException", "Retry"),
        ("HandlerInternalFailureException", "Retry"),
    ],
)
def test_a_request_that_is_refused_says_so(code: str, word: str, queue: Queue, control: CloudControl) -> None:
    control.refusals = [("CreateResource", Refused(code, "no"))]
    assert run(queue, *group()).error == f"{word}: CreateResource: {code}: no"


def test_what_another_has_created_meanwhile_is_read_again(queue: Queue, control: CloudControl) -> None:
    control.resources[LOG_GROUP, "a-group"] = {"LogGroupName": "a-group"}
    gone = Refused("ResourceNotFoundException")
    control.refusals = [("GetResource", gone), ("CreateResource", Refused("AlreadyExistsException"))]
    assert outcome(run(queue, *group())) == "unchanged"
    control.refusals = [("GetResource", gone)]
    control.failures = [("AlreadyExists", "it is there")]
    assert outcome(run(queue, *group(RetentionInDays=3))) == "updated"


def test_what_another_has_deleted_meanwhile_is_gone(queue: Queue, control: CloudControl) -> None:
    run(queue, *group())
    control.refusals = [("DeleteResource", Refused("ResourceNotFoundException"))]
    assert outcome(run(queue, *group(), action="delete")) == "absent"
    control.failures = [("NotFound", "gone")]
    assert outcome(run(queue, *group(), action="delete")) == "absent"
    control.failures = [("NotFound", "gone")]
    error = run(queue, *group(KmsKeyId="k")).error
    assert error == "Retry: AWS::Logs::LogGroup 'a-group' was deleted in the meantime"


def test_a_cancelled_job_stops_polling(
    queue: Queue,
    control: CloudControl,
    recorder: Recorder,
    start_worker: StartWorker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue.set_config("heartbeat_interval", 0.1)
    monkeypatch.setattr(access, "FIRST_PAUSE", 10 * PATIENCE)
    start_worker()
    job = queue.enqueue("sync_aws", payload(*group()))
    wait_until(lambda: control.count("CreateResource") == 1)
    queue.cancel(job.id)
    job = queue.wait(job.id, timeout=PATIENCE)
    assert (job.status, job.attempts) == ("cancelled", 1)
    assert control.count("GetResourceRequestStatus") == 0
    assert recorder.all(HandlerStuck) == []


def test_a_job_that_is_given_back_while_it_polls_goes_on_with_its_request(
    queue: Queue, control: CloudControl, start_worker: StartWorker
) -> None:
    control.held.clear()
    worker = start_worker()
    job = queue.enqueue("sync_aws", payload(*group()))
    wait_until(lambda: control.count("GetResourceRequestStatus") >= 2)
    worker.stop(timeout=PATIENCE)
    assert get(queue, job.id).status == "pending"
    control.held.set()
    start_worker()
    job = queue.wait(job.id, timeout=PATIENCE)
    assert (job.attempts, outcome(job)) == (1, "created")
    first, second = control.tokens("CreateResource")
    assert first == second


def test_a_resource_that_aws_would_name_is_not_created(queue: Queue, control: CloudControl) -> None:
    job = run(queue, "AWS::EC2::VPC", "main", {"CidrBlock": "172.20.0.0/16"})
    assert job.error is not None
    assert job.error.startswith("Fail: AWS::EC2::VPC 'main' does not exist, and no property of its config is")
    assert control.count("CreateResource") == 0


def test_a_resource_that_aws_has_named_all_the_same_is_told(queue: Queue, control: CloudControl) -> None:
    job = run(queue, "AWS::EC2::VPC", "main", {"Comment": "main"})
    assert job.error is not None
    assert "AWS named it 'chosen-0', not 'main'" in job.error
    assert job.status == "failed"


def test_parts_of_a_name_may_be_several_properties_or_the_end_of_an_arn(
    queue: Queue, control: CloudControl
) -> None:
    config = {"RestApiId": "api", "Path": "orders", "Name": "machine"}
    for name in ("api|orders", "arn:aws:states:eu-west-1:123456789012:stateMachine:machine", "role/machine"):
        run(queue, "AWS::Made::Up", name, config)
    assert control.count("CreateResource") == 3


def test_what_is_only_written_is_written_every_time(queue: Queue, control: CloudControl) -> None:
    config = {"Name": "db", "MasterUserPassword": SECRET}
    assert outcome(run(queue, "AWS::RDS::DBInstance", "db", config)) == "created"
    assert outcome(run(queue, "AWS::RDS::DBInstance", "db", config)) == "updated"


# Reconciliation, and comparing.


def test_the_subject_is_the_resource_whatever_its_type_is_called(queue: Queue) -> None:
    subjects = [
        aws.subject(queue.enqueue("sync_aws", payload(type, name)))
        for type, name in (
            ("s3_bucket", "a"),
            ("AWS::S3::Bucket", "a"),
            ("s3_bucket", "b"),
            (LOG_GROUP, "a"),
        )
    ]
    assert subjects == [
        "AWS::S3::Bucket a",
        "AWS::S3::Bucket a",
        "AWS::S3::Bucket b",
        "AWS::Logs::LogGroup a",
    ]


def test_what_cannot_be_looked_at_is_an_exception(queue: Queue, script: Script) -> None:
    job = queue.enqueue("sync_aws", payload(*TABLE))
    script.answers["DescribeTable"] = [Refused("ThrottlingException")]
    with pytest.raises(Retry, match="ThrottlingException"):
        aws.differs(job)
    script.answers["GetResource"] = [Refused("AccessDeniedException")]
    with pytest.raises(Fail, match="AccessDeniedException"):
        aws.differs(queue.enqueue("sync_aws", payload(*group())))


@pytest.mark.parametrize(
    ("wanted", "found", "is_same"),
    [
        (30, "30", True),
        (True, "true", True),
        (None, "", True),
        ({}, None, True),
        ({"a": None}, None, True),
        ("", "x", False),
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}}, True),
        ([{"a": 1}], [{"a": 1, "b": 2}], False),
        ([1, 2], [2, 1], False),
        ([1], [1, 2], False),
        (TAGS, TAGS[::-1], True),
        (TAGS, [*TAGS, {"Key": "aws:cloudformation:stack-id", "Value": "x"}], True),
        (TAGS, TAGS[:1], False),
        ('{"a": [1, 2]}', '{"a":[1,2]}', True),
        ({"a": 1}, '{"a": "1"}', True),
        ('{"a": 1}', '{"a": 1, "b": 2}', False),
        ("{not json", "{not json", True),
    ],
)
def test_what_is_wanted_is_the_same_as_what_is_found(wanted: Any, found: Any, is_same: bool) -> None:
    assert same(wanted, found) is is_same
    assert difference({"it": wanted}, {"it": found}) == ({} if is_same else {"it": wanted})


def test_equal_leaves_nothing_out() -> None:
    assert not equal({"a": 1}, {"a": 1, "b": 2})
    assert equal({"a": 1, "b": None}, {"a": 1})


@pytest.mark.parametrize("lost_before", ["GetParameter", "PutParameter"])
def test_attempt_that_lost_its_job_changes_nothing_any_more(
    queue: Queue, cloud: None, monkeypatch: pytest.MonkeyPatch, lost_before: str
) -> None:
    """As after a pause of the whole machine: another attempt has done the work, and a later job more."""
    checked: list[str] = []
    made = access.Access._made

    def watched(self: access.Access, service: str) -> Any:
        client = made(self, service)

        def pause(model: Any, **_: Any) -> None:
            checked.append(model.name)
            if model.name == lost_before:
                supersede(queue, "late")
                assert self._ctx is not None
                self._ctx._attempt.leased_until -= 3600

        client.meta.events.register_first("before-call", pause)
        return client

    monkeypatch.setattr(access.Access, "_made", watched)
    queue.enqueue("sync_aws", payload("ssm_parameter", "/a", {"Value": "old", "Type": "String"}), id="late")
    queue.drain(limit=1)
    assert checked[-1] == lost_before
    assert client("ssm").describe_parameters()["Parameters"] == []
    assert (get(queue, "late").status, get(queue, "late").worker_id) == ("processing", "another")
