"""Handlers: which functions can be one, how they are called, and what the code says about a type."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Annotated, Any

import pydantic
import pytest
from msgspec import Struct

import holdfast
from holdfast import Context
from holdfast.errors import ConfigError, UnknownType
from holdfast.events import Events, HandlerRegistered, HandlerUnregistered
from holdfast.handlers.handler import Handler
from holdfast.handlers.options import HandlerOptions
from holdfast.handlers.registry import Registry

if TYPE_CHECKING:
    Elsewhere = Any


def send(to: str, subject: str = "Hi") -> str:
    return f"{to}: {subject}"


async def crawl(url: str) -> None: ...


class Postman:
    def deliver(self, to: str) -> None: ...


def keywords(type: str, function: Any, **options: Any) -> Handler:
    return Handler(type, function, whole=False, **options)


def whole(type: str, function: Any, **options: Any) -> Handler:
    return Handler(type, function, whole=True, **options)


def registry(*handlers: Handler) -> Registry:
    made = Registry(Events())
    for handler in handlers:
        made.add(handler)
    return made


# What can be a handler.


def test_a_plain_function_runs_in_a_thread_and_an_async_one_on_the_loop() -> None:
    assert keywords("send", send).executor == "thread"
    assert keywords("crawl", crawl).executor == "async"
    assert keywords("send", functools.partial(send, subject="x")).executor == "thread"
    assert keywords("crawl", functools.partial(crawl)).executor == "async"


@pytest.mark.parametrize("function", [send, crawl])
def test_any_function_at_the_top_of_a_module_may_run_in_a_process(function: Any) -> None:
    assert keywords("a", function, executor="process").executor == "process"


def test_a_new_process_finds_the_function_by_module_and_name() -> None:
    assert keywords("a", send, executor="process").address() == (__name__, "send")


def extra_positional(*args: str) -> None: ...
def positional_only(to: str, /) -> None: ...
def positional_only_context(ctx: Context, /, to: str) -> None: ...
def unresolvable(to: Elsewhere) -> None: ...
def unresolvable_attribute(to: functools.Nope) -> None: ...  # type: ignore[name-defined]
def no_expression(to: "an address") -> None: ...  # type: ignore[valid-type]  # noqa: F722
def generator(to: str) -> Any:
    yield to


async def async_generator(to: str) -> Any:
    yield to


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (extra_positional, r"\*args"),
        (positional_only, "to"),
        (positional_only_context, "ctx"),
        (unresolvable, "can't be resolved: name 'Elsewhere' is not defined"),
        (unresolvable_attribute, "can't be resolved"),
        (no_expression, "can't be resolved"),
        (generator, "generator"),
        (async_generator, "generator"),
        (5, "can't be a handler"),
    ],
)
def test_a_function_that_no_payload_could_call_is_refused(function: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        keywords("a", function)
    assert str(caught.value).isprintable()


def whole_without_parameters() -> None: ...
def whole_of_three(payload: Any, ctx: Any, more: Any) -> None: ...
def whole_with_required_keyword(payload: Any, *, more: int) -> None: ...
def whole_of_keywords(**payload: Any) -> None: ...


@pytest.mark.parametrize(
    "function",
    [whole_without_parameters, whole_of_three, whole_with_required_keyword, whole_of_keywords, generator],
)
def test_a_registered_handler_takes_a_payload_and_perhaps_a_context(function: Any) -> None:
    with pytest.raises(ConfigError):
        whole("a", function)


@pytest.mark.parametrize(
    ("function", "executor", "problem"),
    [
        (send, "greenlet", "allowed: thread, async, process"),
        (send, "async", "is not async"),
        (crawl, "thread", "is async"),
        (lambda to: None, "process", "import it by name"),
        (functools.partial(send), "process", "import it by name"),
        (Postman().deliver, "process", "import it by name"),
    ],
)
def test_an_executor_that_cannot_run_the_function_is_refused(
    function: Any, executor: str, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        keywords("a", function, executor=executor)


def test_a_function_inside_another_cannot_run_in_a_process() -> None:
    def local(to: str) -> None: ...

    with pytest.raises(ConfigError, match="define it at the top level of a module"):
        keywords("a", local, executor="process")


def test_a_type_must_be_a_type() -> None:
    with pytest.raises(ConfigError, match="is not a valid job type"):
        keywords("send email", send)


# How a handler is called.


class Sender:
    def send(self, to: str) -> str:
        return f"to {to}"

    def __call__(self, payload: dict[str, Any]) -> str:
        return f"to {payload['to']}"


def with_context_first(ctx: Context, to: str) -> Any:
    return ctx, to


def with_context_last(to: str, ctx: Context) -> Any:
    return ctx, to


def with_context_of_another_name(to: str, context: Context) -> Any:
    return context, to


def with_untyped_context(to, ctx):
    return ctx, to


def with_keywords(ctx: Context, **rest: str) -> Any:
    return ctx, rest["to"]


def with_optional_context(to: str, about: Context | None = None) -> Any:
    return about, to


def with_annotated_context(to: str, about: Annotated[Context, "what it may do"]) -> Any:
    return about, to


def with_context_by_its_module(to: str, about: holdfast.Context) -> Any:
    return about, to


@pytest.mark.parametrize(
    "function",
    [
        with_context_first,
        with_context_last,
        with_context_of_another_name,
        with_untyped_context,
        with_keywords,
        with_optional_context,
        with_annotated_context,
        with_context_by_its_module,
    ],
)
def test_a_handler_may_take_the_context_by_type_or_as_ctx(function: Any) -> None:
    handler = keywords("a", function)
    bound = handler.spec.bind({"to": "x"})
    assert handler.call(bound, lambda: "the context") == ("the context", "x")


class Painting:
    class Context(Struct):
        """Somebody else's, which has the name of ours."""

        width: int


def with_foreign_context(context: Painting.Context) -> Any:
    return context.width


def with_both(context: Painting.Context, ours: Context, ctx: str) -> Any:
    return context.width, ours, ctx


def test_a_class_that_is_only_called_context_is_part_of_the_payload() -> None:
    handler = keywords("a", with_foreign_context)
    assert handler.call(handler.spec.bind({"context": {"width": 5}}), lambda: "the context") == 5
    assert "context" in handler.schema["properties"]
    both = keywords("b", with_both)
    bound = both.spec.bind({"context": {"width": 5}, "ctx": "text"})
    assert both.call(bound, lambda: "the context") == (5, "the context", "text")


def test_a_second_parameter_that_is_no_context_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match="name the second parameter ctx, or annotate it with Context"):
        whole("a", whole_with_anything_second)


def test_a_payload_type_is_enough_where_annotations_cannot_be_resolved() -> None:
    def handle(payload: Nowhere, ctx: Nobody) -> Any:  # type: ignore[name-defined]  # noqa: F821
        return ctx, payload["to"]

    handler = Handler("a", handle, whole=True, payload_type=dict[str, str])
    assert handler.call(handler.spec.bind({"to": "x"}), lambda: "the context") == ("the context", "x")
    with pytest.raises(ConfigError, match="an annotation can't be resolved"):
        whole("a", handle)


def whole_payload(payload: dict[str, Any]) -> Any:
    return None, payload["to"]


def whole_with_context(payload: dict[str, Any], ctx: Context) -> Any:
    return ctx, payload["to"]


def whole_with_context_of_another_name(payload: Any, about: Context) -> Any:
    return about, payload["to"]


def whole_with_anything_second(payload: Any, c: Any) -> Any:
    return c, payload["to"]


def whole_with_default(payload: Any, retries: int = 3) -> Any:
    return retries, payload["to"]


@pytest.mark.parametrize(
    ("function", "second"),
    [
        (whole_payload, None),
        (whole_with_context, "the context"),
        (whole_with_context_of_another_name, "the context"),
        (whole_with_default, 3),
    ],
)
def test_a_registered_handler_gets_the_payload_and_the_context_if_it_asks(function: Any, second: Any) -> None:
    handler = whole("a", function)
    bound = handler.spec.bind({"to": "x"})
    assert handler.call(bound, lambda: "the context") == (second, "x")


def test_methods_and_callable_objects_may_be_handlers() -> None:
    assert keywords("a", Sender().send).call({"to": "x"}, lambda: None) == "to x"
    assert whole("b", Sender()).call({"to": "x"}, lambda: None) == "to x"


def test_the_context_is_made_only_for_who_asks() -> None:
    made: list[int] = []
    keywords("a", send).call({"to": "x"}, lambda: made.append(1))
    assert made == []


# The registry.


def test_a_type_has_one_handler() -> None:
    found = registry(keywords("a", send))
    with pytest.raises(ConfigError, match="type 'a' already has a handler"):
        found.add(keywords("a", crawl))
    assert found.require("a").function is send


def test_a_lane_is_run_by_the_handler_of_its_base_unless_it_has_its_own() -> None:
    found = registry(keywords("shell", send), keywords("shell:media", crawl))
    assert found.require("shell:other").function is send
    assert found.require("shell:media").function is crawl


def test_an_unknown_type_lists_those_there_are() -> None:
    found = registry(keywords("b", send), keywords("a", crawl))
    assert found.find("c") is None
    with pytest.raises(UnknownType, match="no handler is registered for type 'c'; registered: a, b"):
        found.require("c")


def test_a_removed_handler_is_gone_and_cannot_be_removed_again() -> None:
    found = registry(keywords("a", send))
    found.remove("a")
    assert found.types() == []
    with pytest.raises(UnknownType, match="registered: none"):
        found.remove("a")


def test_every_change_raises_the_generation_so_that_settings_are_read_again() -> None:
    found = registry()
    seen = [found.generation]
    found.add(keywords("a", send))
    seen.append(found.generation)
    found.declare("a", concurrency=3)
    seen.append(found.generation)
    found.remove("a")
    seen.append(found.generation)
    assert seen == sorted(set(seen))


def test_handlers_announce_their_coming_and_going() -> None:
    events, heard = Events(), list[Any]()
    events.subscribe(heard.append)
    found = Registry(events)
    found.add(keywords("a", send))
    found.remove("a")
    assert heard == [HandlerRegistered(type="a", executor="thread"), HandlerUnregistered(type="a")]


def test_what_is_declared_beats_the_decorator_and_a_lane_says_only_its_own() -> None:
    found = registry(keywords("a", send, options={"concurrency": 1, "max_attempts": 5}))
    found.declare("a", concurrency=2)
    found.declare("a:slow", concurrency=3)
    assert found.declared("a") == {"concurrency": 2, "max_attempts": 5}
    assert found.declared("a:slow") == {"concurrency": 3}
    assert found.declared("b") == {}


def test_declaring_again_adds_to_what_was_said() -> None:
    found = registry()
    found.declare("a", concurrency=2)
    found.declare("a", rate_limit=5)
    assert found.declared("a") == {"concurrency": 2, "rate_limit": 5}


def test_a_bad_declaration_is_refused_and_lists_what_is_allowed() -> None:
    with pytest.raises(ConfigError) as caught:
        registry().declare("a", colour="red")
    assert all(option in str(caught.value) for option in HandlerOptions.__annotations__)
    with pytest.raises(ConfigError):
        registry().declare("a", concurrency=0)


def test_the_schema_of_every_handler_can_be_published() -> None:
    for handler in registry(keywords("a", send), keywords("b", crawl), whole("c", whole_payload)).handlers():
        assert handler.spec.schema()["type"] == "object"


class Opaque: ...


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    n: Annotated[Opaque, pydantic.BeforeValidator(lambda value: Opaque())]


def takes_model(payload: Model) -> None: ...


def test_a_handler_whose_payload_has_no_json_schema_is_refused() -> None:
    with pytest.raises(ConfigError, match="the payload of type 'a' has no JSON Schema"):
        whole("a", takes_model)
    with pytest.raises(ConfigError, match="the payload of type 'a' has no JSON Schema"):
        keywords("a", takes_model)
    with pytest.raises(ConfigError, match="the payload of type 'a' has no JSON Schema"):
        whole("a", lambda payload: None, payload_type=Model)


class Order(Struct):
    number: int


class Packer:
    weight: int = 3

    def __call__(self, payload: Order, context: Context) -> None: ...


def pack(payload: Order, context: Context, session: object = None) -> None: ...


@pytest.mark.parametrize(
    "function", [Packer(), functools.partial(pack, session=1)], ids=["object", "partial"]
)
def test_what_an_object_and_a_partial_say_of_their_parameters_holds(function: Any) -> None:
    handler = whole("pack", function)
    assert handler.context_name == "context"
    assert handler.spec.bind({"number": 7}) == Order(7)
    with pytest.raises(holdfast.errors.InvalidPayload):
        handler.spec.bind({"number": "seven"})


def test_a_partial_of_keywords_takes_no_context_from_the_payload() -> None:
    def work(size: int, context: Context) -> None: ...

    handler = keywords("work", functools.partial(work, size=1))
    assert handler.context_name == "context"


class TenantContext(Context):
    tenant = "a"


@pytest.mark.parametrize("make", [keywords, whole])
def test_a_context_of_somebody_else_is_refused_and_not_replaced(make: Any) -> None:
    def work(payload: dict[str, int], ctx: TenantContext) -> None: ...

    with pytest.raises(ConfigError, match=r"handlers receive a holdfast\.Context, not a TenantContext"):
        make("work", work)


@pytest.mark.parametrize(
    "function",
    [
        lambda payload, *, ctx=None: None,
        lambda payload, retries=3, ctx=None: None,
    ],
    ids=["keyword-only", "third"],
)
def test_a_context_where_it_would_never_be_given_is_refused(function: Any) -> None:
    with pytest.raises(ConfigError, match=r"must take \(payload\) or \(payload, ctx\)"):
        whole("work", function)


def test_keywords_called_ctx_are_no_context() -> None:
    def work(**ctx: int) -> None: ...

    assert keywords("work", work).context_name is None
