"""The OpenAPI document and the page that shows it: complete, true, and harmless whatever a type is called."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Annotated, Any, Literal

import httpx
import jsonschema_rs
import pytest
from fastapi import FastAPI
from pydantic import BaseModel, Field
from starlette.routing import BaseRoute

from holdfast import Queue
from holdfast.jobs import install
from holdfast.store.open import store_of
from holdfast.store.records import TypeRecord, WorkerRecord
from holdfast.web import create_app
from tests.surfaces.live import client, live

pytestmark = pytest.mark.slow

HIDDEN = {
    ("GET", "/"),
    ("GET", "/docs"),
    ("GET", "/login"),
    ("POST", "/login"),
    ("POST", "/logout"),
    ("GET", "/openapi.json"),
    ("GET", "/static/{name:path}"),
    ("GET", "/jobs"),
    ("GET", "/jobs/bulk"),
    ("POST", "/jobs/bulk"),
    ("GET", "/jobs/{id}"),
    ("GET", "/jobs/{id}/output"),
    ("POST", "/jobs/{id}/retry"),
    ("POST", "/jobs/{id}/cancel"),
    ("GET", "/jobs/{id}/delete"),
    ("POST", "/jobs/{id}/delete"),
    ("GET", "/cleanup"),
    ("POST", "/cleanup"),
    ("GET", "/enqueue"),
    ("POST", "/enqueue"),
    ("GET", "/controls"),
    ("POST", "/controls/pause"),
    ("POST", "/controls/resume"),
    ("POST", "/controls/setting"),
    ("GET", "/reconcile"),
    ("POST", "/reconcile"),
}
"""What is for people and browsers, and no part of the API."""

LINKED = {
    "/",
    "/jobs",
    "/enqueue",
    "/controls",
    "/reconcile",
    "/docs",
    "/openapi.json",
    "/static/holdfast.css",
    "/static/icon.svg",
    "/static/main.js",
}
SCRIPT = {"type": "module", "src": "/static/main.js"}

REFERENCE = "#/components/schemas/"


class Address(BaseModel):
    street: str
    number: int = 1


class Person(BaseModel):
    name: str
    address: Address
    friends: list[Person] = []


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: Annotated[int, Field(ge=1, le=9)]


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: Annotated[list[str], Field(min_length=1)]


def greet(person: Person, loudness: float = 0.5) -> None: ...
def adopt(pet: Annotated[Cat | Dog, Field(discriminator="kind")], person: Person) -> None: ...
def count(n: int) -> None: ...
def spell(text: str) -> None: ...
def anything(payload: Any) -> None: ...


GREETING = {"person": {"name": "Ada", "address": {"street": "Main St"}}}

FITTING: dict[str, dict[str, Any]] = {
    "greet": GREETING,
    "adopt": {"pet": {"kind": "cat", "lives": 9}, "person": GREETING["person"]},
    "count": {"n": 1},
}
MISFITS: dict[str, list[dict[str, Any]]] = {
    "greet": [{}, {"person": {"name": "Ada"}}, {"person": {"name": "Ada", "address": {"street": 5}}}],
    "adopt": [{"pet": {"kind": "cow"}, "person": GREETING["person"]}],
    "count": [{}, {"n": "1"}, {"n": 1, "m": 2}],
}


@pytest.fixture
def typed(queue: Queue) -> Queue:
    """A queue with handlers of every kind, built-in ones included."""
    install(queue)
    for handler in (greet, adopt, count):
        queue.job(handler)
    queue.register("anything", anything)
    return queue


@pytest.fixture
def web(typed: Queue) -> Iterator[httpx.Client]:
    with live(create_app(typed)) as address, client(address) as made:
        yield made


def get_document(web: httpx.Client) -> dict[str, Any]:
    answer = web.get("/openapi.json")
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def operations(document: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (method.upper(), path): operation
        for path, item in document["paths"].items()
        for method, operation in item.items()
    }


def publish(queue: Queue, *records: TypeRecord) -> None:
    """Types that a worker elsewhere knows, as it tells the database."""
    names = tuple(record.type for record in records)
    worker = WorkerRecord(id="w1", host="here", pid=1, state="running", concurrency=1, types=names)
    store_of(queue).register_worker(worker, records)


# The document and the application are about the same operations.


def test_every_operation_of_the_application_is_in_the_document_and_no_other(typed: Queue) -> None:
    app = create_app(typed)
    with live(app) as address, client(address) as web:
        documented = set(operations(get_document(web)))
    served = {
        (method, getattr(route, "path", ""))
        for route in _routes(app)
        for method in getattr(route, "methods", None) or ()
        if method != "HEAD"
    }
    assert served - HIDDEN == documented
    assert served >= HIDDEN


def _routes(app: FastAPI) -> Iterator[BaseRoute]:
    for route in app.routes:
        included = getattr(route, "original_router", None)  # as newer releases of FastAPI keep a router
        yield from [route] if included is None else included.routes


def test_every_operation_of_the_document_is_answered(web: httpx.Client) -> None:
    for (method, path), operation in operations(get_document(web)).items():
        place = path.replace("{id}", "nobody").replace("{key}", "max_attempts")
        answer = web.request(method, place, params={"once": "true"} if path == "/api/events" else None)
        assert str(answer.status_code) in operation["responses"], (method, path, answer.text)
        if answer.status_code >= 400 and path != "/readyz":
            assert answer.json()["error"]["message"] != "there is nothing at this path"


def test_every_operation_says_what_it_does_and_how_it_is_named(web: httpx.Client) -> None:
    found = operations(get_document(web))
    for operation in found.values():
        assert operation["summary"]
        assert operation["description"]
        assert len(operation["tags"]) == 1
        for parameter in operation.get("parameters", []):
            assert parameter.get("description"), (operation["operationId"], parameter["name"])
    ids = [operation["operationId"] for operation in found.values()]
    assert len(set(ids)) == len(ids)


def test_every_operation_names_the_errors_that_any_request_may_get(web: httpx.Client) -> None:
    for (method, path), operation in operations(get_document(web)).items():
        wanted = {"400", "401", "403", "503"}
        if "requestBody" in operation:
            wanted |= {"408", "413"}
        if "{id}" in path:
            wanted.add("404")
        assert wanted <= operation["responses"].keys(), (method, path)
        assert "422" not in operation["responses"]


def test_every_reference_leads_somewhere_and_every_component_has_a_lawful_name(web: httpx.Client) -> None:
    check_references(get_document(web))


def check_references(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    dangling = {text for text in _texts(document) if text.startswith("#/")} - {
        REFERENCE + name for name in schemas
    }
    assert dangling == set()
    for name in schemas:
        assert re.fullmatch(r"[A-Za-z0-9._-]+", name), name


def _texts(part: Any) -> Iterator[str]:
    """The values in a document that are references, or look like them."""
    if isinstance(part, dict):
        for value in part.values():
            yield from _texts(value)
    elif isinstance(part, list):
        for item in part:
            yield from _texts(item)
    elif isinstance(part, str):
        yield part


def test_the_document_says_who_wants_a_token(queue: Queue) -> None:
    with live(create_app(queue, "t" * 20)) as address:
        headers = {"Authorization": "Bearer " + "t" * 20}
        with client(address, headers=headers) as web:
            document = get_document(web)
    assert document["components"]["securitySchemes"] == {"token": {"type": "http", "scheme": "bearer"}}
    assert document["security"] == [{"token": []}]
    open_ones = [key for key, operation in operations(document).items() if operation.get("security") == []]
    assert sorted(open_ones) == [("GET", "/healthz"), ("GET", "/readyz")]


def test_without_a_token_the_document_asks_for_none(web: httpx.Client) -> None:
    document = get_document(web)
    assert "security" not in document
    assert "securitySchemes" not in document["components"]


def test_the_document_of_a_mounted_application_says_where_it_is(typed: Queue) -> None:
    outer = FastAPI()
    inner = create_app(typed)
    outer.state.backend = inner.state.backend
    outer.mount("/the/queue", inner)
    try:
        with live(outer) as address, client(address) as web:
            document = web.get("/the/queue/openapi.json").json()
            page = Page(web.get("/the/queue/docs").text)
            assert [server["url"] for server in document["servers"]] == ["/the/queue"]
            assert web.get("/the/queue/healthz").json() == {"status": "ok"}
            urls = [word for command in page.commands for word in command if word.startswith("http")]
            assert len(urls) == len(page.commands)
            assert all(url.startswith(f"{address}/the/queue/") for url in urls)
            assert "GET /the/queue/api/tasks" in page.text
            assert "GET /api/tasks" not in page.text
            for path in page.addresses:
                assert path.startswith("#") or web.get(path).status_code == 200, path
    finally:
        inner.state.backend.close()
    assert {path for path in page.addresses if path.startswith("/")} == {
        f"/the/queue{path}" for path in LINKED
    }


# Examples.


def test_every_body_has_an_example_that_the_server_takes(web: httpx.Client, typed: Queue) -> None:
    typed.enqueue("count", {"n": 1}, id="job1")
    typed.cancel("job1")
    document = get_document(web)
    with_body = {key: op for key, op in operations(document).items() if "requestBody" in op}
    assert len(with_body) == 9
    for (method, path), operation in with_body.items():
        [(kind, content)] = operation["requestBody"]["content"].items()
        assert kind == "application/json"
        examples = examples_of(content, document)
        assert examples, (method, path)
        for example in examples:
            place = path.replace("{id}", "job1").replace("{key}", "lease_seconds")
            answer = web.request(method, place, json=example)
            is_fine = answer.status_code < 300 or answer.json()["error"]["code"] == "count_differs"
            assert is_fine, (method, path, example, answer.text)
            if path.endswith("/retry"):
                typed.cancel("job1")


def examples_of(content: dict[str, Any], document: dict[str, Any]) -> list[Any]:
    """The examples of a media type, or else of its schema."""
    if "example" in content:
        return [content["example"]]
    if "examples" in content:
        return [example["value"] for example in content["examples"].values()]
    found: list[Any] = []
    for part in [content["schema"], *content["schema"].get("anyOf", [])]:
        named = document["components"]["schemas"].get(part.get("$ref", "").removeprefix(REFERENCE), part)
        found += named.get("examples", [])
    return found


def test_there_is_an_example_for_every_type_that_may_be_enqueued(web: httpx.Client) -> None:
    content = operations(get_document(web))["POST", "/api/tasks"]["requestBody"]["content"]
    examples = content["application/json"]["examples"]
    assert sorted(examples) == ["adopt", "anything", "count", "greet"]
    for name, example in examples.items():
        assert example["value"]["type"] == name


# The payload of each type.


def payload_schema(document: dict[str, Any], type: str) -> dict[str, Any]:
    """The schema of a type's payload, found as a reader finds it: by the variant that names the type."""
    content = operations(document)["POST", "/api/tasks"]["requestBody"]["content"]["application/json"]
    schemas = document["components"]["schemas"]
    variants = [schemas[part["$ref"].removeprefix(REFERENCE)] for part in content["schema"]["anyOf"]]
    [variant] = [part for part in variants if part["properties"]["type"].get("const") == type]
    return {**variant["properties"]["payload"], "components": document["components"]}


def fits(document: dict[str, Any], type: str, payload: dict[str, Any]) -> bool:
    return jsonschema_rs.validator_for(payload_schema(document, type)).is_valid(payload)


def test_the_schema_of_each_type_takes_what_its_handler_takes(web: httpx.Client) -> None:
    document = get_document(web)
    for type, payload in FITTING.items():
        assert fits(document, type, payload), type
        assert web.post("/api/tasks", json={"type": type, "payload": payload}).status_code == 201
    for type, misfits in MISFITS.items():
        for payload in misfits:
            assert not fits(document, type, payload), (type, payload)
            assert web.post("/api/tasks", json={"type": type, "payload": payload}).status_code == 400


def test_a_type_without_annotations_takes_any_payload(web: httpx.Client) -> None:
    assert fits(get_document(web), "anything", {"a": [1, None]})


def test_a_type_that_is_not_known_is_taken_too(web: httpx.Client) -> None:
    content = operations(get_document(web))["POST", "/api/tasks"]["requestBody"]["content"]
    assert {"$ref": REFERENCE + "NewTask"} in content["application/json"]["schema"]["anyOf"]


def test_built_in_types_are_in_the_document_only_where_they_are_let_in(typed: Queue) -> None:
    for allowed, is_there in (((), False), (("shell",), True)):
        with live(create_app(typed, allow_types=allowed)) as address, client(address) as web:
            examples = operations(get_document(web))["POST", "/api/tasks"]["requestBody"]["content"]
            assert ("shell" in examples["application/json"]["examples"]) is is_there


def test_types_with_similar_names_keep_schemas_of_their_own(queue: Queue) -> None:
    names = ["a", "A", "a:b", "a.b", "a-b", "a_b", "a:b:c", "a.b.c", "a.b:c", ":", ".", "-", "_", "a.", "a:"]
    records = [
        TypeRecord(type=name, executor="thread", schema=_takes(f"f{place}", "integer"))
        for place, name in enumerate(names)
    ]
    publish(queue, *records)
    with live(create_app(queue)) as address, client(address) as web:
        document = get_document(web)
    check_references(document)
    for place, name in enumerate(names):
        taken = [other for other in range(len(names)) if fits(document, name, {f"f{other}": 1})]
        assert taken == [place], name


def _takes(name: str, kind: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: {"$ref": "#/$defs/It"}},
        "required": [name],
        "additionalProperties": False,
        "$defs": {"It": {"type": kind}},
    }


def test_a_type_named_like_another_ones_definition_keeps_its_own_schema(queue: Queue) -> None:
    publish(
        queue,
        TypeRecord(type="a", executor="thread", schema=_takes("n", "integer")),
        TypeRecord(type="a.It", executor="thread", schema=_takes("text", "string")),
        TypeRecord(type="It", executor="thread", schema=_takes("flag", "boolean")),
    )
    with live(create_app(queue)) as address, client(address) as web:
        document = get_document(web)
    check_references(document)
    assert fits(document, "a", {"n": 1})
    assert not fits(document, "a", {"n": "1"})
    assert fits(document, "a.It", {"text": "x"})
    assert fits(document, "It", {"flag": True})


def test_definitions_with_odd_names_are_found(queue: Queue) -> None:
    names = ["a/b", "a~1b", "a~0b", "List[int]", "List_int_", "<b>", "é", "a b", "", "payload.x"]
    schema = {
        "type": "object",
        "properties": {
            f"f{place}": {"$ref": f"#/$defs/{_escaped(name)}"} for place, name in enumerate(names)
        },
        "$defs": {name: {"const": place} for place, name in enumerate(names)},
    }
    publish(queue, TypeRecord(type="x", executor="thread", schema=schema))
    with live(create_app(queue)) as address, client(address) as web:
        document = get_document(web)
        assert web.get("/docs").status_code == 200
    check_references(document)
    for place, name in enumerate(names):
        assert fits(document, "x", {f"f{place}": place}), name
        assert not fits(document, "x", {f"f{place}": place + 1}), name


def _escaped(name: str) -> str:
    """A name as it stands in a reference."""
    return name.replace("~", "~0").replace("/", "~1")


def test_values_that_look_like_references_are_left_alone(queue: Queue) -> None:
    schema = {
        "type": "object",
        "required": ["a", "b", "c"],
        "properties": {
            "a": {"const": "#"},
            "b": {"enum": ["#/$defs/It"]},
            "c": {"$ref": "#/$defs/It", "default": "#", "examples": ["#/$defs/It"]},
        },
        "$defs": {"It": {"type": "string"}},
    }
    publish(queue, TypeRecord(type="x", executor="thread", schema=schema))
    with live(create_app(queue)) as address, client(address) as web:
        document = get_document(web)
    assert fits(document, "x", {"a": "#", "b": "#/$defs/It", "c": "c"})
    content = operations(document)["POST", "/api/tasks"]["requestBody"]["content"]["application/json"]
    assert content["examples"]["x"]["value"]["payload"] == {"a": "#", "b": "#/$defs/It", "c": "#"}


def test_a_payload_with_fields_named_like_keywords_keeps_them(queue: Queue) -> None:
    names = ["$defs", "$ref", "properties", "type", "const", "default", "examples", "anyOf", "required"]
    schema = {
        "type": "object",
        "properties": {name: {"type": "integer"} for name in names},
        "required": names,
        "additionalProperties": False,
    }
    publish(queue, TypeRecord(type="x", executor="thread", schema=schema))
    with live(create_app(queue)) as address, client(address) as web:
        document = get_document(web)
        assert web.get("/docs").status_code == 200
    assert fits(document, "x", dict.fromkeys(names, 1))
    assert not fits(document, "x", dict.fromkeys(names, "1"))


def with_infinity(seconds: float = float("inf")) -> None: ...
def with_nan(ratio: float = float("nan")) -> None: ...
def with_instant(when: datetime = datetime(2030, 1, 2, tzinfo=UTC)) -> None: ...
def with_surrogate(text: str = "\ud800") -> None: ...
def with_huge(n: int = 10**400) -> None: ...
def with_model(address: Address = Address(street="Main St")) -> None: ...  # noqa: B008
def with_bytes(data: bytes = b"\xff") -> None: ...


def test_a_default_that_json_has_no_word_for_spoils_nothing(queue: Queue) -> None:
    handlers: list[Any] = [
        with_infinity,
        with_nan,
        with_instant,
        with_surrogate,
        with_huge,
        with_model,
        with_bytes,
    ]
    for handler in handlers:
        queue.job(handler)
    with live(create_app(queue)) as address, client(address) as web:
        document = get_document(web)
        types = [entry["type"] for entry in web.get("/api/types").json()]
        assert web.get("/docs").status_code == 200
    assert sorted(types) == sorted(handler.__name__ for handler in handlers)
    for type in types:
        assert fits(document, type, {}), type


ODD_SCHEMAS: list[dict[str, Any]] = [
    {},
    {"type": "object", "$ref": "#/$defs/gone"},
    {"$ref": "#/$defs/It", "$defs": {"It": {"$ref": "#/$defs/It"}}},
    {"type": ["object", "null"], "properties": {"a": {"type": []}, "b": {}, "c": True}},
    {"type": "object", "required": ["a"], "properties": {"a": {"enum": []}}},
    {"anyOf": [{}, {"type": "object"}], "examples": []},
    {"type": "object", "required": ["a"], "properties": {"a": {"anyOf": [True, {"type": "null"}]}}},
    {"type": "object", "$defs": {}},
    {"type": "object", "required": ["a", "b"], "properties": {"a": {"items": False}}},
    {"type": "object", "properties": {"a": {"$ref": "https://example.com/schema.json"}}, "required": ["a"]},
]


def test_schemas_from_odd_workers_spoil_nothing(queue: Queue) -> None:
    records = [
        TypeRecord(type=f"odd{place}", executor="thread", schema=schema)
        for place, schema in enumerate(ODD_SCHEMAS)
    ]
    publish(queue, *records)
    queue.job(count)
    with live(create_app(queue)) as address, client(address) as web:
        document = get_document(web)
        page = Page(web.get("/docs").text)
    assert fits(document, "count", {"n": 1})
    assert "POST /api/tasks" in page.headings
    for record in records:
        assert f"Body: {record.type}" in page.text


# The page.

VOID = {"meta", "link", "input", "br", "hr", "img"}
BLOCKS = {
    "p",
    "ul",
    "ol",
    "dl",
    "table",
    "pre",
    "h1",
    "h2",
    "h3",
    "h4",
    "div",
    "section",
    "article",
    "details",
}

CELLS = {"td", "th", "dt", "dd", "li"}


class Page(HTMLParser):
    """An HTML page, read strictly: every element is closed where it must be."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.headings: list[str] = []
        self.blocks: list[str] = []
        self.title = ""
        self.text = ""
        self._open: list[str] = []
        assert text.startswith("<!doctype html>")
        self.feed(text)
        self.close()
        assert self.rawdata == ""
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), (tag, names)
        self.elements.append((tag, dict(attrs)))
        if tag in BLOCKS:
            assert "p" not in self._open, f"<{tag}> inside a <p>"
        if tag not in VOID:
            self._open.append(tag)
        if tag == "h3":
            self.headings.append("")
        elif tag == "pre":
            self.blocks.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag, f"</{tag}> closes another element"
        if tag in CELLS:
            self.text += " "  # two cells are two words

    def handle_data(self, data: str) -> None:
        self.text += data
        if "h3" in self._open:
            self.headings[-1] += data
        if "pre" in self._open:
            self.blocks[-1] += data
        if "title" in self._open:
            self.title += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    @property
    def examples(self) -> list[Any]:
        """The bodies and answers that are shown."""
        return [json.loads(text) for text in self.blocks if not text.startswith("curl ")]

    @property
    def commands(self) -> list[list[str]]:
        """The command lines that are shown, as a shell reads them."""
        return [shlex.split(text) for text in self.blocks if text.startswith("curl ")]

    def values(self, name: str) -> list[str]:
        return [attrs[name] or "" for _, attrs in self.elements if name in attrs]

    @property
    def addresses(self) -> list[str]:
        """Whatever a browser would follow or load."""
        names = ("href", "src", "srcset", "action", "formaction", "data", "poster", "background", "cite")
        return [value for name in names for value in self.values(name)]


def test_the_page_shows_every_operation_with_its_parameters_body_and_answers(web: httpx.Client) -> None:
    document = get_document(web)
    page = Page(web.get("/docs").text)
    found = operations(document)
    assert sorted(page.headings) == sorted(f"{method} {path}" for method, path in found)
    anchors = set(page.values("id"))
    for operation in found.values():
        assert operation["operationId"] in anchors
        assert operation["summary"] in page.text
        for parameter in operation.get("parameters", []):
            assert parameter["name"] in page.text
            assert parameter.get("description", "") in page.text
        for status, response in operation["responses"].items():
            assert status in page.text
            assert response["description"] in page.text
    for type in ("adopt", "anything", "count", "greet"):
        assert f"Body: {type}" in page.text


def test_the_examples_on_the_page_are_json_and_its_tasks_are_taken(web: httpx.Client) -> None:
    examples = Page(web.get("/docs").text).examples
    assert len(examples) > 20
    tasks = [example for example in examples if isinstance(example, dict) and "payload" in example]
    bodies = [task for task in tasks if task.keys() <= {"type", "payload", "options"} and "type" in task]
    assert {body["type"] for body in bodies} >= {"adopt", "anything", "count", "greet"}
    for body in bodies:
        answer = web.post("/api/tasks", json=body)
        assert answer.status_code == 201, (body, answer.text)


def test_every_operation_has_a_command_line_that_asks_for_it(web: httpx.Client) -> None:
    page = Page(web.get("/docs").text)
    found = operations(get_document(web))
    assert len(page.commands) == len(found)
    asked = set()
    for command in page.commands:
        method, url, body = _asked_by(command)
        assert url.startswith(str(web.base_url).rstrip("/") + "/"), command
        assert not re.search(r"[{}\[\] ]", url), (
            command
        )  # which curl or the shell would take for something else
        if "/api/events" in url:
            asked.add((method, "/api/events"))
            continue  # it would not end
        answer = web.request(method, url, json=body) if body is not None else web.request(method, url)
        path = _template_of(httpx.URL(url).path, {path for _, path in found})
        asked.add((method, path))
        assert answer.status_code not in (400, 405), (command, answer.text)
        assert str(answer.status_code) in found[method, path]["responses"], (command, answer.text)
    assert asked == set(found)


def _asked_by(command: list[str]) -> tuple[str, str, Any]:
    """The method, address and body of a request that curl would make."""
    words = iter(command[1:])
    method, url, body = "", "", None
    for word in words:
        if word == "-X":
            method = next(words)
        elif word == "-H":
            next(words)
        elif word == "--json":
            body = json.loads(next(words))
        else:
            url = word
    return method or ("GET" if body is None else "POST"), url, body


def _template_of(path: str, templates: set[str]) -> str:
    """The path of the document that an address is of; a name goes before a placeholder."""
    if path in templates:
        return path
    [fitting] = [t for t in templates if "{" in t and re.fullmatch(re.sub(r"{\w+}", "[^/]+", t), path)]
    return fitting


def test_the_page_names_every_field_of_every_body(web: httpx.Client) -> None:
    document = get_document(web)
    words = set(re.findall(r"\w+", Page(web.get("/docs").text).text))
    for operation in operations(document).values():
        body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        assert fields_of(body.get("schema", {}), document) <= words, operation["operationId"]


def fields_of(schema: dict[str, Any], document: dict[str, Any]) -> set[str]:
    """The names of a body's fields, those of the parts that it refers to included."""
    found: set[str] = set()
    seen: set[str] = set()

    def visit(part: Any) -> None:
        if isinstance(part, list):
            for item in part:
                visit(item)
        if not isinstance(part, dict):
            return
        found.update(part.get("properties", {}))
        reference = part.get("$ref")
        if reference is not None and reference not in seen:
            seen.add(reference)
            visit(document["components"]["schemas"][reference.removeprefix(REFERENCE)])
        for name, value in part.items():
            visit(list(value.values()) if name == "properties" else value)

    visit(schema)
    return found


def test_summaries_end_in_one_mark(web: httpx.Client) -> None:
    assert re.findall(r"[?!.:]\.(?= |$)", Page(web.get("/docs").text).text, re.MULTILINE) == []


def test_the_page_shows_no_markup_of_another_kind(web: httpx.Client) -> None:
    page = Page(web.get("/docs").text)
    assert re.findall(r"`|\*\*|\]\(|<[a-z/]", page.text) == []


def test_the_page_is_whole_html(web: httpx.Client) -> None:
    answer = web.get("/docs")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    page = Page(answer.text)
    tags = Counter(tag for tag, _ in page.elements)
    assert all(tags[tag] == 1 for tag in ("html", "head", "title", "body", "main", "h1")), tags
    assert page.title == "API · Holdfast"
    assert ("html", {"lang": "en"}) in page.elements
    assert ("meta", {"charset": "utf-8"}) in page.elements
    assert "width=device-width, initial-scale=1" in page.values("content")
    ids = page.values("id")
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[\w-]+", id) for id in ids)
    assert all(scope == "col" for scope in page.values("scope"))
    assert tags["th"] == len(page.values("scope"))


def test_the_page_loads_nothing_from_another_host_and_every_link_leads_somewhere(web: httpx.Client) -> None:
    answer = web.get("/docs")
    page = Page(answer.text)
    ids = set(page.values("id"))
    assert {address for address in page.addresses if not address.startswith("#")} == LINKED
    for address in page.addresses:
        if address.startswith("#"):
            assert address[1:] in ids
        else:
            assert web.get(address).status_code == 200
    for path in ("/static/holdfast.css", "/static/icon.svg"):
        text = web.get(path).text.replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert not re.search(r"//|@import|url\(|<script|href", text), path
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_the_page_needs_no_script_and_no_style_of_its_own(web: httpx.Client) -> None:
    page = Page(web.get("/docs").text)
    assert not [tag for tag, _ in page.elements if tag in ("style", "iframe", "noscript", "button")]
    assert [attrs for tag, attrs in page.elements if tag == "script"] == [SCRIPT]
    names = {name for _, attrs in page.elements for name in attrs}
    assert not [name for name in names if name.startswith("on") or name == "style"]


def test_the_home_page_leads_to_the_page(web: httpx.Client) -> None:
    assert "/docs" in Page(web.get("/").text).addresses
    assert Page(web.get("/docs").text).title == "API · Holdfast"


HOSTILE = "</pre></h4><script>alert(1)</script><img src=x onerror=alert(2)>'\"&amp;{{ 7*7 }}\u202e"


def test_hostile_names_and_schemas_are_shown_and_not_obeyed(queue: Queue) -> None:
    schema = {
        "type": "object",
        "title": HOSTILE,
        "description": HOSTILE,
        "required": [HOSTILE, "b", "c", "d"],
        "properties": {
            HOSTILE: {"type": "string", "default": HOSTILE},
            "b": {"enum": [HOSTILE]},
            "c": {"examples": [HOSTILE]},
            "d": {"$ref": "#/$defs/It"},
        },
        "$defs": {"It": {"const": {HOSTILE: [HOSTILE]}}},
    }
    # No handler can have such a name, but whoever can write to the database can write this.
    publish(queue, TypeRecord(type=HOSTILE, executor=HOSTILE, schema=schema))
    with live(create_app(queue)) as address, client(address) as web:
        answer = web.get("/docs")
        assert get_document(web)
    assert answer.status_code == 200
    page = Page(answer.text)
    assert f"Body: {HOSTILE}" in page.text
    assert [attrs for tag, attrs in page.elements if tag == "script"] == [SCRIPT]
    assert [attrs["src"] for tag, attrs in page.elements if tag == "img"] == ["/static/icon.svg"]
    bodies = [example for example in page.examples if isinstance(example, dict) and "payload" in example]
    assert HOSTILE in [body["payload"].get("b") for body in bodies]
    assert all(command[0] == "curl" and len(command) <= 7 for command in page.commands)
    assert page.text.count("{{ 7*7 }}") >= 4


# The login.


def test_the_login_is_whole_html_that_needs_no_script(queue: Queue) -> None:
    with live(create_app(queue, "t" * 20)) as address, client(address) as web:
        target = "/docs?a='\"><script>alert(1)</script>"
        for answer in (
            web.get("/login", params={"next": target}),
            web.post("/login", data={"token": "wrong", "next": target}),
        ):
            page = Page(answer.text)
            assert page.title == "Log in · Holdfast"
            assert not [tag for tag, _ in page.elements if tag == "script"]
            assert [attrs["value"] for _, attrs in page.elements if attrs.get("name") == "next"] == [target]
            assert set(page.addresses) == {"/login", "/static/holdfast.css", "/static/icon.svg"}
            labels = page.values("for")
            assert labels == ["token"]
            described = page.values("aria-describedby")
            assert set(described) <= set(page.values("id"))
        assert answer.status_code == 401
        assert "Wrong token." in page.text
        for path in ("/static/holdfast.css", "/static/icon.svg"):
            assert web.get(path).status_code == 200  # without a token, too
