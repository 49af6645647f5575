"""File versions in inputs and facts (contract.md 4): opaque, for programs, never for models."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from sandboxd import limits
from sandboxd.tools.base import InvalidInput, JsonObject
from sandboxd.tools.inputs import Fields

Version = Annotated[str, Field(max_length=limits.VERSION_BYTES_MAX, pattern=r"^[ -~]*$")]
"""A version as the guest gives it; empty where it gives none."""

EXPECTED_SCHEMA: Final[JsonObject] = {
    "type": "string",
    "minLength": 1,
    "maxLength": limits.VERSION_BYTES_MAX,
    "description": "For programs, leave it out: refuse unless the file is at this version.",
}


def expected_version(fields: Fields) -> str | None:
    """The field `expectedVersion`. Raises `InvalidInput` for what can be no version."""
    value = fields.optional_text("expectedVersion")
    if value is None:
        return None
    if (
        not 0 < len(value) <= limits.VERSION_BYTES_MAX
        or not value.isascii()
        or not value.isprintable()
    ):
        raise InvalidInput(
            f"`expectedVersion` must be 1 to {limits.VERSION_BYTES_MAX} characters of printable "
            "ASCII, as an earlier result gave it. Leave it out to accept any version."
        )
    return value
