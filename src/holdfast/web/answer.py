"""Answers as JSON, with the digits of every number kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def json_bytes(value: Any) -> bytes:
    return _encode(value).encode()


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json_bytes(value), status, headers, "application/json")


def number(value: float) -> float | int:
    """10 rather than 10.0, as whoever sent it wrote it."""
    return int(value) if float(value).is_integer() else value
