"""Logging in with a token, and out."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from holdfast.web.auth import COOKIE, SESSION_SECONDS, Access, Right
from holdfast.web.backend import backend_of
from holdfast.web.dashboard.page import (
    FORM_COOKIE,
    Form,
    delete_cookie,
    local_path,
    page,
    redirect,
    set_cookie,
)

router = APIRouter(include_in_schema=False)


@router.get("/login")
async def show_login(request: Request, next: Annotated[str, Query()] = "/") -> Response:
    access: Access = request.app.state.access
    if not access.needs_token:
        return redirect(request, next)
    return page(request, "login.html", next=local_path(next), problem=None)


@router.post("/login")
async def log_in(request: Request) -> Response:
    access: Access = request.app.state.access
    form = Form.read(await request.body(), most=10, errors="replace")
    target = local_path(form.get("next", "/"))
    if not access.needs_token:
        return redirect(request, target)
    right = access.right_of_token(form.get("token").strip().encode())
    if right is Right.NOTHING:
        await backend_of(request).failed_logins.slow_down(request.scope["holdfast.client"])
        return page(request, "login.html", 401, next=target, problem="Wrong token.")
    response = redirect(request, target)
    set_cookie(request, response, COOKIE, access.make_session(right), SESSION_SECONDS)
    return response


@router.post("/logout")
async def log_out(request: Request) -> Response:
    if session := request.scope["holdfast.session"]:
        await backend_of(request).sessions.end(session)
    response = redirect(request, "/login")
    for name in (COOKIE, FORM_COOKIE):
        delete_cookie(request, response, name)
    return response
