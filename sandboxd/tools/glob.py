"""The glob tool: finds files by name (contract.md 6; texts and their order: 9).

The guest answers op `glob` {`pattern`, `path`?, `paths_max`, `entries_max`,
`timeout_s`} with the paths as body, each followed by LF, in order, and the facts
of `_Facts`; see `guest/search.py`.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from pydantic import Field

from sandbox_adapter.v1 import tool_pb2
from sandboxd import limits
from sandboxd.backends.base import Reply
from sandboxd.errors import GuestFault, SandboxLost
from sandboxd.tools.base import Ask, InvalidInput, JsonObject
from sandboxd.tools.facts import parse_facts
from sandboxd.tools.faults import file_fault
from sandboxd.tools.inputs import Fields
from sandboxd.tools.name_patterns import nearest_call, without_leading_stars
from sandboxd.tools.search_notes import SearchFacts, set_ending, stopping_notes
from sandboxd.tools.wording import own_line, plain

PATTERN_CHARS_MAX = 1_024
ANSWER_SLACK_S = 30.0
REPLY_BYTES_MAX = 5 * limits.MIB


class _Facts(SearchFacts):
    entries_over: bool
    other_case: Annotated[str, Field(min_length=1, max_length=32_768)] | None


_SCHEMA: JsonObject = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "pattern": {
            "type": "string",
            "minLength": 1,
            "description": "Pattern of file names, such as *.py, test_*.{js,ts} or Makefile. "
            "It matches names at every depth, not paths.",
        },
        "path": {
            "type": "string",
            "description": "Directory to start from. Default: the working directory.",
        },
    },
    "required": ["pattern"],
    "additionalProperties": False,
}


class GlobTool:
    """Searches with a time budget in seconds."""

    name = "glob"
    description = (
        "Finds files by name, at every depth below path, as find -name does: case-sensitive, "
        "hidden and git-ignored files included, .git not. The pattern matches file names, not "
        f"paths. Shows at most {limits.GLOB_PATHS_MAX:,} paths, in path order. Directories are "
        "not listed: use bash ls for them."
    )
    schema = _SCHEMA
    effect = tool_pb2.EFFECT_CLASS_READ
    parallel = True

    def __init__(self, timeout_s: float = limits.SEARCH_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self.timeout_default_s: float | None = timeout_s
        self.timeout_max_s: float | None = timeout_s

    def ask(self, raw: JsonObject) -> Ask:
        fields = Fields(raw, ("pattern", "path"))
        path = fields.optional_path()
        args = {
            "pattern": _pattern(fields, path),
            "path": path,
            "paths_max": limits.GLOB_PATHS_MAX,
            "entries_max": limits.GLOB_ENTRIES_MAX,
            "timeout_s": self._timeout_s,
        }
        return Ask(
            "glob",
            args,
            {"path": path},
            reply_bytes_max=REPLY_BYTES_MAX,
            timeout_s=self._timeout_s + ANSWER_SLACK_S,
        )

    def word(self, memo: JsonObject, answer: Reply | GuestFault) -> tool_pb2.ToolResult:
        path = memo["path"]
        if isinstance(answer, GuestFault):
            if answer.reason == "INVALID_PATTERN":
                words = plain(str(answer), 2_000)
                raise InvalidInput(f"{words} Correct the pattern.", answer.reason)
            raise file_fault(path or ".", answer, "Give the path of a directory.")
        facts = parse_facts(_Facts, answer.facts)
        return _result(facts, _paths(answer.body), path, self._timeout_s)


def _pattern(fields: Fields, path: str | None) -> str:
    pattern = without_leading_stars(fields.text("pattern"))
    if not pattern:
        raise InvalidInput("`pattern` is empty. Use * to find every file.")
    if "\0" in pattern:
        raise InvalidInput("`pattern` contains a NUL character. Remove it.")
    if "/" in pattern:
        call = nearest_call(pattern, path).worded("pattern")
        raise InvalidInput(f"glob matches file names, not paths. Use {call}.", "INVALID_PATTERN")
    if len(pattern) > PATTERN_CHARS_MAX:
        raise InvalidInput(
            f"`pattern` is longer than {PATTERN_CHARS_MAX} characters, and no file name is. "
            "Use a shorter pattern.",
            "INVALID_PATTERN",
        )
    return pattern


def _paths(body: bytes) -> list[str]:
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise SandboxLost("PROTOCOL", "glob: the body is not UTF-8") from None
    if text and not text.endswith("\n"):
        raise SandboxLost("PROTOCOL", "glob: the body does not hold paths")
    paths = text.split("\n")[:-1]
    if len(paths) > limits.GLOB_PATHS_MAX or not all(paths):
        raise SandboxLost("PROTOCOL", "glob: the body does not hold paths")
    shown = [path if path.isprintable() else plain(path, 32_768) for path in paths]
    if sum(map(len, shown)) > REPLY_BYTES_MAX:
        # Control characters, which the guest should have made visible: they grow here.
        raise SandboxLost("PROTOCOL", "glob: the paths are over their bound as they are shown")
    return shown


def _result(
    facts: _Facts, paths: list[str], path: str | None, timeout_s: float
) -> tool_pb2.ToolResult:
    result = tool_pb2.ToolResult(
        text=own_line(_body(facts, paths), *_notes(facts, paths, path, timeout_s)),
        truncated=facts.capped or facts.timed_out or facts.cancelled or facts.entries_over,
        glob=tool_pb2.GlobDetails(
            paths=paths,
            capped=facts.capped,
            unsearched=facts.unsearched,
            timed_out=facts.timed_out,
        ),
    )
    set_ending(result, facts, timeout_s)
    return result


def _body(facts: _Facts, paths: list[str]) -> str:
    if paths or facts.timed_out or facts.cancelled or facts.entries_over:
        return "\n".join(paths)
    if facts.other_case is not None:
        name = plain(facts.other_case, 4_096)
        return f"No files found. A name that differs only in case exists: {name}"
    return "No files found."


def _notes(facts: _Facts, paths: list[str], path: str | None, timeout_s: float) -> list[str]:
    notes = []
    if facts.capped:
        notes.append(
            f"[Showing the first {limits.GLOB_PATHS_MAX} paths; more exist. "
            "Narrow the pattern or path.]"
        )
        folder, count = _fullest(paths, path)
        if folder:
            notes.append(f"[{count} of them {'is' if count == 1 else 'are'} under {folder}.]")
    notes += stopping_notes(facts, timeout_s)
    if facts.entries_over:
        notes.append(
            f"[Stopped after {limits.GLOB_ENTRIES_MAX:,} names: results are incomplete. "
            "Narrow the path or pattern.]"
        )
    return notes


def _fullest(paths: list[str], path: str | None) -> tuple[str, int]:
    """The directory right below the start that holds the most of the paths shown."""
    start = "" if path is None or path.rstrip("/") == "." else path.rstrip("/") + "/"
    folders = Counter(
        start + below.partition("/")[0]
        for below in (each.removeprefix(start) for each in paths)
        if "/" in below
    )
    return folders.most_common(1)[0] if folders else ("", 0)
