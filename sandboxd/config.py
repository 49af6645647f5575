"""The settings: one typed object, read from TOML and flags, checked before anything runs.

Sizes take numbers of bytes or text such as `"2GiB"`; times are seconds, as the
suffix `_s` says. Unknown keys are refused with the nearest known one.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ByteSize, ConfigDict, Field, ValidationError, model_validator

from sandboxd import limits
from sandboxd.errors import ConfigError

DEFAULT_LISTEN = "127.0.0.1:50051"
DEFAULT_METRICS = "127.0.0.1:9464"

Seconds = Annotated[float, Field(gt=0, le=30 * 86_400, allow_inf_nan=False)]
GVISOR_PIDS_MIN: Final = 8192
"""What a gVisor profile's `pids` should be at least. The engine counts gVisor's own threads,
which are some 70 without and 10 with each process inside, on its ptrace platform, and beyond
the limit it dies. Measured: 16 parallel calls that start processes without pause took 4,600."""
_GVISOR: Final = re.compile(r"runsc|gvisor", re.IGNORECASE)
_MIB = limits.MIB


def _size(default: int, minimum: int) -> Any:
    return Field(default=ByteSize(default), ge=minimum)


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class ProfileSettings(_Settings):
    """A kind of sandbox. Clients name it; they cannot invent one."""

    name: str = Field(default="default", pattern=r"^[a-z][a-z0-9_-]{0,62}$")
    """Taken from the table's key in TOML."""
    description: str = Field(default="The hardened default.", max_length=200)
    image: str = "sandboxd/base:dev"
    """Image reference on the worker's engine."""
    runtime: str = "runc"
    """Container runtime as the engine knows it, such as `runc` or `runsc`."""
    user: str = Field(default="auto", pattern=r"^(auto|image|[0-9]{1,9}:[0-9]{1,9})$")
    """`auto`: a uid that no host account has; `image`: the image's own; or `UID:GID`."""
    allow_root: bool = False
    """Permits uid 0, by `user = "image"` or as in `"0:0"`."""
    memory: ByteSize = _size(2 * 1024 * _MIB, 64 * _MIB)
    """Memory and swap together."""
    cpus: Annotated[float, Field(gt=0, le=1024, allow_inf_nan=False)] = 2.0
    pids: int = Field(default=512, ge=32, le=1_000_000)
    """Processes and threads, the guest's own (about 25) included. See `GVISOR_PIDS_MIN`."""
    tmp: ByteSize = _size(512 * _MIB, limits.SPILL_TOTAL_BYTES_MAX)
    """Size of `/tmp`, in memory. What commands spill lies there too."""
    shm: ByteSize = _size(64 * _MIB, _MIB)
    """Size of `/dev/shm`, in memory."""
    open_files: int = Field(default=4096, ge=256, le=1_048_576)
    network: Literal["none", "open"] = "none"
    """`none`: nothing but loopback. `open`: the engine's bridge, whatever it reaches."""
    read_only_root: bool = True
    writable_tmpfs: tuple[str, ...] = ("/run", "/var/tmp")
    """Further tmpfs mounts, 64 MiB each."""
    search: Literal["auto", "ripgrep", "grep"] = "auto"
    """What searches contents. `ripgrep`: the toolbox's, or with `local` the host's. `grep`:
    the image's own POSIX grep. `auto`: ripgrep, or grep where there is none."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment of every command, under the session's own."""
    idle_timeout_s: Seconds = 30 * 60.0
    idle_timeout_max_s: Seconds = 24 * 3_600.0
    max_lifetime_s: Seconds = 24 * 3_600.0
    max_lifetime_max_s: Seconds = 7 * 86_400.0
    memory_max: ByteSize | None = None
    """Greatest memory that a client may ask for. Absent: it may only ask for less."""
    cpus_max: Annotated[float, Field(gt=0, le=1024)] | None = None
    pids_max: int | None = Field(default=None, ge=32)
    tmp_max: ByteSize | None = None

    @model_validator(mode="after")
    def _consistent(self) -> ProfileSettings:
        # Both live in the container's memory; the rest must stay for processes.
        if 2 * (self.tmp + self.shm) > self.memory:
            raise ValueError("`tmp` and `shm` together must be at most half of `memory`")
        # By the number: `00:5` is root as well.
        if self.user[0].isdigit() and int(self.user.partition(":")[0]) == 0 and not self.allow_root:
            raise ValueError(f'`user = "{self.user}"` needs `allow_root = true`')
        if self.idle_timeout_s > self.idle_timeout_max_s:
            raise ValueError("`idle_timeout_s` is over `idle_timeout_max_s`")
        if self.max_lifetime_s > self.max_lifetime_max_s:
            raise ValueError("`max_lifetime_s` is over `max_lifetime_max_s`")
        return self


class BashSettings(_Settings):
    """The bash tool."""

    timeout_default_s: Seconds = limits.BASH_TIMEOUT_DEFAULT_S
    timeout_max_s: Seconds = limits.BASH_TIMEOUT_MAX_S

    @model_validator(mode="after")
    def _consistent(self) -> BashSettings:
        if self.timeout_default_s > self.timeout_max_s:
            raise ValueError("`timeout_default_s` is over `timeout_max_s`")
        return self


def default_state_dir() -> Path:
    """Root's is the system's state folder; another user's is under their own."""
    if os.geteuid() == 0:
        return Path("/var/lib/sandboxd")
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "sandboxd"


class Settings(_Settings):
    """Everything that an operator can set."""

    listen: str = DEFAULT_LISTEN
    """`HOST:PORT` or `unix:PATH`."""
    metrics: str = DEFAULT_METRICS
    """`HOST:PORT` of the metrics, loopback only, or `off`."""
    state_dir: Path = Field(default_factory=default_state_dir)
    backend: Literal["docker", "local"] = "docker"
    allow_unsafe_local: bool = False
    """Permits `backend = "local"`, which isolates nothing."""
    on_shutdown: Literal["keep", "delete"] = "keep"
    """What becomes of live sessions at SIGTERM: kept for the next daemon, or deleted."""
    shutdown_grace_s: Seconds = 10.0
    """Time that running calls get at SIGTERM."""
    sessions_max: int = Field(default=64, ge=1, le=100_000)
    creates_parallel_max: int = Field(default=4, ge=1, le=256)
    engine_timeout_s: Seconds = 30.0
    """Deadline of one short engine call."""
    pull_timeout_s: Seconds = 600.0
    guest_ready_timeout_s: Seconds = 30.0
    sweep_interval_s: Seconds = 5.0
    toolbox_image: str = "sandboxd/toolbox:dev"
    default_profile: str = "default"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    bash: BashSettings = BashSettings()
    profiles: dict[str, ProfileSettings] = Field(
        default_factory=lambda: {"default": ProfileSettings()}
    )

    @model_validator(mode="before")
    @classmethod
    def _name_profiles(cls, raw: Any) -> Any:
        profiles = raw.get("profiles") if isinstance(raw, dict) else None
        if isinstance(profiles, dict):
            named = {
                key: {**value, "name": key} if isinstance(value, dict) else value
                for key, value in profiles.items()
            }
            raw = {**raw, "profiles": named}
        return raw

    @model_validator(mode="after")
    def _default_profile_exists(self) -> Settings:
        if self.default_profile not in self.profiles:
            raise ValueError(f"`default_profile` names no profile: `{self.default_profile}`")
        return self


def short_of_pids(settings: Settings) -> list[ProfileSettings]:
    """Profiles whose sandboxes gVisor would lose when they are busy: see `GVISOR_PIDS_MIN`."""
    return [
        profile
        for profile in settings.profiles.values()
        if _GVISOR.search(profile.runtime) and profile.pids < GVISOR_PIDS_MIN
    ]


def load_settings(path: Path | None, overrides: dict[str, Any]) -> Settings:
    """Reads the file, lays the flags over it, checks the whole.

    `overrides` holds only flags that were given. Raises `ConfigError` with one
    line that names the key and the rule.
    """
    raw: dict[str, Any] = {}
    if path is not None:
        try:
            raw = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot read `{path}`: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"`{path}` is not TOML: {error}") from None
    try:
        return Settings.model_validate({**raw, **overrides})
    except ValidationError as error:
        where = f"`{path}`: " if path else ""
        raise ConfigError(where + _first_problem(error)) from None


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    location = [str(part) for part in first["loc"]]
    key = ".".join(location)
    if first["type"] == "extra_forbidden":
        model: type[BaseModel] = Settings
        if location[0] == "profiles":
            model = ProfileSettings
        elif location[0] == "bash" and len(location) > 1:
            model = BashSettings
        near = difflib.get_close_matches(location[-1], model.model_fields, n=1)
        hint = f"; did you mean `{near[0]}`?" if near else ""
        return f"unknown key `{key}`{hint}"
    message = re.sub(r"^Value error, ", "", first["msg"])
    return f"`{key}`: {message}" if key else message
