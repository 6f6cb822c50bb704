"""How a request becomes arguments: JSON read strictly, and unknown parameters refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from holdfast.core.payload import decode_strictly
from holdfast.errors import shown
from holdfast.web.errors import Refused

LARGE_BODY = 64 * 1024
"""Bytes beyond which a body is worked on in a thread, beside the event loop."""


class StrictRequest(Request):
    """Takes only JSON that means one thing: UTF-8, and no key twice in an object."""

    async def json(self) -> Any:
        body = await self.body()
        try:
            if len(body) > LARGE_BODY:  # the others are not to wait for it
                return await asyncio.to_thread(_parse, body)
            return _parse(body)
        except UnicodeDecodeError:
            raise _invalid("the body is not UTF-8") from None
        except RecursionError:
            raise _invalid("the body is nested too deeply") from None
        except ValueError as error:
            raise _invalid(f"the body is not valid JSON: {error}") from None


class StrictRoute(APIRoute):
    """The route of every endpoint."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        flat = [
            *self.dependant.query_params,
            *(p for d in self.dependant.dependencies for p in d.query_params),
        ]
        allowed = sorted(parameter.alias for parameter in flat)
        takes_body = self.body_field is not None

        async def handle_strictly(request: Request) -> Response:
            for name in request.query_params:
                if name not in allowed:
                    has = f"allowed: {', '.join(allowed)}" if allowed else "there are none here"
                    raise _invalid(f"there is no parameter {shown(name)}; {has}")
            if takes_body:
                request = StrictRequest(request.scope, request.receive)
                if await request.body() and not _is_json(request.headers.get("content-type", "")):
                    raise _invalid("the body must be JSON, sent with Content-Type: application/json")
            return await handle(request)

        return handle_strictly


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def _parse(body: bytes) -> Any:
    return decode_strictly(body.decode())


def _invalid(message: str) -> Refused:
    return Refused(400, "invalid_request", message)
