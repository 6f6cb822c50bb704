"""Responses: JSON with the digits of every number kept, and the dashboard's files, kept in memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from mimetypes import guess_type
from pathlib import Path
from typing import Any

from msgspec import to_builtins
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

_encode = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=to_builtins
).encode


def json_bytes(value: Any) -> bytes:
    """Plain values, and Structs among them."""
    return _encode(value).encode()


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json_bytes(value), status, headers, "application/json")


def number(value: float) -> float | int:
    """Whole numbers without a fraction: 10, not 10.0."""
    return int(value) if float(value).is_integer() else value


class StaticFiles:
    """The files of a folder, as they were when the application was made: no client that does not read them
    holds a file open."""

    def __init__(self, folder: Path) -> None:
        self._files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}

    async def answer(self, request: Request) -> Response:
        content = self._files.get(request.path_params["name"])
        if content is None:
            raise HTTPException(404)
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()[:32]}"'}
        if headers["ETag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=guess_type(request.path_params["name"])[0])
