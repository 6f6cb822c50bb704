"""What a job might be made of, as JSON text: what is taken, as which bytes, and what is refused."""

from __future__ import annotations

import json
from typing import NamedTuple

PAYLOAD_LIMIT = 1024 * 1024
DEEPEST = 64
LARGEST = 2**1024 - 1


class Value(NamedTuple):
    """What stands at a field of a job. `stored` is what becomes of it in the database; None is refused.

    Text is what a person could type; bytes are what only a program sends.
    """

    field: str
    text: str | bytes
    stored: str | None = None

    @property
    def data(self) -> bytes:
        return self.text if isinstance(self.text, bytes) else self.text.encode()

    @property
    def status(self) -> int:
        """What HTTP answers."""
        if self.stored is not None:
            return 201
        return 413 if self.field == "payload" and len(self.data) > PAYLOAD_LIMIT else 400

    @property
    def name(self) -> str:
        shown = ascii(self.text)[1:-1]
        return f"{self.field} {shown if len(shown) <= 50 else f'{shown[:40]}... ({len(self.text)})'}"


def _nested(depth: int, opening: str = '{"a":', closing: str = "}") -> str:
    """A payload with so many containers inside one another."""
    return '{"a":' + opening * (depth - 2) + "{}" + closing * (depth - 2) + "}"


def _sized(size: int) -> str:
    """A payload of so many bytes."""
    return '{"a":"' + "x" * (size - 8) + '"}'


_TAKEN_PAYLOADS: list[tuple[str, str]] = [
    ("{}", "{}"),
    ("null", "{}"),  # the same as left out
    (' {\n\t"a" :\r 1 } ', '{"a":1}'),
    ('{"": 1}', '{"":1}'),
    ('{" ": " "}', '{" ":" "}'),
    ('{"b": 1, "a": 2, "B": 3}', '{"b":1,"a":2,"B":3}'),
    ('{"a": null, "b": [null, true, false]}', '{"a":null,"b":[null,true,false]}'),
    ('{"a": [], "b": {}, "c": [[], {}]}', '{"a":[],"b":{},"c":[[],{}]}'),
    # Numbers, to the last digit.
    ('{"a": 0}', '{"a":0}'),
    ('{"a": -0}', '{"a":0}'),
    ('{"a": -0.0}', '{"a":-0.0}'),
    ('{"a": 1.0}', '{"a":1.0}'),
    ('{"a": 1E2}', '{"a":100.0}'),
    ('{"a": 1e-400}', '{"a":0.0}'),
    ('{"a": 0.1}', '{"a":0.1}'),
    ('{"a": 0.30000000000000004}', '{"a":0.30000000000000004}'),
    ('{"a": 5e-324}', '{"a":5e-324}'),
    ('{"a": 1.7976931348623157e308}', '{"a":1.7976931348623157e308}'),
    ('{"a": 9007199254740993}', '{"a":9007199254740993}'),
    ('{"a": 9223372036854775808}', '{"a":9223372036854775808}'),
    ('{"a": 18446744073709551616}', '{"a":18446744073709551616}'),
    ('{"a": -18446744073709551617}', '{"a":-18446744073709551617}'),
    (f'{{"a": {10**100}}}', f'{{"a":{10**100}}}'),
    (f'{{"a": {LARGEST}}}', f'{{"a":{LARGEST}}}'),
    (f'{{"a": {-LARGEST}}}', f'{{"a":{-LARGEST}}}'),
    # Text, to the last character.
    ('{"a": "\\u0041\\u00e9\\n"}', '{"a":"Aé\\n"}'),
    ('{"a": "\\/"}', '{"a":"/"}'),
    ('{"a": "\\\\ \\" \'"}', '{"a":"\\\\ \\" \'"}'),
    ('{"a": "\\u0001\\u001f"}', '{"a":"\\u0001\\u001f"}'),
    ('{"a": "\\u007f\\u0080\\u009b"}', '{"a":"\x7f\x80\x9b"}'),
    ('{"a": "😀"}', '{"a":"😀"}'),
    ('{"a": "\\ud83d\\ude00"}', '{"a":"😀"}'),
    ('{"a": "𐍈\U0010ffff"}', '{"a":"𐍈\U0010ffff"}'),
    ('{"a": "é", "b": "e\u0301"}', '{"a":"é","b":"e\u0301"}'),
    ('{"é": 1, "e\u0301": 2}', '{"é":1,"e\u0301":2}'),
    ('{"a": "\ufeff\u200b\u202e"}', '{"a":"\ufeff\u200b\u202e"}'),
    ('{"a": "\ufffe\uffff\ufdd0"}', '{"a":"\ufffe\uffff\ufdd0"}'),
    ('{"a": "\u2028\u2029\x85"}', '{"a":"\u2028\u2029\x85"}'),
    ('{"a": "</script><!--&amp;"}', '{"a":"</script><!--&amp;"}'),
    ('{"a": "\'; DROP TABLE holdfast_jobs; --"}', '{"a":"\'; DROP TABLE holdfast_jobs; --"}'),
    ('{"a": "%s {0} ${x} \\\\u0000"}', '{"a":"%s {0} ${x} \\\\u0000"}'),
    ('{"__proto__": {"a": 1}, "constructor": 1}', '{"__proto__":{"a":1},"constructor":1}'),
    ('{"$ref": "#", "type": "x", "payload": 1}', '{"$ref":"#","type":"x","payload":1}'),
    ('{"a": "[redacted]", "password": "[redacted]"}', '{"a":"[redacted]","password":"[redacted]"}'),
    ('{"a": "NaN", "b": "Infinity"}', '{"a":"NaN","b":"Infinity"}'),
    # Limits.
    (_nested(DEEPEST), _nested(DEEPEST)),
    (_nested(DEEPEST, "[", "]"), _nested(DEEPEST, "[", "]")),
    (_sized(PAYLOAD_LIMIT), _sized(PAYLOAD_LIMIT)),
    ('{"a":"' + "\\u0041" * 1000 + '"}', '{"a":"' + "A" * 1000 + '"}'),
    (
        "{" + ", ".join(f'"k{n}": {n}' for n in range(5000)) + "}",
        "{" + ",".join(f'"k{n}":{n}' for n in range(5000)) + "}",
    ),
]

_REFUSED_PAYLOADS: list[str | bytes] = [
    # Not JSON.
    "",
    " ",
    "nonsense",
    "{",
    "}",
    '{"a"}',
    '{"a":}',
    '{"a": 1,}',
    '{"a": 1 "b": 2}',
    "{'a': 1}",
    "{a: 1}",
    '{"a": 1} {}',
    '{"a": 1} // why',
    '{"a": /* why */ 1}',
    '{"a": 01}',
    '{"a": +1}',
    '{"a": .5}',
    '{"a": 5.}',
    '{"a": 1e}',
    '{"a": 0x10}',
    '{"a": 1_000}',
    '{"a": \u0661}',
    '{"a": TRUE}',
    '{"a": None}',
    '{"a": undefined}',
    '{"a": "\n"}',
    '{"a": "\t"}',
    '{"a": "\x01"}',
    '{"a": "\\x41"}',
    '{"a": "\\u12"}',
    '{"a": "open}',
    '{"a": 1}\x00',
    '\ufeff{"a": 1}',
    '\u00a0{"a": 1}',
    # Not an object.
    "true",
    "false",
    "5",
    '"text"',
    "[]",
    '[{"a": 1}]',
    # No JSON that another reader would read the same way.
    '{"a": NaN}',
    '{"a": [1, -Infinity]}',
    '{"a": {"b": Infinity}}',
    '{"a": nan}',
    '{"a": 1e999}',
    '{"a": -1e999}',
    f'{{"a": {LARGEST + 1}}}',
    f'{{"a": {-LARGEST - 1}}}',
    '{"a": ' + "9" * 4300 + "}",
    '{"a": ' + "9" * 4301 + "}",
    '{"a": ' + "9" * 100_000 + "}",
    '{"a": 1, "a": 1}',
    '{"a": 1, "\\u0061": 2}',
    '{"a": {"b": 1, "c": 2, "b": 3}}',
    '{"a": [{"": 1, "": 1}]}',
    # No characters.
    '{"a": "\\u0000"}',
    '{"a\\u0000b": 1}',
    '{"a": "\x00"}',
    '{"a": "\\ud800"}',
    '{"a": "\\udfff"}',
    '{"a": ["\\udc00\\ud800"]}',
    '{"\\ud83d": 1}',
    b'{"a": "caf\xe9"}',
    b'{"a": "\xff"}',
    b'{"a": "\xc0\xaf"}',
    b'{"a": "\xed\xa0\x80"}',
    b'{"a": "\xf4\x90\x80\x80"}',
    b'{"a": "\xe2\x82"}',
    b'{"\x80": 1}',
    '{"a": 1}'.encode("utf-16"),
    '{"a": 1}'.encode("utf-16-le"),
    '{"a": 1}'.encode("utf-32"),
    # Too deep, too large.
    _nested(DEEPEST + 1),
    _nested(DEEPEST + 1, "[", "]"),
    _nested(500),
    _nested(990),
    _nested(100_000),
    '{"a":' * 100_000,
    "[" * 100_000,
    _sized(PAYLOAD_LIMIT + 1),
    _sized(3 * PAYLOAD_LIMIT),
    _sized(5 * PAYLOAD_LIMIT),
    '{"a":"' + "é" * (PAYLOAD_LIMIT // 2) + '"}',
]

_TAKEN: dict[str, list[tuple[str, str]]] = {
    "type": [
        ('"a"', "a"),
        ('"send_email"', "send_email"),
        ('"crawl:media"', "crawl:media"),
        ('":"', ":"),
        ('"..-_::"', "..-_::"),
        ('"null"', "null"),
        ('"\\u0061"', "a"),
        (f'"{"t" * 255}"', "t" * 255),
    ],
    "id": [
        ('"job1"', "job1"),
        ('"A.b_c:d-9"', "A.b_c:d-9"),
        ('"0"', "0"),
        ('"Stats"', "Stats"),
        ('"stats1"', "stats1"),
        (f'"{"x" * 128}"', "x" * 128),
    ],
    "priority": [
        ("0", "0"),
        ("-1", "-1"),
        ("null", "0"),
        (str(2**31 - 1), str(2**31 - 1)),
        (str(-(2**31)), str(-(2**31))),
    ],
    "maxAttempts": [("1", "1"), ("null", "None"), (str(2**31 - 1), str(2**31 - 1))],
    "timeout": [
        ("1", "1.0"),
        ("0.25", "0.25"),
        ("1e2", "100.0"),
        ('"30"', "30.0"),
        ('"5m"', "300.0"),
        ('" 1.5 h "', "5400.0"),
        ('"250ms"', "0.25"),
        ("null", "None"),
    ],
    "runAfter": [
        ('"2030-01-31T09:00:00Z"', "1896080400000000"),
        ('"2030-01-31T09:00:00.123456Z"', "1896080400123456"),
        ('"2030-01-31T10:00:00+01:00"', "1896080400000000"),
        ('"1999-12-31T23:59:59Z"', "946684799000000"),
        ("null", "None"),
    ],
    "idempotencyKey": [
        ('"k"', "k"),
        ('" "', " "),
        ('"welcome:42/é😀"', "welcome:42/é😀"),
        (f'"{"k" * 512}"', "k" * 512),
        ("null", "None"),
    ],
}

_REFUSED: dict[str, list[str | bytes]] = {
    "type": [
        "null",
        "5",
        "true",
        "[]",
        '["echo"]',
        "{}",
        '""',
        '" "',
        '"two words"',
        '"a/b"',
        '"a\\n"',
        '"\\u0000"',
        '"\\u001b[31m"',
        '"\\ud800"',
        '"naïve"',
        '"e\u0301"',
        '"<b>"',
        f'"{"t" * 256}"',
        b'"caf\xe9"',
    ],
    "id": [
        "5",
        "true",
        "[]",
        "{}",
        '""',
        '"two words"',
        '"-x"',
        '".x"',
        '":x"',
        '"../x"',
        '"a/b"',
        '"job1\\n"',
        '"job1\\u0000"',
        '"\\ud800"',
        '"naïve"',
        '"\u0661"',
        *(f'"{word}"' for word in ("stats", "batch", "bulk", "pause", "resume", "rate-limit")),
        f'"{"x" * 129}"',
        b'"\xff"',
    ],
    "priority": [
        '"5"',
        '""',
        "true",
        "false",
        "1.0",
        "1.5",
        "1e3",
        "NaN",
        "Infinity",
        "1e999",
        "[]",
        "{}",
        str(2**31),
        str(-(2**31) - 1),
        str(2**63),
        "9" * 400,
        "9" * 5000,
    ],
    "maxAttempts": ["0", "-1", '"3"', "1.0", "true", "[]", "{}", str(2**31), "9" * 400, "NaN"],
    "timeout": [
        "0",
        "-1",
        "-0.0",
        '"0s"',
        "true",
        "[]",
        "{}",
        '""',
        '"soon"',
        '"1 fortnight"',
        '"-5s"',
        '"1e3"',
        '"NaN"',
        '"\\u0000"',
        '"\\ud800"',
        "NaN",
        "Infinity",
        "-Infinity",
        "1e999",
        "1e300",
        str(2**63),
        "9" * 400,
        f'"{"9" * 400}"',
        f'"{"9" * 5000}d"',
    ],
    "delay": ["-1", '"soon"', "true", "[]", "NaN", "1e300", '"99999999999d"', "9" * 400],
    "runAfter": [
        "1893456000",
        "1893456000.5",
        "true",
        "[]",
        "{}",
        '""',
        '"tomorrow"',
        '"2030-01-31"',
        '"2030-01-31T09:00:00"',
        '"2030-02-31T09:00:00Z"',
        '"2030-01-31T25:00:00Z"',
        '"0001-01-01T00:00:00+14:00"',
        '"9999-12-31T23:59:59-14:00"',
        '"10000-01-01T00:00:00Z"',
        '"\\u0000"',
        '"\\ud800"',
    ],
    "idempotencyKey": [
        "5",
        "true",
        "[]",
        "{}",
        '""',
        '"a\\u0000b"',
        '"\\ud800"',
        f'"{"k" * 513}"',
        b'"\xff"',
    ],
    "keyFor": ["5", '"1d"'],  # without a key
    "nonsense": ["1", "null"],
}

VALUES: list[Value] = [
    *(Value("payload", text, stored) for text, stored in _TAKEN_PAYLOADS),
    *(Value("payload", text) for text in _REFUSED_PAYLOADS),
    *(Value(field, text, stored) for field, taken in _TAKEN.items() for text, stored in taken),
    *(Value(field, text) for field, refused in _REFUSED.items() for text in refused),
]


def as_python(value: Value) -> object:
    """The value that the text stands for. Raises ValueError where Python has none that is the same."""

    def without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a dict has no key twice")
        return dict(pairs)

    try:
        return json.loads(value.data.decode(), object_pairs_hook=without_repeats)
    except RecursionError:
        raise ValueError("too deep for the reader") from None
