"""The edit tool: replaces a text that occurs exactly once, or everywhere (contract.md 6).

The guest takes op `edit` {`path`, `old_bytes`, `replace_all`, `file_bytes_max`,
`expected_version`?} with the old and the new text, one after the other, as body. It
matches exactly, blind to line-ending style and byte order mark only; where nothing
matches it says why, and the words for that are here.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sandbox_adapter.v1 import tool_pb2
from sandboxd import limits
from sandboxd.backends.base import Reply
from sandboxd.errors import GuestFault
from sandboxd.tools.base import Ask, InvalidInput, JsonObject, failed
from sandboxd.tools.facts import Count, Facts, parse_facts
from sandboxd.tools.faults import file_fault
from sandboxd.tools.inputs import Fields, encoded
from sandboxd.tools.versions import EXPECTED_SCHEMA, Version, expected_version
from sandboxd.tools.wording import counted, line_list, plain

ANSWER_S = 300.0
"""Longest wait for the guest's answer: its longest wait for two locks, and the work."""
IDENTICAL = "oldText and newText are identical: nothing to change."
EMPTY = "oldText is empty. Use write to create or replace a whole file."
LINES_KEPT_MAX = 100

Line = Annotated[int, Field(ge=1, le=2**53)]
Lines = Annotated[list[Line], Field(min_length=1, max_length=LINES_KEPT_MAX)]


class _Facts(Facts):
    replacements: Annotated[int, Field(ge=1, le=2**53)]
    lines: Lines
    version: Version


class _Several(Facts):
    count: Annotated[int, Field(ge=2, le=2**53)]
    lines: Lines


class _Diagnosis(Facts):
    kind: str
    line: Count = 0
    nearest_line: Count = 0
    nearest_text: Annotated[str, Field(max_length=2_000)] = ""


_REASONS_OF_NO_MATCH = {
    "line_numbers": "oldText has line-number prefixes that are not in the file; without them it "
    "matches at line {line}. Remove the prefixes.",
    "escaped": 'oldText has escape sequences such as \\n or \\" that the file holds as plain '
    "characters; written plainly it matches at line {line}.",
    "trailing_whitespace": "It matches at line {line} if white space at the ends of lines is "
    "ignored: copy the line ends as they are in the file.",
    "indentation": "It matches at line {line} if indentation is ignored: copy tabs and spaces at "
    "the beginning of each line as they are in the file.",
    "spacing": "It matches at line {line} if tabs and runs of spaces count as one space: copy the "
    "white space as it is in the file.",
    "typography": "It matches at line {line} if typographic quotes, dashes and spaces count as "
    "plain ones: copy these characters as they are in the file.",
    "case": "It matches at line {line} if upper and lower case are not told apart: copy the case "
    "as it is in the file.",
    "unicode_form": "It matches at line {line} if Unicode normalisation is ignored (composed or "
    "decomposed accents): copy the characters from a read of the file.",
    "outer_newlines": "It matches at line {line} without the line breaks at its beginning and end: "
    "copy as many as the file has there.",
    "nul_character": "oldText contains ␀, which stands for NUL bytes of the file: choose a part "
    "without it, or use bash with sed or python3.",
    "replacement_character": "oldText contains U+FFFD, which stands for bytes of the file that are "
    "not UTF-8: choose a part without it, or use bash with sed or python3.",
    "already_applied": "newText is in the file already, at line {line}: the edit may have been "
    "made before. Read the file again.",
}


_SCHEMA: JsonObject = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "path": {
            "type": "string",
            "description": "File to change: absolute, relative to the working directory, or "
            "starting with ~.",
        },
        "oldText": {
            "type": "string",
            "minLength": 1,
            "description": "Text to find, exactly as it is in the file.",
        },
        "newText": {"type": "string", "description": "Text to put in its place."},
        "replaceAll": {
            "type": "boolean",
            "description": "Replace every occurrence. Default: false.",
        },
        "expectedVersion": EXPECTED_SCHEMA,
    },
    "required": ["path", "oldText", "newText"],
    "additionalProperties": False,
}


class EditTool:
    """Replaces text in a file."""

    name = "edit"
    description = (
        "Replaces oldText by newText in a file. oldText must match exactly, white space and "
        "indentation included, and occur exactly once: add surrounding lines to make it unique, "
        "or set replaceAll to replace every occurrence. Read the file first and copy from it. "
        "Line endings (CRLF or LF) need not match and are kept."
    )
    schema = _SCHEMA
    effect = tool_pb2.EFFECT_CLASS_MUTATE
    parallel = False
    timeout_default_s: float | None = None
    timeout_max_s: float | None = None

    def ask(self, raw: JsonObject) -> Ask:
        fields = Fields(raw, ("path", "oldText", "newText", "replaceAll", "expectedVersion"))
        path = fields.path()
        old, new = _texts(fields)
        replace_all = fields.flag("replaceAll")
        expected = expected_version(fields)
        return Ask(
            "edit",
            {
                "path": path,
                "old_bytes": len(old),
                "replace_all": replace_all,
                "file_bytes_max": limits.EDIT_FILE_BYTES_MAX,
                "expected_version": expected,
            },
            {"path": path},
            old + new,
            timeout_s=ANSWER_S,
        )

    def word(self, memo: JsonObject, answer: Reply | GuestFault) -> tool_pb2.ToolResult:
        path = str(memo["path"])
        if isinstance(answer, GuestFault):
            return _refused(answer, path)
        facts = parse_facts(_Facts, answer.facts)
        return tool_pb2.ToolResult(
            text=f"Edited {path}: {counted(facts.replacements, 'replacement')} at "
            f"{line_list(facts.lines, facts.replacements)}.",
            ending=tool_pb2.ENDING_COMPLETED,
            edit=tool_pb2.EditDetails(
                replacements=facts.replacements, lines=facts.lines, version=facts.version
            ),
        )


def _texts(fields: Fields) -> tuple[bytes, bytes]:
    old = encoded(fields.text("oldText"), "oldText")
    new = encoded(fields.text("newText"), "newText")
    if not old:
        raise InvalidInput(EMPTY, "EMPTY_TEXT")
    if old == new:
        raise InvalidInput(IDENTICAL, "IDENTICAL_TEXT")
    if len(old) + len(new) > limits.MESSAGE_BYTES_MAX:
        raise InvalidInput(
            f"`oldText` and `newText` are {len(old) + len(new)} bytes together, and "
            f"{limits.MESSAGE_BYTES_MAX} are the most. Choose a smaller part.",
            "FILE_TOO_LARGE",
        )
    return old, new


def _refused(fault: GuestFault, path: str) -> tool_pb2.ToolResult:
    if fault.reason == "SEVERAL_MATCHES":
        several = parse_facts(_Several, fault.facts)
        result = failed(
            fault.reason,
            f"oldText matches {several.count} places in {path} "
            f"({line_list(several.lines, several.count)}). Add more surrounding context to make it "
            "unique, or set replaceAll.",
        )
        result.edit.replacements = several.count
        result.edit.lines.extend(several.lines)
        return result
    if fault.reason == "NO_MATCH":
        diagnosis = parse_facts(_Diagnosis, fault.facts)
        return failed(fault.reason, f"{_no_match(path)} {_explained(diagnosis)}".rstrip())
    if fault.reason == "IDENTICAL_TEXT":
        raise InvalidInput(
            f"{IDENTICAL} They differ in line endings or a byte order mark only, which edit "
            "keeps; use bash to change those.",
            fault.reason,
        )
    raise file_fault(path, fault, "Use glob or bash ls to list it.")


def _no_match(path: str) -> str:
    return (
        f"Could not find oldText in {path}. Check whitespace and indentation: it must match "
        "exactly."
    )


def _explained(diagnosis: _Diagnosis) -> str:
    words = _REASONS_OF_NO_MATCH.get(diagnosis.kind, "Read the file again and copy from it.")
    text = words.format(line=diagnosis.line)
    if diagnosis.nearest_line and diagnosis.nearest_text:
        text += (
            f"\nNearest is line {diagnosis.nearest_line}, tabs shown as \\t: "
            f"{plain(diagnosis.nearest_text)}"
        )
    return text
