"""The queue over HTTP: `create_app` makes an ASGI application. Needs the extra `web`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.web.app import create_app

__all__ = ["create_app"]


def __getattr__(name: str) -> Any:
    # Not before it is asked for: `serve` uses parts of this package and no web framework.
    if name == "create_app":
        from holdfast.web.app import create_app

        return create_app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
