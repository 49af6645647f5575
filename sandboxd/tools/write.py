"""The write tool: creates a file or replaces its whole content (contract.md 6).

The guest takes op `write` {`path`, `expected_version`?} with the content as body and
answers with the facts of `_Facts`; the file changes as `guest/replace.py` says.
"""

from __future__ import annotations

from sandbox_adapter.v1 import tool_pb2
from sandboxd import limits
from sandboxd.backends.base import Reply
from sandboxd.errors import GuestFault
from sandboxd.tools.base import Ask, InvalidInput, JsonObject
from sandboxd.tools.facts import Count, Facts, parse_facts
from sandboxd.tools.faults import file_fault
from sandboxd.tools.inputs import Fields, encoded
from sandboxd.tools.versions import EXPECTED_SCHEMA, Version, expected_version
from sandboxd.tools.wording import counted

ANSWER_S = 240.0
"""Longest wait for the guest's answer: its longest wait for a lock, and a slow disk."""


class _Facts(Facts):
    bytes: Count
    created: bool
    version: Version


_SCHEMA: JsonObject = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "path": {
            "type": "string",
            "description": "File to write: absolute, relative to the working directory, or "
            "starting with ~.",
        },
        "content": {
            "type": "string",
            "description": "The whole content, with every newline that the file should have.",
        },
        "expectedVersion": EXPECTED_SCHEMA,
    },
    "required": ["path", "content"],
    "additionalProperties": False,
}


class WriteTool:
    """Writes a whole file."""

    name = "write"
    description = (
        "Creates a file with this content, or replaces the whole content of an existing one, byte "
        "for byte; missing parent directories are made. At most "
        f"{limits.WRITE_BYTES_MAX // limits.MIB} MiB. To change a part of a file use edit."
    )
    schema = _SCHEMA
    effect = tool_pb2.EFFECT_CLASS_MUTATE
    parallel = False
    timeout_default_s: float | None = None
    timeout_max_s: float | None = None

    def ask(self, raw: JsonObject) -> Ask:
        fields = Fields(raw, ("path", "content", "expectedVersion"))
        path = fields.path()
        content = encoded(fields.text("content"), "content")
        expected = expected_version(fields)
        if len(content) > limits.WRITE_BYTES_MAX:
            raise InvalidInput(
                f"`content` is {len(content)} bytes, and {limits.WRITE_BYTES_MAX} are the most. "
                "Write it in parts with bash.",
                "FILE_TOO_LARGE",
            )
        return Ask(
            "write",
            {"path": path, "expected_version": expected},
            {"path": path},
            content,
            timeout_s=ANSWER_S,
        )

    def word(self, memo: JsonObject, answer: Reply | GuestFault) -> tool_pb2.ToolResult:
        path = str(memo["path"])
        if isinstance(answer, GuestFault):
            raise file_fault(path, answer, "Give the path of a file in it.")
        facts = parse_facts(_Facts, answer.facts)
        return tool_pb2.ToolResult(
            text=f"Wrote {counted(facts.bytes, 'byte')} to {path}.",
            ending=tool_pb2.ENDING_COMPLETED,
            bytes_total=facts.bytes,
            write=tool_pb2.WriteDetails(
                bytes_written=facts.bytes, created=facts.created, version=facts.version
            ),
        )
