"""The settings of a run: one typed object, checked before anything starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator

from orchestrator.errors import UsageError

Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
MIB: Final = 1024 * 1024

MODEL_CALLS_DEFAULT: Final = 50
MODEL_CALLS_MAX: Final = 1_000


def default_log() -> Path:
    """The log of all runs of this user."""
    base = os.environ.get("XDG_STATE_HOME")
    state = Path(base) if base else Path.home() / ".local" / "state"
    return state / "orchestrator" / "log.sqlite3"


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class ModelSettings(_Settings):
    """Which model, where, and how long to wait for it."""

    name: str = Field(min_length=1, max_length=200)
    base_url: str
    """Everything before `/chat/completions`, such as `http://127.0.0.1:8080/v1`."""
    api_key: SecretStr | None = None
    connect_timeout_s: Seconds = 15.0
    idle_timeout_s: Seconds = 300.0
    """Longest silence of a stream."""
    total_timeout_s: Seconds = 900.0
    """One attempt, from its first byte to its last."""
    attempts_max: int = Field(default=3, ge=1, le=10)
    backoff_s: Seconds = 2.0
    """Before the second attempt; doubles for each further one."""
    retry_after_s_max: Seconds = 120.0
    """A server that asks for a longer wait ends the run instead."""
    output_tokens_max: int | None = Field(default=None, ge=1)
    """Sent as `max_tokens`. Absent: the server's own."""
    response_bytes_max: int = Field(default=32 * MIB, ge=1024)

    @field_validator("base_url")
    @classmethod
    def _is_http(cls, value: str) -> str:
        if not value.startswith(("http://", "https://")):
            raise ValueError("must begin with http:// or https://")
        return value.rstrip("/")

    @field_validator("api_key")
    @classmethod
    def _is_one_word(cls, value: SecretStr | None) -> SecretStr | None:
        # Checked here: a library that refuses the header later would show the key.
        secret = value.get_secret_value() if value is not None else ""
        if not (secret.isascii() and all("!" <= char <= "~" for char in secret)):
            raise ValueError("holds a space, a line break or another character that no key has")
        return value


class WorkspaceSettings(_Settings):
    """What may be copied into a sandbox, and out of it."""

    files_max: int = Field(default=20_000, ge=1)
    """Entries in, directories and links included."""
    bytes_max: int = Field(default=1024 * MIB, ge=1)
    """Bytes in, in all."""
    out_entries_max: int = Field(default=200_000, ge=1)
    """Entries of the sandbox's tree that are looked at."""
    out_changes_max: int = Field(default=5_000, ge=1)
    out_bytes_max: int = Field(default=256 * MIB, ge=1)
    """Bytes written to the host in all."""
    out_file_bytes_max: int = Field(default=64 * MIB, ge=1)
    """One file on its way out."""
    transfers_parallel_max: int = Field(default=8, ge=1, le=16)
    take_self_executing: bool = False
    """Also take out files that run by themselves on the host (security S21)."""


class RunSettings(_Settings):
    """One run."""

    task: str = Field(min_length=1, max_length=1_000_000)
    sandbox: str = Field(min_length=1)
    """Address of the adapter as gRPC takes it."""
    profile: str = ""
    """Empty: the adapter's default."""
    workspace: Path | None = None
    dry_run: bool = False
    log: Path = Field(default_factory=default_log)
    model: ModelSettings
    model_calls_max: int = Field(default=MODEL_CALLS_DEFAULT, ge=1, le=MODEL_CALLS_MAX)
    reads_parallel_max: int = Field(default=8, ge=1, le=16)
    sandbox_connect_s: Seconds = 5.0
    """Longest wait for an adapter that does not answer."""
    files: WorkspaceSettings = WorkspaceSettings()


def run_settings(raw: dict[str, object], flags: Mapping[str, str] | None = None) -> RunSettings:
    """Checks the settings. Raises `UsageError` with one line that names the setting.

    `flags` says under which flag a person gave a setting.
    """
    try:
        return RunSettings.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        named = (flags or {}).get(key, key)
        raise UsageError(f"`{named}`: {message}") from None
