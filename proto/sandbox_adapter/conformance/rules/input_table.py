"""Fields of the six inputs, and the bad values of each kind, with the reasons they are refused for.

Data only; `inputs` makes rules of it. Reasons: contract.md 4 ("INVALID_INPUT or a more
exact one") and 6; tool-cases R3 to R5, R32, W15, E7, B9, B36, G10, L20.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

Kind = Literal["path", "text", "version", "line", "seconds", "flag"]

INT64_MAX: Final = 2**63 - 1
PATH_BYTES_MAX: Final = 4_095
"""Longest path that Linux takes."""
NAME_BYTES_MAX: Final = 255
"""Longest name of a file."""
BIG_CHARS: Final = 10_000_000

TAKEN: Final = ""
"""In place of a reason: the value may be taken as well."""
BAD: Final = ("INVALID_INPUT",)
BAD_PATTERN: Final = ("INVALID_INPUT", "INVALID_PATTERN")
LONG_PATH: Final = ("PATH_TOO_LONG", "INVALID_INPUT")
MISSING: Final = ""
"""In place of a value's JSON: the field is left out."""


@dataclass(frozen=True)
class Field:
    tool: str
    name: str
    """As in JSON."""
    kind: Kind
    required: bool = True


@dataclass(frozen=True)
class Value:
    """A value that must be refused, for one of the reasons.

    `json` is the value as it stands in the input, with `$DIR` for the folder; None where
    JSON cannot say it. `typed` is the same for the typed form; None where that cannot hold it.
    """

    name: str
    json: str | None
    reasons: tuple[str, ...] = BAD
    typed: Any = None
    times: int = 1
    """How often each `#` in `json` and `typed` stands there."""
    cases: tuple[str, ...] = ()
    becomes: tuple[str, ...] = ()
    """Names that a path would have if the value were made a text."""


FIELDS: Final = (
    Field("read", "path", "path"),
    Field("read", "offset", "line", required=False),
    Field("read", "limit", "line", required=False),
    Field("write", "path", "path"),
    Field("write", "content", "text"),
    Field("write", "expectedVersion", "version", required=False),
    Field("edit", "path", "path"),
    Field("edit", "oldText", "text"),
    Field("edit", "newText", "text"),
    Field("edit", "replaceAll", "flag", required=False),
    Field("edit", "expectedVersion", "version", required=False),
    Field("bash", "command", "text"),
    Field("bash", "timeout", "seconds", required=False),
    Field("grep", "pattern", "text"),
    Field("grep", "path", "path", required=False),
    Field("grep", "include", "text", required=False),
    Field("grep", "literal", "flag", required=False),
    Field("glob", "pattern", "text"),
    Field("glob", "path", "path", required=False),
)

GOOD: Final[Mapping[str, Mapping[str, Any]]] = {
    "read": {"path": "$DIR/f"},
    "write": {"path": "$DIR/f", "content": "changed\n"},
    "edit": {"path": "$DIR/f", "oldText": "two", "newText": "changed"},
    # Shows in the folder if it runs all the same.
    "bash": {"command": "echo changed > $QDIR/f; echo changed > $QDIR/new"},
    "grep": {"pattern": "two", "path": "$DIR"},
    "glob": {"pattern": "*", "path": "$DIR"},
}
"""An input of each tool in which one field is made bad. `$DIR/f` holds three lines.

`$QDIR` is the folder's path as one word of a shell.
"""

ABSENT: Final = (Value("missing", MISSING), Value("null", "null", becomes=("null", "None")))
"""Of required fields."""

NO_TEXT: Final = (
    Value("number", "7", becomes=("7",)),
    Value("fraction", "1.5", becomes=("1.5",)),
    Value("true", "true", becomes=("true", "True")),
    Value("list", '["f"]', becomes=("f", "['f']", '["f"]')),
    Value("object", '{"path": "f"}', becomes=("[object Object]", "{'path': 'f'}")),
)
SURROGATES: Final = (
    Value("lone-surrogate", '"$DIR/f\\ud800x"', cases=("W15",)),
    Value("lone-low-surrogate", '"\\udc00"', cases=("W15",)),
    Value("surrogates-reversed", '"\\ude00\\ud83d"', cases=("W15",)),
)
NO_NUMBER: Final = (
    Value("word", '"two"'),
    Value("number-as-text", '"2"'),
    Value("empty-text", '""'),
    Value("true", "true"),
    Value("list", "[2]"),
    Value("object", "{}"),
)

OF_KIND: Final[Mapping[Kind, tuple[Value, ...]]] = {
    "text": (*NO_TEXT, *SURROGATES),
    "version": (
        *NO_TEXT,
        *SURROGATES,
        Value("empty", '""', typed=""),
        Value("nul", '"a\\u0000b"', typed="a\0b"),
        Value("too-long", '"#"', typed="#", times=65),
        Value("ten-megabytes", '"#"', times=BIG_CHARS),
    ),
    "path": (
        *NO_TEXT,
        *SURROGATES,
        Value("nul", '"$DIR/f\\u0000"', typed="$DIR/f\0", cases=("R32",)),
        Value("nul-within", '"$DIR/f\\u0000.txt"', typed="$DIR/\0/f", cases=("R32",)),
        Value("long-name", '"$DIR/#"', LONG_PATH, "$DIR/#", NAME_BYTES_MAX + 1, ("R27",)),
        Value("long-parent", '"$DIR/#/f"', LONG_PATH, "$DIR/#/f", 5_000, ("R27",)),
        Value("over-4096", '"/#"', LONG_PATH, "/#", PATH_BYTES_MAX, ("R27",)),
        Value("over-4096-of-parts", '"$DIR/#f"', LONG_PATH, None, 4_096, ("R27",)),
        Value("ten-megabytes", '"/#"', LONG_PATH, None, BIG_CHARS, ("R27",)),
    ),
    "line": (
        *NO_NUMBER,
        Value("fraction", "1.5", cases=("R5",)),
        Value("zero", "0", typed=0, cases=("R3", "R4")),
        Value("minus-zero", "-0.0", cases=("R3", "R4")),
        Value("negative", "-1", typed=-1, cases=("R3", "R4")),
        Value("least-int64", "-9223372036854775808", typed=-(2**63), cases=("R3", "R4")),
        Value("over-int64", "9223372036854775808", cases=("R5",)),
        Value("huge", "1e308", cases=("R5",)),
        Value("digits", "#", times=100, cases=("R5",)),
    ),
    "seconds": (
        *NO_NUMBER,
        Value("negative", "-1", typed=-1.0, cases=("B9",)),
        Value("hardly-negative", "-1e-300", typed=-1e-300, cases=("B9",)),
        Value("hugely-negative", "-1e308", typed=-1e308, cases=("B9",)),
        Value("nan", None, typed=float("nan"), cases=("B9",)),
        Value("infinite", None, typed=float("inf"), cases=("B9",)),
        Value("minus-infinite", None, typed=float("-inf"), cases=("B9",)),
    ),
    "flag": (
        Value("word", '"true"'),
        Value("empty-text", '""'),
        Value("one", "1"),
        Value("zero", "0"),
        Value("fraction", "0.5"),
        Value("list", "[true]"),
        Value("object", "{}"),
    ),
}

EMPTY: Final = '""'
NUL: Final = '"a\\u0000b"'

OF_FIELD: Final[Mapping[tuple[str, str], tuple[Value, ...]]] = {
    ("read", "path"): (Value("empty", EMPTY, typed=""),),
    ("write", "path"): (Value("empty", EMPTY, typed=""),),
    ("edit", "path"): (Value("empty", EMPTY, typed=""),),
    ("edit", "oldText"): (
        Value("empty", EMPTY, ("EMPTY_TEXT",), typed="", cases=("E7",)),
        Value("nul", NUL, ("NO_MATCH",), typed="a\0b"),
        Value("ten-megabytes", '"#"', ("NO_MATCH",), times=BIG_CHARS, cases=("E28",)),
    ),
    ("bash", "command"): (Value("nul", '"echo a > $QDIR/f; \\u0000"', cases=("B36",)),),
    ("grep", "pattern"): (
        Value("empty", EMPTY, (*BAD_PATTERN, "EMPTY_TEXT"), typed="", cases=("G10",)),
        Value("nul", NUL, BAD_PATTERN, typed="a\0b"),
        Value("ten-megabytes", '"#"', (TAKEN, *BAD_PATTERN, "FILE_TOO_LARGE"), times=BIG_CHARS),
    ),
    ("grep", "include"): (
        Value("empty", EMPTY, (TAKEN, *BAD_PATTERN), typed=""),
        Value("nul", NUL, BAD_PATTERN, typed="a\0b"),
        Value("ten-megabytes", '"#"', (TAKEN, *BAD_PATTERN, "FILE_TOO_LARGE"), times=BIG_CHARS),
    ),
    ("glob", "pattern"): (
        Value("empty", EMPTY, (*BAD_PATTERN, "EMPTY_TEXT"), typed="", cases=("L20",)),
        Value("nul", NUL, BAD_PATTERN, typed="a\0b"),
        Value("ten-megabytes", '"#"', (TAKEN, *BAD_PATTERN, "FILE_TOO_LARGE"), times=BIG_CHARS),
    ),
}
