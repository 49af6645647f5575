"""The read tool: a text file, or a part of it, as raw text (contract.md 6).

The guest answers op `read_lines` {`path`, `offset`, `lines_max`, `bytes_max`,
`scan_s`} with the lines as body, decoded and cut, and the facts of `_Facts`.
"""

from __future__ import annotations

from sandbox_adapter.v1 import tool_pb2
from sandboxd import limits
from sandboxd.backends.base import Reply
from sandboxd.errors import GuestFault, SandboxLost
from sandboxd.tools.base import Ask, InvalidInput, JsonObject
from sandboxd.tools.facts import Count, Facts, parse_facts
from sandboxd.tools.faults import file_fault
from sandboxd.tools.inputs import Fields
from sandboxd.tools.versions import Version
from sandboxd.tools.wording import counted, own_line

ANSWER_S = limits.READ_SCAN_S + 60.0
"""Longest wait for the guest's answer: the scan, and a queue of opens and slow reads."""
KIB_SHOWN = limits.READ_BYTES_MAX // limits.KIB

NOT_UTF8 = "[File is not valid UTF-8: undecodable bytes are shown as U+FFFD.]"


class _Facts(Facts):
    first: Count
    last: Count
    total: Count
    total_exact: bool
    next: Count | None
    long_line: bool
    replaced: bool
    nul: bool
    encoding: str
    size: Count
    version: Version


class _Binary(Facts):
    size: Count
    type: str


class _Total(Facts):
    total: Count


_SCHEMA: JsonObject = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "path": {
            "type": "string",
            "description": "File to read: absolute, relative to the working directory, or "
            "starting with ~.",
        },
        "offset": {
            "type": "integer",
            "minimum": 1,
            "description": "First line to show, counted from 1. Default: 1.",
        },
        "limit": {
            "type": "integer",
            "minimum": 1,
            "description": f"Most lines to show. Default: {limits.READ_LINES_MAX}.",
        },
    },
    "required": ["path"],
    "additionalProperties": False,
}


class ReadTool:
    """Shows lines of a file."""

    name = "read"
    description = (
        "Shows a text file as raw text without line numbers: at most "
        f"{limits.READ_LINES_MAX:,} lines or {KIB_SHOWN} KB, whole lines only. A longer file ends "
        "with a line that gives the offset to continue with. Use offset and limit to page, and "
        "grep to find the line you need. Binary files and directories are refused."
    )
    schema = _SCHEMA
    effect = tool_pb2.EFFECT_CLASS_READ
    parallel = True
    timeout_default_s: float | None = None
    timeout_max_s: float | None = None

    def ask(self, raw: JsonObject) -> Ask:
        fields = Fields(raw, ("path", "offset", "limit"))
        path = fields.path()
        offset = fields.optional_integer("offset", 1, "a line number, counted from 1") or 1
        limit = fields.optional_integer("limit", 1, "a number of lines, at least 1")
        lines_max = min(limit or limits.READ_LINES_MAX, limits.READ_LINES_MAX)
        return Ask(
            "read_lines",
            {
                "path": path,
                "offset": offset,
                "lines_max": lines_max,
                "bytes_max": limits.READ_BYTES_MAX,
                "scan_s": limits.READ_SCAN_S,
            },
            {"path": path, "offset": offset},
            reply_bytes_max=limits.READ_BYTES_MAX,
            timeout_s=ANSWER_S,
        )

    def word(self, memo: JsonObject, answer: Reply | GuestFault) -> tool_pb2.ToolResult:
        if isinstance(answer, GuestFault):
            raise _worded(answer, str(memo["path"]), int(memo["offset"]))
        return _result(parse_facts(_Facts, answer.facts), answer.body)


def _worded(fault: GuestFault, path: str, offset: int) -> Exception:
    if fault.reason == "BINARY_FILE":
        binary = parse_facts(_Binary, fault.facts)
        kind = f", {binary.type[:100]}" if binary.type.isprintable() and binary.type else ""
        return InvalidInput(
            f"{path} is a binary file ({counted(binary.size, 'byte')}{kind}). "
            "Use bash with file, xxd or strings to inspect it.",
            fault.reason,
        )
    if fault.reason == "OFFSET_BEYOND_END":
        total = parse_facts(_Total, fault.facts).total
        return InvalidInput(
            f"Offset {offset} is beyond the end of the file ({counted(total, 'line')}).",
            fault.reason,
        )
    return file_fault(path, fault, "Use glob or bash ls to list it.")


def _result(facts: _Facts, body: bytes) -> tool_pb2.ToolResult:
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise SandboxLost("PROTOCOL", "read_lines: the body is not UTF-8") from None
    if "\0" in text:
        raise SandboxLost("PROTOCOL", "read_lines: the body holds NUL")
    cut = facts.next is not None or facts.long_line
    notes = [*_notes(facts), *_markers(facts)]
    return tool_pb2.ToolResult(
        text=own_line(text, *notes),
        ending=tool_pb2.ENDING_COMPLETED,
        truncated=cut,
        bytes_total=facts.size,
        lines_total=facts.total,
        read=tool_pb2.ReadDetails(
            first_line=facts.first,
            last_line=facts.last,
            total_exact=facts.total_exact,
            next_offset=facts.next,
            replaced_bytes=facts.replaced,
            version=facts.version,
        ),
    )


def _notes(facts: _Facts) -> list[str]:
    notes = []
    if facts.last == 0:
        notes.append("[File is empty]")
    wide = facts.encoding.upper()[:6]
    if wide not in ("UTF-16", "UTF-32"):
        wide = ""
    if facts.replaced:
        notes.append(NOT_UTF8.replace("UTF-8", wide) if wide else NOT_UTF8)
    if wide:
        notes.append(f"[File is {wide}: it is shown decoded, and edit cannot change it.]")
    if facts.nul:
        notes.append("[NUL bytes are shown as ␀.]")
    return notes


def _markers(facts: _Facts) -> list[str]:
    """The last lines: what was cut and how to go on."""
    if facts.long_line:
        long_line = (
            f"[Line {facts.last} is longer than {KIB_SHOWN} KB: its first {KIB_SHOWN} KB are "
            "shown. The rest of the line is not reachable with offset/limit.]"
        )
        markers = [long_line]
        if facts.next is not None:
            markers.append(f"[Use offset={facts.next} to continue.]")
        return markers
    if facts.next is None:
        return []
    total = f"{facts.total}" if facts.total_exact else f"at least {facts.total}"
    shown = f"{facts.first}-{facts.last} of {total}"
    return [f"[Showing lines {shown}. Use offset={facts.next} to continue.]"]
