"""The script of a scripted model: what it says, and what it expects to have been told.

A script is JSON (or TOML) with a list of turns. The turn is chosen by the number of
assistant messages in the request, so the server keeps no conversation and a repeated
request gets the same answer. A turn may be a list of branches; the first whose
`when` fits is taken. Where none fits the conversation is not the expected one, and
the request fails loudly.

Text in `text`, `reasoning` and `arguments` may hold `${name}`: what an earlier `capture` of
the script found in tool results. `{"capture": "name", "add": N}` in `arguments` is
a captured number plus N.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from string import Template
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from orchestrator.errors import UsageError
from orchestrator.escape import clipped


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ScriptCall(_Part):
    """A call that the model asks for."""

    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    raw_arguments: str | None = None
    """Sent instead of `arguments`, as it is: for arguments that are no JSON."""


class When(_Part):
    """What the request must hold. Everything given must fit."""

    results: tuple[str, ...] = ()
    """Regular expressions, each found in the results of the latest turn."""
    absent: tuple[str, ...] = ()
    """Regular expressions, none found there."""
    tools: tuple[str, ...] = ()
    """Names of tools that must be offered."""
    task: str | None = None
    """Regular expression found in the first user message."""

    @field_validator("results", "absent")
    @classmethod
    def _compile(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in value:
            _compiled(pattern)
        return value

    @field_validator("task")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        _compiled(value or "")
        return value


class Fault(_Part):
    """Something that goes wrong on purpose."""

    kind: Literal["cut", "garble", "delay", "status", "error"]
    """`cut`: the connection ends after `after_events` events. `garble`: an event that
    is no JSON takes the place of the next one. `delay`: nothing is sent for
    `seconds`. `status`: the HTTP answer is `status`. `error`: an in-band error. A reply
    that is not streamed counts as one event."""
    after_events: int = Field(default=1, ge=0)
    seconds: float = Field(default=0, ge=0, le=600)
    status: int = Field(default=503, ge=400, le=599)
    retry_after: str | None = None
    message: str = "scripted fault"
    code: str = "overloaded_error"
    times: int = Field(default=1, ge=1)
    """How many requests for this turn meet it; later ones do not."""


class Turn(_Part):
    """One reply."""

    when: When = When()
    capture: dict[str, str] = Field(default_factory=dict)
    """Name to regular expression with one group, found in the latest results."""
    text: str = ""
    reasoning: str = ""
    calls: tuple[ScriptCall, ...] = ()
    finish: str | None = None
    """Absent: `tool_calls` or `stop`, as fits. Empty text: none is sent."""
    input_tokens: int | None = None
    output_tokens: int | None = None
    """Absent: a quarter of the characters, rounded up."""
    fault: Fault | None = None

    @field_validator("capture")
    @classmethod
    def _have_a_group(cls, value: dict[str, str]) -> dict[str, str]:
        for pattern in value.values():
            if _compiled(pattern).groups < 1:
                raise ValueError(f"{pattern!r} has no group to capture")
        return value


class Chunking(_Part):
    """How replies are cut. The defaults cut inside words, characters and JSON."""

    fragment_chars: int = Field(default=11, ge=1)
    """Characters of text, or of arguments, in one event."""
    write_bytes: int = Field(default=61, ge=1)
    """Bytes in one write to the socket."""
    pause_s: float = Field(default=0.0, ge=0, le=10)
    """Between events, so that a person can read along."""


class Script(_Part):
    """A whole script."""

    model: str = "scripted"
    chunking: Chunking = Chunking()
    turns: tuple[tuple[Turn, ...], ...]
    """Each a list of branches; a single turn stands for a list of one."""

    @field_validator("turns", mode="before")
    @classmethod
    def _lists(cls, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [branch if isinstance(branch, list | tuple) else [branch] for branch in value]
        return value


class ScriptMismatch(Exception):
    """The conversation is not the one that the script was written for."""


def load_script(path: Path) -> Script:
    """Reads a script. Raises `UsageError` with one line."""
    try:
        text = path.read_text(encoding="utf-8")
        raw = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
        return Script.model_validate(raw)
    except OSError as error:
        raise UsageError(f"cannot read the script `{path}`: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"script `{path}`: `{key}`: {first['msg']}") from None
    except ValueError as error:
        raise UsageError(f"script `{path}`: {error}") from None


def play(script: Script, request: dict[str, Any]) -> tuple[int, Turn]:
    """The turn that answers a request, with captures filled in, and its number from 0.

    Raises `ScriptMismatch` and says what was expected and what was there.
    """
    messages = [entry for entry in request.get("messages", []) if isinstance(entry, dict)]
    number = sum(entry.get("role") == "assistant" for entry in messages)
    if number >= len(script.turns):
        raise ScriptMismatch(f"the script ends after {len(script.turns)} turns")
    results = _latest_results(messages)
    problems: list[str] = []
    for turn in script.turns[number]:
        problem = _problem(turn.when, request, messages, results)
        if problem is None:
            return number, _filled(turn, _captures(script, number, turn, messages))
        problems.append(problem)
    told = clipped(results, 600) or "(none)"
    raise ScriptMismatch(f"turn {number + 1}: {'; '.join(problems)}. The latest results: {told}")


def _problem(
    when: When, request: dict[str, Any], messages: list[dict[str, Any]], results: str
) -> str | None:
    offered = {
        entry.get("function", {}).get("name")
        for entry in request.get("tools", [])
        if isinstance(entry, dict)
    }
    missing = [name for name in when.tools if name not in offered]
    if missing:
        return f"tools are missing: {', '.join(missing)}"
    task = next((_text(entry) for entry in messages if entry.get("role") == "user"), "")
    if when.task is not None and not _compiled(when.task).search(task):
        return f"the task does not match {when.task!r}"
    for pattern in when.results:
        if not _compiled(pattern).search(results):
            return f"no result matches {pattern!r}"
    for pattern in when.absent:
        if _compiled(pattern).search(results):
            return f"a result matches {pattern!r}"
    return None


def _captures(
    script: Script, number: int, turn: Turn, messages: list[dict[str, Any]]
) -> dict[str, str]:
    """Captures of this turn and of every turn before it, each from what it was told."""
    found: dict[str, str] = {}
    for earlier in range(number + 1):
        results = _latest_results(_before_reply(messages, earlier))
        branches = (turn,) if earlier == number else script.turns[earlier]
        for branch in branches:
            for name, pattern in branch.capture.items():
                match = _compiled(pattern).search(results)
                if match is not None:
                    found[name] = match.group(1)
                elif earlier == number:
                    raise ScriptMismatch(f"turn {number + 1}: nothing to capture by {pattern!r}")
    return found


def _before_reply(messages: list[dict[str, Any]], number: int) -> list[dict[str, Any]]:
    seen = 0
    for at, entry in enumerate(messages):
        if entry.get("role") == "assistant":
            if seen == number:
                return messages[:at]
            seen += 1
    return messages


def _latest_results(messages: list[dict[str, Any]]) -> str:
    latest: list[str] = []
    for entry in reversed(messages):
        if entry.get("role") != "tool":
            break
        latest.append(_text(entry))
    return "\n".join(reversed(latest))


def _text(entry: dict[str, Any]) -> str:
    content = entry.get("content")
    return content if isinstance(content, str) else ""


def _filled(turn: Turn, captures: dict[str, str]) -> Turn:
    calls = tuple(
        call.model_copy(update={"arguments": _fill(call.arguments, captures)})
        for call in turn.calls
    )
    return turn.model_copy(
        update={
            "text": Template(turn.text).safe_substitute(captures),
            "reasoning": Template(turn.reasoning).safe_substitute(captures),
            "calls": calls,
        }
    )


def _fill(value: Any, captures: dict[str, str]) -> Any:
    if isinstance(value, str):
        return Template(value).safe_substitute(captures)
    if isinstance(value, list):
        return [_fill(item, captures) for item in value]
    if isinstance(value, dict):
        if set(value) == {"capture", "add"}:
            return max(1, _number(captures, value["capture"]) + int(value["add"]))
        return {key: _fill(item, captures) for key, item in value.items()}
    return value


def _number(captures: dict[str, str], name: str) -> int:
    found = captures.get(name, "")
    if not found.isdecimal():
        raise ScriptMismatch(f"capture `{name}` holds no number but {found!r}")
    return int(found)


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.MULTILINE)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
