"""The grep tool: searches file contents (contract.md 6; texts and their order: 9).

The guest answers op `grep` {`pattern`, `literal`, `path`?, `include`?, `rows_max`,
`line_chars_max`, `timeout_s`} with rows `path NUL line NUL text LF` as body, in
order, and the facts of `_Facts`; see `guest/search.py`.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field

from sandbox_adapter.v1 import tool_pb2
from sandboxd import limits
from sandboxd.backends.base import Reply
from sandboxd.errors import GuestFault, SandboxLost
from sandboxd.tools.base import Ask, InvalidInput, JsonObject
from sandboxd.tools.facts import Facts, parse_facts
from sandboxd.tools.faults import file_fault
from sandboxd.tools.inputs import Fields
from sandboxd.tools.name_patterns import nearest_call, without_leading_stars
from sandboxd.tools.search_notes import SearchFacts, set_ending, stopping_notes
from sandboxd.tools.wording import counted, own_line, plain

PATTERN_BYTES_MAX = 64 * limits.KIB
INCLUDE_CHARS_MAX = 1_024
ANSWER_SLACK_S = 30.0
"""Over the search's own time: a queue of searches, the fetching of long lines."""
REPLY_BYTES_MAX = 2 * limits.MIB

_ROW = re.compile(r"([^\0\n]+)\0([0-9]{1,15})\0([^\0\n]*)\n")
_PCRE = re.compile(r"look-around|backreference", re.IGNORECASE)
_OTHER_ENGINE = re.compile(r"needs? ripgrep|this sandbox's grep")
_PCRE_ADVICE = re.compile(r"\s*Consider enabling PCRE2.*", re.DOTALL)
_OPENING = re.compile(r"[({\[*+?]")


class _Ignored(Facts):
    matches: Annotated[int, Field(ge=0, le=2**53)]
    """Zero: time ended before any was found."""
    exact: bool
    under: list[Annotated[str, Field(min_length=1, max_length=32_768)]] = Field(max_length=3)


class _Facts(SearchFacts):
    cut: Annotated[int, Field(ge=0, le=limits.GREP_MATCHES_MAX)]
    binary: bool
    ignored: _Ignored | None
    other_case: bool


_SCHEMA: JsonObject = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "pattern": {
            "type": "string",
            "minLength": 1,
            "description": "Regular expression in ripgrep's syntax, matched line by line and "
            "case-sensitive; start it with (?i) to ignore case.",
        },
        "path": {
            "type": "string",
            "description": "File or directory to search. Default: the working directory.",
        },
        "include": {
            "type": "string",
            "minLength": 1,
            "description": "Pattern that file names must match, such as *.py or *.{ts,tsx}.",
        },
        "literal": {
            "type": "boolean",
            "description": "Take the pattern as plain text. Default: false.",
        },
    },
    "required": ["pattern"],
    "additionalProperties": False,
}


class GrepTool:
    """Searches with a time budget in seconds."""

    name = "grep"
    description = (
        "Searches file contents and shows each match as path:line:text, in path order, at most "
        f"{limits.GREP_MATCHES_MAX} matches and {limits.GREP_LINE_CHARS_MAX} characters of a "
        "line. Hidden files are searched; git-ignored ones, .git and binary files are not, "
        "unless path leads there. Set literal=true to search for code with brackets or braces "
        "as it stands."
    )
    schema = _SCHEMA
    effect = tool_pb2.EFFECT_CLASS_READ
    parallel = True

    def __init__(self, timeout_s: float = limits.SEARCH_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self.timeout_default_s: float | None = timeout_s
        self.timeout_max_s: float | None = timeout_s

    def ask(self, raw: JsonObject) -> Ask:
        fields = Fields(raw, ("pattern", "path", "include", "literal"))
        pattern, literal = _pattern(fields), fields.flag("literal")
        path = fields.optional_path()
        include = _include(fields, path)
        args = {
            "pattern": pattern,
            "literal": literal,
            "path": path,
            "include": include,
            "rows_max": limits.GREP_MATCHES_MAX,
            "line_chars_max": limits.GREP_LINE_CHARS_MAX,
            "timeout_s": self._timeout_s,
        }
        return Ask(
            "grep",
            args,
            {
                "brackets": _OPENING.search(pattern) is not None,
                "path": path,
                "include": include,
                "literal": literal,
            },
            reply_bytes_max=REPLY_BYTES_MAX,
            timeout_s=self._timeout_s + ANSWER_SLACK_S,
        )

    def word(self, memo: JsonObject, answer: Reply | GuestFault) -> tool_pb2.ToolResult:
        path, literal = memo["path"], bool(memo["literal"])
        if isinstance(answer, GuestFault):
            raise _worded(answer, path, literal=literal, brackets=bool(memo["brackets"]))
        facts = parse_facts(_Facts, answer.facts)
        rows = _rows(answer.body)
        note = _include_note(memo["include"]) if not rows else None
        return _result(facts, rows, path or ".", literal, note, self._timeout_s)


def _pattern(fields: Fields) -> str:
    pattern = fields.text("pattern")
    if not pattern:
        raise InvalidInput(
            "`pattern` is empty and would match every line. Give the text to search for, "
            "or use glob to find files and read to show one."
        )
    if "\0" in pattern:
        raise InvalidInput("`pattern` contains a NUL character. Remove it.")
    if "\n" in pattern:
        raise InvalidInput(
            "`pattern` contains a line break, and grep matches within single lines. Search for "
            "one of the lines, then read the file around it."
        )
    size = len(pattern.encode("utf-8"))
    if size > PATTERN_BYTES_MAX:
        raise InvalidInput(
            f"`pattern` is {size} bytes long, and {PATTERN_BYTES_MAX} are the most. "
            "Search for a part of it."
        )
    return pattern


def _include(fields: Fields, path: str | None) -> str | None:
    given = fields.optional_text("include")
    if given is None:
        return None
    include = without_leading_stars(given)
    if not include:
        raise InvalidInput("`include` is empty. Leave it out to search all files.")
    if "/" in include:
        call = nearest_call(include, path).worded("include")
        raise InvalidInput(f"include matches file names, not paths. Use {call}.", "INVALID_PATTERN")
    if "\0" in include:
        raise InvalidInput("`include` contains a NUL character. Remove it.", "INVALID_PATTERN")
    if len(include) > INCLUDE_CHARS_MAX:
        raise InvalidInput(
            f"`include` is longer than {INCLUDE_CHARS_MAX} characters. Use a shorter pattern.",
            "INVALID_PATTERN",
        )
    return include


def _include_note(include: str | None) -> str | None:
    """A mistake that shows in nothing but an empty answer."""
    if include is None or "{" in include:
        return None
    parts = [part.strip() for part in re.split(r"[,;|\s]+", include) if part.strip()]
    if len(parts) < 2:
        return None
    ending = [part.removeprefix("*.") for part in parts]
    meant = ",".join(ending if all(p.startswith("*.") for p in parts) else parts)
    prefix = "*." if all(p.startswith("*.") for p in parts) else ""
    return f"[include is one pattern: for several write {prefix}{{{meant}}}]"


def _worded(fault: GuestFault, path: str | None, *, literal: bool, brackets: bool) -> Exception:
    if fault.reason != "INVALID_PATTERN":
        return file_fault(path or ".", fault, "Give the path of a file or directory.")
    words = _PCRE_ADVICE.sub("", plain(str(fault), 2_000))
    if "parsing glob" in words:
        hint = "Correct include, for instance to *.py or *.{ts,tsx}."
    elif _PCRE.search(words):
        hint = (
            "Rewrite the pattern without look-around and backreferences, or use bash with grep -P."
        )
    elif '"\\r"' in words:
        hint = "Lines are matched without their CR: leave \\r out and use $."
        words = words.partition("\n")[0]
    elif "multiline" in words or '"\\n"' in words:
        hint = "grep matches within single lines: search for one of the lines."
        words = words.partition("\n")[0]
    elif _OTHER_ENGINE.search(words):
        hint = "Write the pattern in simpler terms, or use bash with grep."
    elif not literal and brackets:
        hint = "To search for the text as it stands, set literal=true; or escape it with \\."
    else:
        hint = "Correct the pattern, or set literal=true to search for it as it stands."
    return InvalidInput(f"{words}\n{hint}", "INVALID_PATTERN")


def _rows(body: bytes) -> list[tool_pb2.GrepMatch]:
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise SandboxLost("PROTOCOL", "grep: the body is not UTF-8") from None
    rows: list[tool_pb2.GrepMatch] = []
    at = 0
    while at < len(text) and len(rows) < limits.GREP_MATCHES_MAX:
        found = _ROW.match(text, at)
        if found is None:
            break
        path, line, shown = found.groups()
        # The guest has made control characters visible; what it says is checked all the same.
        rows.append(
            tool_pb2.GrepMatch(
                path=plain(path, 32_768),
                line=int(line),
                text=plain(shown, limits.GREP_LINE_CHARS_MAX + 2),
            )
        )
        at = found.end()
    if at != len(text):
        raise SandboxLost("PROTOCOL", "grep: the body does not hold rows")
    return rows


def _result(
    facts: _Facts,
    rows: list[tool_pb2.GrepMatch],
    path: str,
    literal: bool,
    note: str | None,
    timeout_s: float,
) -> tool_pb2.ToolResult:
    notes = _notes(facts, path, timeout_s, rows=bool(rows))
    if note is not None:
        notes.append(note)
    body = "\n".join(f"{row.path}:{row.line}:{row.text}" for row in rows)
    if not rows and not (facts.timed_out or facts.cancelled or facts.binary):
        body = _nothing(facts, literal)
    result = tool_pb2.ToolResult(
        text=own_line(body, *notes),
        truncated=facts.capped or facts.cut > 0 or facts.timed_out or facts.cancelled,
        grep=tool_pb2.GrepDetails(
            matches=rows,
            capped=facts.capped,
            unsearched=facts.unsearched,
            ignored_matches=facts.ignored.matches if facts.ignored else 0,
            timed_out=facts.timed_out,
        ),
    )
    set_ending(result, facts, timeout_s)
    return result


def _nothing(facts: _Facts, literal: bool) -> str:
    text = "No matches found."
    if facts.ignored is not None and not (facts.ignored.matches and facts.ignored.under):
        text += (
            " Git-ignored files were not looked through in time: pass the path of an ignored "
            "folder to search it."
        )
    elif facts.ignored is not None:
        count = counted(facts.ignored.matches, "match is", "matches are")
        least = "" if facts.ignored.exact else "At least "
        under = [plain(place, 32_768) for place in facts.ignored.under]
        text += (
            f" {least}{count} in git-ignored files under {', '.join(under)}: "
            "pass one of these paths to search them."
        )
    elif facts.other_case:
        how = "escape the pattern, leave literal out and " if literal else ""
        text += f" There are matches in another case: {how}start the pattern with (?i)."
    return text


def _notes(facts: _Facts, path: str, timeout_s: float, *, rows: bool) -> list[str]:
    notes = []
    if facts.capped:
        notes.append(
            f"[Showing the first {limits.GREP_MATCHES_MAX} matches; more exist. "
            "Narrow the pattern, path or include.]"
        )
    if facts.binary:
        shown = "only matches before its first NUL byte are shown"
        notes.append(
            f"[{plain(path)} is a binary file: {shown if rows else 'matches in it are not shown'}. "
            "Use bash with grep -a or strings.]"
        )
    return notes + stopping_notes(facts, timeout_s)
