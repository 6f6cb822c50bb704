"""The dashboard's styles and scripts, kept in memory: no client that does not read them holds a file open."""

from __future__ import annotations

import hashlib
from mimetypes import guess_type
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response


class StaticFiles:
    """The files of a folder, as they were when the application was made."""

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
