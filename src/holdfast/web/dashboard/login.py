"""Logging in with a token, and out."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import RedirectResponse

from holdfast.web.auth import COOKIE, SESSION_SECONDS, Access, Right
from holdfast.web.dashboard.page import FORM_COOKIE, Form, local_path, page, scheme
from holdfast.web.desk import desk_of, root_of

router = APIRouter(include_in_schema=False)


@router.get("/login")
async def show_login(request: Request, next: Annotated[str, Query()] = "/") -> Response:
    access: Access = request.app.state.access
    if not access.needs_token:
        return RedirectResponse(f"{root_of(request)}{local_path(next)}", 303)
    return page(request, "login.html", next=local_path(next), problem=None)


@router.post("/login")
async def log_in(request: Request) -> Response:
    access: Access = request.app.state.access
    form = Form.read(await request.body(), most=10, errors="replace")
    target = local_path(form.get("next", "/"))
    if not access.needs_token:
        return RedirectResponse(f"{root_of(request)}{target}", 303)
    right = access.right_of_token(form.get("token").strip().encode())
    if right is Right.NOTHING:
        await desk_of(request).failed_logins.slow_down(request.scope["holdfast.client"])
        return page(request, "login.html", 401, next=target, problem="That is not the token.")
    root = root_of(request)
    response = RedirectResponse(f"{root}{target}", 303)
    response.set_cookie(
        COOKIE,
        access.make_session(right),
        max_age=SESSION_SECONDS,
        path=root or "/",
        secure=scheme(request) == "https",
        httponly=True,
        samesite="strict",
    )
    return response


@router.post("/logout")
async def log_out(request: Request) -> Response:
    if session := request.scope["holdfast.session"]:
        await desk_of(request).sessions.end(session)
    root = root_of(request)
    response = RedirectResponse(f"{root}/login", 303)
    for name in (COOKIE, FORM_COOKIE):
        response.delete_cookie(name, path=root or "/", httponly=True, samesite="strict")
    return response
