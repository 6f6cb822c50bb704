"""A handler: the function that runs a type, how it is called, and the options in its decorator."""

from __future__ import annotations

import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from msgspec import Struct

from holdfast.config import Value
from holdfast.core.job import Job, check_type
from holdfast.core.payload import PayloadSpec
from holdfast.core.redact import is_secret
from holdfast.errors import ConfigError
from holdfast.handlers.options import Executor

EXECUTORS = typing.get_args(Executor)

Prepare = Callable[[dict[str, Any]], tuple[dict[str, Any], dict[str, Any]]]
"""Called with a validated payload when it is enqueued; returns the payload to store, and default options."""


class GivenToHandlers:
    """The base class of Context, used to recognise a parameter that takes one."""

    __slots__ = ()


class Reconcile(Struct, frozen=True):
    """How to check that the effects of a type's completed jobs still exist.

    `check(job)` returns None if the effect of a completed job still exists, else a sentence about what
    differs; it raises if it can't tell. `subject(job)` names what the job is about, so that only the last
    completed job for each subject is checked; without it, every job is. Set `on_start` to False for checks
    that should only run on request, because they are expensive.
    """

    check: Callable[[Job], str | None]
    subject: Callable[[Job], str] | None = None
    on_start: bool = True


class Handler:
    """A function that runs jobs of a type.

    `whole` handlers take the payload as one argument, the others its fields as keyword arguments.
    """

    def __init__(
        self,
        type: str,
        function: Callable[..., Any],
        *,
        whole: bool,
        payload_type: Any = None,
        executor: Executor | None = None,
        prepare: Prepare | None = None,
        reconcile: Reconcile | Callable[[Job], str | None] | None = None,
        options: Mapping[str, Value] | None = None,
    ) -> None:
        self.type = check_type(type)
        self.prepare = _plain(prepare, "prepare= must be a sync function that takes the payload")
        self.reconcile = _reconcile(reconcile)
        self.function = function
        self.whole = whole
        self.executor = _executor(function, executor)
        if payload_type is not None and self.executor == "process":
            raise ConfigError(
                "payload_type can't be combined with executor='process', whose processes can't see it",
                hint="annotate the handler's parameter with the type",
            )
        self.options: Mapping[str, Value] = options or {}
        parameters = _parameters(function)
        hints = _hints(function, strict=payload_type is None)
        self.context_name = _context_parameter(parameters, hints, whole)
        self.spec = _spec(function, parameters, hints, self.context_name, whole, payload_type)
        self.schema = _schema(self.spec, type)
        if not whole:
            _add_defaults(self.schema, parameters)
        self.positional_names = tuple(
            p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD and p.name != self.context_name
        )

    def call(self, bound: Any, context: Callable[[], Any]) -> Any:
        """Call the function with what `spec.bind` made; for an async function, return its coroutine."""
        if self.whole:
            return self.function(bound, context()) if self.context_name else self.function(bound)
        if self.context_name:
            bound[self.context_name] = context()
        return self.function(**bound)

    def address(self) -> tuple[str, str]:
        """Where a new process can import the function from: its module and name."""
        return self.function.__module__, self.function.__qualname__


def _reconcile(given: Any) -> Reconcile | None:
    if given is None:
        return None
    how = given if isinstance(given, Reconcile) else Reconcile(given)
    for function in (how.check, how.subject):
        _plain(function, "reconcile= must be a sync function that takes a job, or a Reconcile")
    return how


def _plain(function: Any, what: str) -> Any:
    """The function, or None; raises ConfigError unless it can be called and needs no event loop."""
    if function is not None and (not callable(function) or inspect.iscoroutinefunction(function)):
        raise ConfigError(f"{what}, not {function!r}")
    return function


def _executor(function: Callable[..., Any], wanted: Executor | None) -> Executor:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"{function!r} is a generator: calling it would run nothing")
    call = getattr(type(function), "__call__", None)  # noqa: B004 -- an object may be the handler
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
    executor: Executor = wanted or ("async" if is_async else "thread")
    if executor not in EXECUTORS:
        raise ConfigError(f"there is no executor {executor!r}; allowed: {', '.join(EXECUTORS)}")
    if is_async and executor == "thread":
        raise ConfigError(f"{function!r} is async: it can run on the event loop or with executor='process'")
    if executor == "async" and not is_async:
        raise ConfigError(f"{function!r} is not async: it can run in a thread or with executor='process'")
    if executor == "process" and (
        "<" in getattr(function, "__qualname__", "<") or inspect.ismethod(function)
    ):
        raise ConfigError(
            f"{function!r} can't run with executor='process', whose processes import it by name",
            hint="define it at the top level of a module",
        )
    return executor


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise ConfigError(f"{function!r} can't be a handler: its parameters can't be inspected") from None


def _context_parameter(
    parameters: list[inspect.Parameter], hints: Mapping[str, Any], whole: bool
) -> str | None:
    """The parameter that takes the context: the one annotated with our Context, or else the one named ctx."""
    names = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    annotated = [name for name in names if _is_context(hints.get(name))]
    found = annotated[0] if annotated else "ctx" if "ctx" in names else None
    if whole:
        second = _after_payload(parameters)
        needs_context = any(p.default is p.empty for p in second)
        if found not in [p.name for p in second] and (found or needs_context):
            raise ConfigError(
                "a registered handler must take (payload) or (payload, ctx)",
                hint="name the second parameter ctx, or annotate it with Context",
            )
    return found


def _after_payload(parameters: list[inspect.Parameter]) -> list[inspect.Parameter]:
    """The second parameter of a handler that takes the whole payload, if there is one."""
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in positional if p.default is p.empty]
    others = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if not positional or len(needed) > 2 or others:
        raise ConfigError("a registered handler must take (payload) or (payload, ctx)")
    return positional[1:2]


def _is_context(hint: Any) -> bool:
    """Whether an annotation is Holdfast's own Context, possibly optional or Annotated."""
    if typing.get_origin(hint) is typing.Annotated:
        return _is_context(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return all(_is_context(one) for one in typing.get_args(hint) if one is not type(None))
    if isinstance(hint, type) and issubclass(hint, GivenToHandlers):
        if GivenToHandlers not in hint.__bases__:
            raise ConfigError(
                f"handlers receive a holdfast.Context, not a {hint.__qualname__}",
                hint="annotate the parameter with Context itself",
            )
        return True
    return False


def _spec(
    function: Callable[..., Any],
    parameters: list[inspect.Parameter],
    hints: Mapping[str, Any],
    context_name: str | None,
    whole: bool,
    payload_type: Any,
) -> PayloadSpec:
    if payload_type is not None:
        return PayloadSpec.of_whole(payload_type)
    if whole:
        return PayloadSpec.of_whole(hints.get(parameters[0].name, Any))
    fields: dict[str, tuple[Any, bool]] = {}
    extra = False
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            raise ConfigError(
                f"{function!r}: the parameter {parameter} can't be filled from the payload's fields"
            )
        if parameter.kind is parameter.VAR_KEYWORD:
            extra = True
        elif parameter.name != context_name:
            fields[parameter.name] = hints.get(parameter.name, Any), parameter.default is parameter.empty
    return PayloadSpec.of_keywords(fields, extra=extra)


def _schema(spec: PayloadSpec, type: str) -> dict[str, Any]:
    try:
        return spec.schema()
    except Exception as error:
        raise ConfigError(f"the payload of type {type!r} has no JSON Schema: {error}") from None


def _add_defaults(schema: dict[str, Any], parameters: list[inspect.Parameter]) -> None:
    """Let the schema say what a parameter is when the payload leaves it out, where JSON can say it."""
    for parameter in parameters:
        field = schema.get("properties", {}).get(parameter.name)
        if isinstance(field, dict) and _is_tellable(parameter):
            field.setdefault("default", parameter.default)


def _is_tellable(parameter: inspect.Parameter) -> bool:
    default = parameter.default
    is_plain = (
        type(default) in (int, bool)
        or (type(default) is float and math.isfinite(default))
        or (type(default) is str and default.encode("utf-8", "replace").decode() == default)
    )
    return is_plain and not is_secret(parameter.name)


def _hints(function: Callable[..., Any], *, strict: bool) -> dict[str, Any]:
    """The annotations, resolved; nothing where they can't be, unless that matters."""
    try:
        return typing.get_type_hints(_annotated(function), include_extras=True)
    except TypeError:  # one that is not written in Python
        return {}
    except Exception as error:
        if not strict:
            return {}
        raise ConfigError(f"{function!r}: an annotation can't be resolved: {error}") from None


def _annotated(function: Any) -> Any:
    """What has the annotations: a function, the one inside a partial, or an object's __call__."""
    function = inspect.unwrap(function)
    if isinstance(function, partial):
        return _annotated(function.func)
    if inspect.isclass(function):
        return function.__init__
    return function if inspect.isroutine(function) else _annotated(type(function).__call__)
