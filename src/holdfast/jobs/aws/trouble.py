"""What AWS answers when something is wrong: whether it can get better, and how it is told without secrets."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.core.redact import REDACTED, is_secret
from holdfast.errors import Fail, Interrupted, Retry, one_line

# Too fast, too many at once, or something is still under way.
TRANSIENT = frozenset(
    {
        "BandwidthLimitExceeded",
        "ConcurrentModification",
        "ConcurrentOperationException",
        "ConflictException",
        "EC2ThrottledException",
        "HandlerInternalFailureException",
        "InternalError",
        "InternalFailure",
        "InternalServerError",
        "InternalServiceError",
        "LimitExceededException",
        "NetworkFailureException",
        "NotStabilizedException",
        "OperationAborted",
        "PriorRequestNotComplete",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "RequestTimeout",
        "RequestTimeoutException",
        "ResourceConflictException",
        "ResourceInUseException",
        "ServiceInternalErrorException",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "TooManyRequestsException",
        "TooManyUpdates",
        "TransactionInProgressException",
    }
)
# Credentials of a role are renewed, and a clock is set right, without anybody's doing.
RENEWED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired", "RequestTimeTooSkewed"})
# How long a name stays taken after its resource was deleted, in seconds.
TAKEN_FOR = {"AWS.SimpleQueueService.QueueDeletedRecently": 60.0, "QueueDeletedRecently": 60.0}

# Those of boto3's own errors that time may heal: no answer, or no credentials yet.
_PASSING = (
    "HTTPClientError",
    "ConnectionError",
    "IncompleteReadError",
    "ResponseParserError",
    "NoCredentialsError",
    "CredentialRetrievalError",
    "TokenRetrievalError",
    "MetadataRetrievalError",
    "SSOError",
)
_SECRET_KEYS = frozenset({"SecretString", "SecretBinary", "SecretValue"})


class Exists(Exception):
    """What was to be created is there already."""


def code_of(error: BaseException) -> str | None:
    """The service's word for an error; None if the error is not a service's."""
    response = getattr(error, "response", None)
    if not isinstance(response, dict):
        return None
    return str(response.get("Error", {}).get("Code", ""))


def message_of(error: BaseException) -> str:
    """What the service says about an error."""
    response: dict[str, Any] = getattr(error, "response", {})
    return str(response.get("Error", {}).get("Message", ""))


def ask(call: Callable[..., Any], absent: Collection[str], /, **parameters: Any) -> Any | None:
    """What the service answers; None if its answer is one of the codes that mean `absent`."""
    try:
        return call(**parameters)
    except Exception as error:
        if code_of(error) in absent:
            return None
        raise


def make(call: Callable[..., Any], taken: Collection[str], /, **parameters: Any) -> Any:
    """Create something; raises Exists if the answer is one of the codes that mean it is `taken`."""
    try:
        return call(**parameters)
    except Exception as error:
        if code_of(error) in taken:
            raise Exists from None
        raise


@contextmanager
def told(config: object, note: Callable[..., None] | None = None) -> Iterator[None]:
    """Turn errors of AWS into Fail or Retry, with the secrets of `config` taken out of what they say.

    `note` is given the evidence: the operation, the code and the number of the request.
    """
    try:
        yield
    except (Fail, Retry, Interrupted):
        raise
    except Exception as error:
        verdict = _verdict(error, secrets_of(config))
        if verdict is None:
            raise
        if note is not None and code_of(error) is not None:
            note(aws=_evidence(error))
        raise verdict from None  # what it came from may hold a secret, and a traceback would show it


def _verdict(error: Exception, secrets: list[str]) -> Fail | Retry | None:
    """How an attempt ends by this error; None if the error is not from AWS."""
    code = code_of(error)
    if code is None:
        names = {kind.__name__ for kind in type(error).__mro__}
        if "BotoCoreError" not in names and "ResponseParserError" not in names:
            return None
        text = without(f"{type(error).__name__}: {error}", secrets)
        return Retry(text) if not names.isdisjoint(_PASSING) else Fail(text)
    text = without(_words(error, code), secrets)
    return Retry(text, delay=TAKEN_FOR.get(code)) if _can_get_better(error, code) else Fail(text)


def _can_get_better(error: Exception, code: str) -> bool:
    status = _metadata(error).get("HTTPStatusCode", 0)
    return (
        code in TRANSIENT
        or code in RENEWED
        or code in TAKEN_FOR
        or status in (408, 425, 429)
        or status >= 500
        or "scheduled for deletion" in message_of(error)  # a secret that somebody deletes meanwhile
    )


def _words(error: Exception, code: str) -> str:
    operation = getattr(error, "operation_name", "")
    return f"{operation}: {code}: {message_of(error)}" if operation else f"{code}: {message_of(error)}"


def _evidence(error: Exception) -> dict[str, Any]:
    metadata = _metadata(error)
    return {
        "operation": getattr(error, "operation_name", None),
        "code": code_of(error),
        "status": metadata.get("HTTPStatusCode"),
        "requestId": metadata.get("RequestId"),
    }


def _metadata(error: Exception) -> dict[str, Any]:
    found: dict[str, Any] = getattr(error, "response", {}).get("ResponseMetadata", {})
    return found


def secrets_of(config: object) -> list[str]:
    """Every text in a config that is a secret by the name of its field, as messages may show it."""
    found: set[str] = set()
    secure = isinstance(config, dict) and config.get("Type") == "SecureString"
    _collect(config, secure, False, found)
    return sorted(found, key=len, reverse=True)  # the longest first: one may be part of another


def _collect(value: object, secure: bool, inside: bool, found: set[str]) -> None:
    if isinstance(value, dict):
        for name, item in value.items():
            hidden = inside or name in _SECRET_KEYS or is_secret(str(name)) or (secure and name == "Value")
            _collect(item, secure, hidden, found)
    elif isinstance(value, list):
        for item in value:
            _collect(item, secure, inside, found)
    elif inside and value is not None and not isinstance(value, bool):
        found.update(_forms(str(value)))


def _forms(text: str) -> Iterator[str]:
    """A secret as it is, as Python and JSON would show it, and its lines."""
    parts = [text, *(line for line in text.splitlines() if len(line) > 3)]
    for part in parts:
        yield from (part, repr(part)[1:-1], json.dumps(part)[1:-1])


def without(text: str, secrets: list[str]) -> str:
    """The text with secrets replaced by a marker."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, REDACTED)
    return one_line(text)
