"""Checks a call against the tool's own schema, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match
from referencing import Registry
from referencing.exceptions import Unresolvable

from orchestrator.escape import clipped
from orchestrator.messages import ToolCall, ToolSpec

PROBLEM_CHARS_MAX: Final = 400

# By default the library fetches what a schema refers to from the network.
_NOTHING_REMOTE: Final[Registry[Any]] = Registry()


def problem(call: ToolCall, tools: Mapping[str, ToolSpec]) -> str | None:
    """Why a call cannot be run, for the model; None where it can."""
    spec = tools.get(call.name)
    if spec is None:
        known = ", ".join(sorted(tools)) or "none"
        return (
            f"There is no tool named {clipped(call.name, 80)}. "
            f"Use one of these, or answer without a tool: {known}."
        )
    if call.arguments is None:
        return (
            f"The arguments of {call.name} are {call.fault}. Nothing was run. "
            "Call it again with one complete JSON object."
        )
    validator = Draft202012Validator(spec.input_schema, registry=_NOTHING_REMOTE)
    try:
        error = best_match(validator.iter_errors(call.arguments))
    except Unresolvable:
        return f"The schema of {call.name} refers to something that is not there. Use another tool."
    if error is None:
        return None
    return (
        f"The arguments of {call.name} do not fit its schema: {_words(error)}. "
        "Nothing was run. Correct them and call it again."
    )


def _words(error: ValidationError) -> str:
    where = ".".join(str(part) for part in error.absolute_path)
    said = clipped(error.message, PROBLEM_CHARS_MAX)
    return f"`{where}`: {said}" if where else said
