"""Signing webhooks according to Standard Webhooks."""

from __future__ import annotations

import base64
import hmac
import os
import time

from holdfast.errors import ConfigError

SECRET = "QUEUECTL_WEBHOOK_SECRET"
SECRET_FILE = "QUEUECTL_WEBHOOK_SECRET_FILE"
"""The variables of a worker's environment that say how to sign."""


def signature(message_id: str, body: bytes | None) -> dict[str, str]:
    """The headers of Standard Webhooks, one signature for each secret; none without a secret."""
    keys = _keys()
    if not keys:
        return {}
    sent_at = str(int(time.time()))
    content = f"{message_id}.{sent_at}.".encode() + (body or b"")
    made = [base64.b64encode(hmac.digest(key, content, "sha256")).decode() for key in keys]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": sent_at,
        "webhook-signature": " ".join(f"v1,{signature}" for signature in made),
    }


def _keys() -> list[bytes]:
    """The signing keys: several during a rotation."""
    path = os.environ.get(SECRET_FILE)
    if not path:
        secret = os.environ.get(SECRET, "")
        return [_key(secret, SECRET)] if secret else []
    if os.environ.get(SECRET):
        raise ConfigError(f"{SECRET} and {SECRET_FILE} are both set; unset one")
    try:
        with open(path, encoding="utf-8") as file:
            secrets = [line.strip() for line in file if line.strip()]
    except (OSError, ValueError) as error:
        raise ConfigError(f"{SECRET_FILE} can't be read: {type(error).__name__}") from None
    if not secrets:
        raise ConfigError(f"{SECRET_FILE}: the file contains no secret")
    return [_key(secret, SECRET_FILE) for secret in secrets]


def _key(secret: str, source: str) -> bytes:
    if not secret.startswith("whsec_"):
        return secret.encode()
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except ValueError:
        key = b""
    if not key:
        raise ConfigError(f"{source}: the part after whsec_ is not valid base64")
    return key
