"""A page of the dashboard as a test reads it: elements, links, forms, tables, and what is wrong with it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx

VOID = frozenset({"br", "hr", "img", "input", "link", "meta"})
_INLINE = frozenset({"a", "bdi", "code", "small", "span", "strong", "summary", "time"})
"""What does not stand apart from the text around it."""

_FIELDS = frozenset({"input", "select", "textarea"})
_REFERENCES = (
    "for",
    "aria-describedby",
    "aria-labelledby",
    "aria-controls",
    "form",
    "list",
    "data-copy-from",
)
_LOCAL_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(?::\d\d(?:\.\d{1,3})?)?")


class Element:
    """An element and what is inside it."""

    def __init__(self, tag: str, attributes: dict[str, str], parent: Element | None) -> None:
        self.tag = tag
        self.attributes = attributes
        self.parent = parent
        self.children: list[Element | str] = []

    def __repr__(self) -> str:
        return f"<{self.tag} {self.attributes}>"

    def __getitem__(self, name: str) -> str:
        return self.attributes[name]

    def get(self, name: str) -> str | None:
        return self.attributes.get(name)

    @property
    def classes(self) -> set[str]:
        return set(self.attributes.get("class", "").split())

    @property
    def raw(self) -> str:
        """All its text as it stands."""
        return "".join(child if isinstance(child, str) else child.raw for child in self.children)

    @property
    def text(self) -> str:
        """All its text, with single spaces."""
        return " ".join(self._spaced().split())

    def _spaced(self) -> str:
        inner = "".join(child if isinstance(child, str) else child._spaced() for child in self.children)
        return inner if self.tag in _INLINE else f" {inner} "

    def descendants(self) -> Iterator[Element]:
        for child in self.children:
            if isinstance(child, Element):
                yield child
                yield from child.descendants()

    def all(self, tag: str | None = None, cls: str | None = None, **attributes: str) -> list[Element]:
        """What is inside it of a tag, with a class and with these attributes (`type_` for type)."""
        wanted = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
        return [
            element
            for element in self.descendants()
            if (tag is None or element.tag == tag)
            and (cls is None or cls in element.classes)
            and wanted.items() <= element.attributes.items()
        ]

    def one(self, tag: str | None = None, cls: str | None = None, **attributes: str) -> Element:
        """The only such element."""
        found = self.all(tag, cls, **attributes)
        assert len(found) == 1, f"{len(found)} x {tag} {cls} {attributes} in {self!r}: {self.text[:500]}"
        return found[0]

    def has(self, tag: str | None = None, cls: str | None = None, **attributes: str) -> bool:
        return bool(self.all(tag, cls, **attributes))

    def pairs(self) -> dict[str, str]:
        """The terms of the lists of definitions inside it, with what is said of each."""
        names, values = self.all("dt"), self.all("dd")
        assert len(names) == len(values)
        return {name.text: value.text for name, value in zip(names, values, strict=True)}

    def rows(self) -> list[list[str]]:
        """The rows of the one table inside it, without its head."""
        return [
            [cell.text for cell in row.children if isinstance(cell, Element)]
            for row in self.one("tbody").all("tr")
        ]

    def inside(self, tag: str) -> Element | None:
        """The nearest element of a tag around it."""
        around = self.parent
        while around is not None and around.tag != tag:
            around = around.parent
        return around


class Form:
    """A form, with what a browser would send of it as it stands."""

    def __init__(self, page: Page, element: Element) -> None:
        self.element = element
        self.action = element.get("action") or ""
        self.method = element.get("method") or "get"
        own = element.get("id")
        belongs = [field for field in element.descendants() if field.get("form") in (None, own)]
        if own is not None:
            belongs += [field for field in page.root.all(form=own) if field not in belongs]
        self.elements = belongs
        self.buttons = [field for field in belongs if field.tag == "button" and field.get("type") != "button"]

    @property
    def fields(self) -> list[tuple[str, str]]:
        return [pair for field in self.elements if field.tag in _FIELDS for pair in _sent(field)]

    def value(self, name: str) -> str:
        """What a field says, which must be there once."""
        [value] = [value for field, value in self.fields if field == name]
        return value

    def button(self, text: str) -> Element:
        [found] = [
            button for button in self.buttons if button.text == text or button.get("aria-label") == text
        ]
        return found


def _sent(field: Element) -> list[tuple[str, str]]:
    name = field.get("name")
    if name is None or "disabled" in field.attributes:
        return []
    if field.tag == "select":
        options = field.all("option")
        chosen = [option for option in options if "selected" in option.attributes] or options[:1]
        return [(name, option.attributes.get("value", option.text)) for option in chosen]
    if field.tag == "textarea":
        return [(name, field.raw)]
    if field.get("type") in ("checkbox", "radio"):
        return [(name, field.attributes.get("value", "on"))] if "checked" in field.attributes else []
    return [(name, field.attributes.get("value", ""))]


class Page:
    """A whole page."""

    def __init__(self, text: str, address: str = "/") -> None:
        self.source = text
        self.address = address
        self.root = Element("document", {}, None)
        self._reader = _Reader(self.root)
        self._reader.feed(text)
        self._reader.close()

    @property
    def main(self) -> Element:
        return self.root.one("main")

    @property
    def title(self) -> str:
        return self.root.one("head").one("title").text

    @property
    def heading(self) -> str:
        return self.root.one("h1").text

    @property
    def notice(self) -> str:
        return self.section("notice").text

    @property
    def alerts(self) -> list[str]:
        return [element.text for element in self.root.all(role="alert")]

    def section(self, id: str) -> Element:
        return self.root.one(None, None, id=id)

    def has(self, id: str) -> bool:
        return self.root.has(None, None, id=id)

    @property
    def links(self) -> list[str]:
        return [link["href"] for link in self.root.all("a")]

    def link(self, text: str) -> str:
        """Where the one link with this text, or this name for screen readers, leads."""
        found = {a["href"] for a in self.root.all("a") if text in (a.text, a.get("aria-label"))}
        assert len(found) == 1, (text, [a.text for a in self.root.all("a")])
        return found.pop()

    @property
    def forms(self) -> list[Form]:
        return [Form(self, form) for form in self.root.all("form")]

    def form(self, action: str, where: Callable[[Form], bool] = lambda form: True) -> Form:
        """The one form that goes to an address."""
        found = [form for form in self.forms if form.action == action and where(form)]
        assert len(found) == 1, (action, [form.action for form in self.forms])
        return found[0]

    def problems(self) -> list[str]:
        """What is wrong with its structure."""
        return [*self._reader.problems, *self._double_ids(), *self._lost_references(), *self._nameless()]

    def _double_ids(self) -> Iterator[str]:
        ids = Counter(element["id"] for element in self.root.descendants() if "id" in element.attributes)
        yield from (f"id {id} stands {count} times" for id, count in ids.items() if count > 1)

    def _lost_references(self) -> Iterator[str]:
        ids = {element["id"] for element in self.root.descendants() if "id" in element.attributes}
        for element in self.root.descendants():
            for name in _REFERENCES:
                for wanted in element.attributes.get(name, "").split():
                    if wanted not in ids:
                        yield f"{element!r}: there is no {wanted}"
            if (element.get("href") or "").startswith("#") and element["href"][1:] not in ids:
                yield f"{element!r} leads nowhere"

    def _nameless(self) -> Iterator[str]:
        labelled = {label["for"] for label in self.root.all("label") if "for" in label.attributes}
        for element in self.root.descendants():
            has_name = (
                "aria-label" in element.attributes
                or element.get("id") in labelled
                or element.inside("label") is not None
            )
            if element.tag in _FIELDS and element.get("type") != "hidden" and not has_name:
                yield f"{element!r} has no label"
            if element.tag in ("a", "button", "th") and not element.text and not _is_named(element):
                yield f"{element!r} has no name"
            if element.tag == "a" and not element.get("href"):
                yield f"{element!r} has no address"
            if element.tag == "form" and element.inside("form") is not None:
                yield f"{element!r} is inside a form"
            given = element.get("value")
            if element.get("type") == "datetime-local" and given and not _LOCAL_INSTANT.fullmatch(given):
                yield f"{element!r}: a browser drops the value {given!r}"


def _is_named(element: Element) -> bool:
    return "aria-label" in element.attributes or any(
        "aria-label" in inner.attributes for inner in element.descendants()
    )


class _Reader(HTMLParser):
    def __init__(self, root: Element) -> None:
        super().__init__(convert_charrefs=True)
        self._open = root
        self.problems: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        names = Counter(name for name, _ in attributes)
        self.problems += [f"<{tag}> has {name} twice" for name, count in names.items() if count > 1]
        made = Element(tag, {name: value or "" for name, value in attributes}, self._open)
        self._open.children.append(made)
        if tag not in VOID:
            self._open = made

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._open.tag != tag:
            self.problems.append(f"</{tag}> closes <{self._open.tag}>")
            if all(around.tag != tag for around in _around(self._open)):
                return
            while self._open.tag != tag:
                assert self._open.parent is not None
                self._open = self._open.parent
        assert self._open.parent is not None
        self._open = self._open.parent

    def handle_data(self, data: str) -> None:
        if self._open.tag in ("pre", "textarea") and not self._open.children:
            data = data.removeprefix("\n")  # as browsers do
        self._open.children.append(data)

    def close(self) -> None:
        super().close()
        self.problems += [f"<{around.tag}> is not closed" for around in _around(self._open) if around.parent]


def _around(element: Element | None) -> Iterator[Element]:
    while element is not None:
        yield element
        element = element.parent


class Reader:
    """Somebody at a browser without scripts: opens pages, follows links and sends forms.

    Every page that is shown must be in order.
    """

    def __init__(self, client: httpx.Client) -> None:
        self.client = client
        self.client.headers["accept"] = "text/html"

    def open(self, address: str, status: int = 200) -> Page:
        return self.read(self.client.get(address), status)

    def read(self, answer: httpx.Response, status: int = 200) -> Page:
        """The page that an answer is."""
        assert answer.status_code == status, (answer.status_code, answer.text)
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.headers["cache-control"] == "no-store"
        page = Page(answer.text, str(answer.url.raw_path, "ascii"))
        assert page.problems() == [], page.address
        return page

    def send(
        self, form: Form, button: Element | None = None, changes: dict[str, str | None] | None = None
    ) -> httpx.Response:
        """Press a form's button, with fields changed or left out (None)."""
        changed = changes or {}
        fields = [(name, value) for name, value in form.fields if name not in changed]
        fields += [(name, value) for name, value in changed.items() if value is not None]
        action, method = form.action, form.method
        if button is not None:
            action = button.attributes.get("formaction", action)
            if "name" in button.attributes:
                fields.append((button["name"], button.attributes.get("value", "")))
        if method == "get":
            return self.client.get(f"{action}?{urlencode(fields)}")
        return self.client.request(
            method,
            action,
            content=urlencode(fields),
            headers={"content-type": "application/x-www-form-urlencoded"},
        )

    def submit(
        self, form: Form, button: Element | None = None, changes: dict[str, str | None] | None = None
    ) -> Page:
        """The same, and follow where it leads, which must be a page."""
        return self.follow(self.send(form, button, changes))

    def follow(self, answer: httpx.Response) -> Page:
        assert answer.status_code == 303, (answer.status_code, answer.text)
        return self.open(answer.headers["location"])


def query(address: str) -> list[tuple[str, str]]:
    """What an address says after its question mark."""
    return parse_qsl(urlsplit(address).query, keep_blank_values=True)


class Below(httpx.BaseTransport):
    """A proxy in front of a server: it takes what is below a prefix, and passes it on without."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._transport = httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.raw_path.decode("ascii")
        if not path.startswith(f"{self._prefix}/") and path != self._prefix:
            return httpx.Response(418, text=f"{path} is not below {self._prefix}", request=request)
        inner = path.removeprefix(self._prefix) or "/"
        request.url = request.url.copy_with(raw_path=inner.encode("ascii"))
        return self._transport.handle_request(request)

    def close(self) -> None:
        self._transport.close()


def below(address: str, prefix: str, **options: Any) -> httpx.Client:
    """A client of a live server behind such a proxy. Who calls it closes it."""
    return httpx.Client(base_url=address, transport=Below(prefix), trust_env=False, timeout=20, **options)
