"""Errors from AWS: which ones can be retried, and how they are reported without secrets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.core.redact import REDACTED, is_secret
from holdfast.errors import Fail, Interrupted, Retry
from holdfast.text import one_line

# What an error is called that time may heal. Answers of 5xx are, whatever they are called.
TRANSIENT = frozenset(
    {
        # Too fast.
        *("BandwidthLimitExceeded", "EC2Throttled", "LimitExceeded", "ProvisionedThroughputExceeded"),
        *("RequestLimitExceeded", "RequestThrottled", "Throttled", "Throttling", "TooManyRequests"),
        # Too many at once, or something is still under way.
        *("ConcurrentModification", "ConcurrentOperation", "Conflict", "NotStabilized", "OperationAborted"),
        *("PriorRequestNotComplete", "ResourceConflict", "ResourceInUse", "TooManyUpdates"),
        *("TransactionInProgress", "QueueDeletedRecently"),
        # No answer, or not that of the service itself.
        *("HandlerInternalFailure", "InternalFailure", "NetworkFailure", "RequestTimeout"),
        *("ServiceInternalError", "ServiceTimeout"),
        # Credentials of a role are renewed, and a clock is set right, without anybody's doing.
        *("ExpiredToken", "RequestExpired", "RequestTimeTooSkewed"),
    }
)
_TAKEN_FOR = 60.0
"""Seconds for which the name of a deleted queue can't be used again."""

# Those of boto3's own errors that time may heal: no answer, or no credentials yet.
_PASSING = frozenset(
    {
        *("ConnectionError", "HTTPClientError", "IncompleteReadError", "ResponseParserError"),
        *("CredentialRetrievalError", "MetadataRetrievalError", "NoCredentialsError"),
        *("SSOError", "TokenRetrievalError"),
    }
)


class Exists(Exception):
    """The resource to create already exists."""


def code_of(error: BaseException) -> str | None:
    """The service's error code; None if the error doesn't come from a service."""
    code: str | None = _told(error, "Error").get("Code")
    return code


def message_of(error: BaseException) -> str:
    """The service's error message."""
    return str(_told(error, "Error").get("Message", ""))


def is_transient(code: str) -> bool:
    """Whether an error of this name can get better. Services write one name with and without its ending."""
    return code.rpartition(".")[2].removesuffix("Exception") in TRANSIENT


def _told(error: BaseException, part: str) -> dict[str, Any]:
    """A part of the service's answer; empty if the error is not a service's."""
    response = getattr(error, "response", None)
    return response.get(part, {}) if isinstance(response, dict) else {}


@contextmanager
def told(config: dict[str, Any], note: Callable[..., None] | None = None) -> Iterator[None]:
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
    """The outcome of an attempt that raised this error; None if the error is not from AWS."""
    code = code_of(error)
    if code is None:
        names = {kind.__name__ for kind in type(error).__mro__}
        if names.isdisjoint({"BotoCoreError", "ResponseParserError"}):
            return None
        text = without(f"{type(error).__name__}: {error}", secrets)
        return Fail(text) if names.isdisjoint(_PASSING) else Retry(text)
    operation = getattr(error, "operation_name", "")
    text = without(f"{operation}: {code}: {message_of(error)}".removeprefix(": "), secrets)
    if not _can_get_better(error, code):
        return Fail(text)
    return Retry(text, delay=_TAKEN_FOR if code.endswith("QueueDeletedRecently") else None)


def _can_get_better(error: Exception, code: str) -> bool:
    status = _told(error, "ResponseMetadata").get("HTTPStatusCode", 0)
    return (
        is_transient(code)
        or status in (408, 425, 429)
        or status >= 500
        or "scheduled for deletion" in message_of(error)  # a secret that somebody deletes meanwhile
    )


def _evidence(error: Exception) -> dict[str, Any]:
    metadata = _told(error, "ResponseMetadata")
    return {
        "operation": getattr(error, "operation_name", None),
        "code": code_of(error),
        "status": metadata.get("HTTPStatusCode"),
        "requestId": metadata.get("RequestId"),
    }


def secrets_of(config: dict[str, Any]) -> list[str]:
    """Every text in a config that is a secret by the name of its field, as messages may show it."""
    found = set(_secrets(config, inside=False))
    if config.get("Type") == "SecureString":
        found.update(_secrets(config.get("Value"), inside=True))
    return sorted(found, key=len, reverse=True)  # the longest first: one may be part of another


def _secrets(value: object, inside: bool) -> Iterator[str]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _secrets(item, inside or is_secret(name))
    elif isinstance(value, list):
        for item in value:
            yield from _secrets(item, inside)
    elif inside and value is not None and not isinstance(value, bool):
        yield from _forms(str(value))


def _forms(text: str) -> Iterator[str]:
    """A secret as it is, as Python and JSON would show it, and its lines."""
    parts = [text, *(line for line in text.splitlines() if len(line) > 3)]
    for part in parts:
        yield from (part, repr(part)[1:-1], json.dumps(part)[1:-1])


def without(text: str, secrets: list[str]) -> str:
    """The text with secrets replaced by a marker."""
    for secret in filter(None, secrets):
        text = text.replace(secret, REDACTED)
    return one_line(text)
