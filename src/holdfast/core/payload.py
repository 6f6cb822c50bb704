"""Payloads and results: which JSON can be stored, and whether a payload matches its handler's annotations."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from holdfast.errors import ConfigError, InvalidPayload, PayloadTooLarge
from holdfast.text import shown

MAX_DEPTH = 64
MAX_INTEGER_BITS = 1024

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class _Problem(Exception):
    """What is wrong with a value; `path` grows as the recursion unwinds."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.path: list[str | int] = []

    def at(self, step: str | int) -> _Problem:
        self.path.append(step)
        return self

    def where(self, root: str) -> str:
        return root + "".join(_step(step) for step in reversed(self.path))


def _step(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if re.fullmatch(r"\w+", step) else f"[{step!r}]"


def encode_payload(value: object, limit: int) -> tuple[dict[str, Any], str]:
    """A copy of a payload in JSON's own types, and its text.

    Raises InvalidPayload naming the place if it can't be stored exactly.
    """
    try:
        plain = _plain(value, 1)
    except _Problem as problem:
        raise InvalidPayload(problem.where("payload"), problem.text) from None
    if not isinstance(plain, dict):
        raise InvalidPayload("payload", f"must be a JSON object, not {_kind(plain)}")
    text = _encode(plain)
    if len(text) > limit:
        raise PayloadTooLarge("payload", f"is {len(text)} bytes as JSON; max_payload_bytes is {limit}")
    return plain, text.decode()


def encode_result(value: object, limit: int) -> str | None:
    """The JSON text of a handler's result; None for None.

    The work is done, so a result that can't be stored does not undo it: a marker says what was wrong.
    """
    if value is None:
        return None
    try:
        text = _encode(_plain(value, 1))
        is_large = len(text) > limit
        problem = f"it is {len(text)} bytes as JSON; max_result_bytes is {limit}" if is_large else None
    except _Problem as error:
        problem = f"{error.where('result')}: {error.text}"
    if problem is None:
        return text.decode()
    return _encode({"holdfast": "the result could not be stored", "problem": problem}).decode()


def decode(text: str) -> Any:
    try:
        return _decode(text)
    except msgspec.DecodeError:  # 1e400, NaN, half of a surrogate pair: others may have written it
        return json.loads(text)


def decode_strictly(text: str) -> Any:
    """Parse JSON that a user wrote, if it is unambiguous; raises ValueError, which says what is wrong."""
    try:
        return json.loads(text, object_pairs_hook=_without_duplicates)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"is not valid JSON: {error}") from error


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"duplicate key {shown(name)}")
            seen.add(name)
    return made


def same_json(a: str, b: str) -> bool:
    """Whether two JSON texts have the same meaning, whatever the order of their keys."""
    return a == b or json.dumps(json.loads(a), sort_keys=True) == json.dumps(json.loads(b), sort_keys=True)


def _plain(value: Any, depth: int) -> Any:
    """The value in JSON's own types, checked."""
    kind = type(value)
    if kind is str:
        return _text(value)
    if kind is int:
        return _integer(value)
    if kind is bool or value is None:
        return value
    if kind is float:
        if not math.isfinite(value):
            raise _Problem(f"{value} is not JSON")
        return value
    if depth > MAX_DEPTH:
        raise _Problem(f"is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, Mapping):
        return _object(value, depth)
    if isinstance(value, list | tuple):
        return _array(value, depth)
    return _other(value, depth)


def _text(value: str) -> str:
    if "\x00" in value:
        raise _Problem("contains a NUL character, which can't be stored")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _Problem("contains a lone surrogate, which is not a character") from None
    return value


def _integer(value: int) -> int:
    if value.bit_length() > MAX_INTEGER_BITS:
        raise _Problem(f"is an integer of more than {MAX_INTEGER_BITS} bits")
    return value


def _object(value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise _Problem(f"has the key {shown(key)}; keys must be text")
        try:
            plain[_text(key)] = _plain(item, depth + 1)
        except _Problem as problem:
            raise problem.at(key) from None
    return plain


def _array(value: list[Any] | tuple[Any, ...], depth: int) -> list[Any]:
    plain: list[Any] = []
    for index, item in enumerate(value):
        try:
            plain.append(_plain(item, depth + 1))
        except _Problem as problem:
            raise problem.at(index) from None
    return plain


def _other(value: Any, depth: int) -> Any:
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise _Problem("is a naive datetime; give it a time zone")
        return value.isoformat()
    for kind in (int, float, str):
        if isinstance(value, kind):  # an enum or another subclass
            return _plain(kind(getattr(value, "value", value)), depth)
    try:
        parts = _parts(value)
        if parts is not None:
            return _object(parts, depth)
        plain = msgspec.to_builtins(value)
    except _Problem:
        raise
    except Exception:  # the value's own code may raise whatever it likes
        raise _Problem(f"is {_kind(value)}, which is not JSON") from None
    if type(plain) is type(value):
        raise _Problem(f"is {_kind(value)}, which is not JSON")
    return _plain(plain, depth + 1)


def _parts(value: Any) -> dict[str, Any] | None:
    """The fields of a record, one level deep: the caller recurses, and adds the path."""
    if isinstance(value, msgspec.Struct):
        names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        return {outside: getattr(value, inside) for outside, inside in names}
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        return {name: getattr(value, name) for name in value.__dataclass_fields__}
    if hasattr(value, "__pydantic_validator__") and not isinstance(value, type):
        parts: dict[str, Any] = value.model_dump()
        return parts
    return None


def _kind(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


class PayloadSpec(msgspec.Struct, frozen=True):
    """The payload that a handler accepts, derived from its annotations.

    `bind` returns the arguments: a dict of keyword arguments, or with `whole` the converted payload itself.
    """

    bind: Callable[[Any], Any]
    schema: Callable[[], dict[str, Any]]
    """Makes the JSON Schema of the payload."""

    @classmethod
    def of_keywords(cls, fields: Mapping[str, tuple[Any, bool]], *, extra: bool) -> PayloadSpec:
        """For a handler with keyword parameters: name to (annotation, required)."""
        fields = {name: (Any if kind is object else kind, needed) for name, (kind, needed) in fields.items()}
        if any(_has_pydantic(annotation) for annotation, _ in fields.values()):
            return _pydantic_keywords(fields, extra)
        return _msgspec_keywords(fields, extra)

    @classmethod
    def of_whole(cls, annotation: Any) -> PayloadSpec:
        """For a handler that takes the payload as one argument of the given type."""
        if annotation is Any or annotation in (dict, Mapping, object):
            return cls(lambda payload: payload, lambda: {"type": "object"})
        if _has_pydantic(annotation):
            return _pydantic_whole(annotation)
        _check_supported(annotation, "payload")
        return cls(_converter(annotation), lambda: msgspec.json.schema(annotation))


def _converter(kind: Any) -> Callable[[Any], Any]:
    convert = msgspec.convert

    def bind(payload: Any) -> Any:
        try:
            return convert(payload, kind)
        except msgspec.ValidationError as error:
            found = _LOCATION.match(str(error))
            assert found is not None
            raise _invalid(found["path"] or "", found["problem"].replace("`", "")) from None

    return bind


_LOCATION = re.compile(r"^(?P<problem>.*?)(?: - at (?:`key` in )?`\$(?P<path>[^`]*)`)?$", re.DOTALL)


def _invalid(path: str, problem: str) -> InvalidPayload:
    return InvalidPayload(f"payload{path}", problem[:1].lower() + problem[1:])


def _msgspec_keywords(fields: Mapping[str, tuple[Any, bool]], extra: bool) -> PayloadSpec:
    for name, (annotation, _) in fields.items():
        _check_supported(annotation, name)
    unset = msgspec.UNSET
    struct = msgspec.defstruct(
        "Payload",
        [
            (name, annotation) if required else (name, annotation | msgspec.UnsetType, unset)
            for name, (annotation, required) in fields.items()
        ],
        kw_only=True,
        forbid_unknown_fields=not extra,
    )
    names = tuple(fields)
    convert = _converter(struct)

    def bind(payload: Any) -> dict[str, Any]:
        made = convert(payload)
        arguments = {}
        for name in names:
            value = getattr(made, name)
            if value is not unset:
                arguments[name] = value
        if extra:
            arguments |= {name: value for name, value in payload.items() if name not in fields}
        return arguments

    return PayloadSpec(bind, lambda: _inline(msgspec.json.schema(struct)))


def _inline(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with its top object in place rather than behind a reference."""
    top = schema.pop("$ref", None)
    if top is None:
        return schema
    definitions = schema.pop("$defs")
    merged = {**definitions.pop(top.rpartition("/")[2]), **schema}
    if definitions:
        merged["$defs"] = definitions
    return merged


def _check_supported(annotation: Any, name: str) -> None:
    try:
        unknown = _find_custom(msgspec.inspect.type_info(annotation), set())
    except (TypeError, NameError) as error:
        raise ConfigError(f"parameter {name!r}: {error}") from None
    if unknown is not None:
        raise ConfigError(f"parameter {name!r}: {unknown.__name__} can't be created from JSON")


def _find_custom(info: Any, seen: set[Any]) -> Any:
    """The first class inside a type that JSON can't represent."""
    if isinstance(info, msgspec.inspect.CustomType):
        return info.cls
    own = getattr(info, "cls", None)
    if own is not None:
        if own in seen:
            return None
        seen.add(own)
    parts = [getattr(info, name, None) for name in ("item_type", "key_type", "value_type")]
    parts += [*getattr(info, "types", ()), *getattr(info, "item_types", ())]
    parts += [field.type for field in getattr(info, "fields", ())]
    found = (_find_custom(part, seen) for part in parts if part is not None)
    return next((cls for cls in found if cls is not None), None)


def _has_pydantic(annotation: Any) -> bool:
    if hasattr(annotation, "__pydantic_validator__"):
        return True
    return any(_has_pydantic(part) for part in getattr(annotation, "__args__", ()))


def _pydantic_keywords(fields: Mapping[str, tuple[Any, bool]], extra: bool) -> PayloadSpec:
    from typing import NotRequired  # which pydantic needs and installs

    import pydantic
    from typing_extensions import TypedDict

    # A TypedDict, not a model: a parameter may have any name, also one that a model has a method of.
    kinds = {name: kind if required else NotRequired[kind] for name, (kind, required) in fields.items()}
    make: Any = TypedDict  # called with names known only now
    payload = make("Payload", kinds)
    payload.__pydantic_config__ = pydantic.ConfigDict(extra="allow" if extra else "forbid")
    return _pydantic_whole(payload)


def _pydantic_whole(annotation: Any) -> PayloadSpec:
    import pydantic

    try:
        adapter = pydantic.TypeAdapter(annotation)
    except pydantic.errors.PydanticUserError as error:
        raise ConfigError(f"pydantic can't validate this payload: {error.message}") from None

    def bind(payload: Any) -> Any:
        try:
            return adapter.validate_python(payload)
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            raise _invalid("".join(map(_step, first["loc"])), first["msg"]) from None

    return PayloadSpec(bind, adapter.json_schema)
