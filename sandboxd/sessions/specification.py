"""What a client asks of a session, checked against the contract and the profile."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ByteSize, ValidationError

from sandboxd import limits
from sandboxd.config import ProfileSettings, Settings
from sandboxd.errors import InvalidEnvelope, ProfileForbids, ProfileUnknown

_ENV_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MILLIS: Final = 1_000


@dataclass(frozen=True)
class Specification:
    """The fields of a `CreateSession`, as asked. None: as the profile says."""

    profile: str
    env: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    idle_timeout_s: float | None = None
    max_lifetime_s: float | None = None
    network: str | None = None
    """`none`, `open` or `allowlist`."""
    resources: Mapping[str, int] = field(default_factory=dict)
    """`memory_bytes`, `cpu_millis`, `pids`, `disk_bytes`, `tmp_bytes`, where given."""

    def canonical(self) -> dict[str, Any]:
        """What the digest is made over: what was asked, not what was granted."""
        return {
            "profile": self.profile,
            "env": dict(self.env),
            "labels": dict(self.labels),
            "idle_timeout_s": self.idle_timeout_s,
            "max_lifetime_s": self.max_lifetime_s,
            "network": self.network,
            "resources": dict(self.resources),
        }


@dataclass(frozen=True)
class Granted:
    """What a session gets."""

    profile: ProfileSettings
    idle_timeout_s: float
    max_lifetime_s: float


def grant(settings: Settings, asked: Specification) -> Granted:
    """Lays what was asked over the profile.

    Raises `ProfileUnknown`, `InvalidEnvelope` for what no profile could allow,
    `ProfileForbids` for what this one does not.
    """
    name = asked.profile or settings.default_profile
    profile = settings.profiles.get(name)
    if profile is None:
        raise ProfileUnknown(name, sorted(settings.profiles))
    check_env(asked.env)
    check_labels(asked.labels)
    _check_network(profile, asked.network)
    changes = _resources(profile, asked.resources)
    if asked.network == "none":
        changes["network"] = "none"
    return Granted(
        profile=_with(profile, changes),
        idle_timeout_s=_time(profile, "idle_timeout", asked.idle_timeout_s),
        max_lifetime_s=_time(profile, "max_lifetime", asked.max_lifetime_s),
    )


def check_env(env: Mapping[str, str]) -> None:
    """Names that a shell can have, values without NUL, bounded in all."""
    size = 0
    for name, value in env.items():
        if not _ENV_NAME.fullmatch(name):
            raise InvalidEnvelope("env", "names must match [A-Za-z_][A-Za-z0-9_]*")
        if "\0" in value:
            raise InvalidEnvelope("env", "values must not hold NUL")
        size += len(name) + len(value.encode()) + 2
    if size > limits.ENV_BYTES_MAX:
        raise InvalidEnvelope("env", f"must be at most {limits.ENV_BYTES_MAX} bytes in all")


def check_labels(labels: Mapping[str, str]) -> None:
    """Labels are bounded in number and length."""
    if len(labels) > limits.LABELS_MAX:
        raise InvalidEnvelope("labels", f"must be at most {limits.LABELS_MAX}")
    for key, value in labels.items():
        if not 0 < len(key) <= limits.LABEL_KEY_CHARS_MAX:
            rule = f"keys must have 1 to {limits.LABEL_KEY_CHARS_MAX} characters"
            raise InvalidEnvelope("labels", rule)
        if len(value) > limits.LABEL_VALUE_CHARS_MAX:
            rule = f"values must have at most {limits.LABEL_VALUE_CHARS_MAX} characters"
            raise InvalidEnvelope("labels", rule)


def check_time(profile: ProfileSettings, field_name: str, seconds: float) -> float:
    """A timeout that the profile allows; `field_name` is `idle_timeout` or `max_lifetime`."""
    most = (
        profile.idle_timeout_max_s if field_name == "idle_timeout" else profile.max_lifetime_max_s
    )
    if seconds <= 0:
        raise InvalidEnvelope(field_name, "must be more than 0")
    if seconds > most:
        raise ProfileForbids(profile.name, field_name, f"at most {most:g} s")
    return seconds


def _time(profile: ProfileSettings, field_name: str, asked: float | None) -> float:
    if asked is None:
        return profile.idle_timeout_s if field_name == "idle_timeout" else profile.max_lifetime_s
    return check_time(profile, field_name, asked)


def _check_network(profile: ProfileSettings, asked: str | None) -> None:
    if asked is not None and asked not in ("none", profile.network):
        raise ProfileForbids(profile.name, "network", f"at most `{profile.network}`")


def _resources(profile: ProfileSettings, asked: Mapping[str, int]) -> dict[str, Any]:
    """The profile's fields that change. Lowered memory takes `/tmp` and `/dev/shm` along."""
    for name, value in asked.items():
        if value <= 0:
            raise InvalidEnvelope(f"resources.{name}", "must be more than 0")
    if "disk_bytes" in asked:
        rule = "this worker's storage has no quota"
        raise ProfileForbids(profile.name, "resources.disk_bytes", rule)
    cpus_max = profile.cpus_max or profile.cpus
    bounds = {
        "memory_bytes": int(profile.memory_max or profile.memory),
        "cpu_millis": round(cpus_max * _MILLIS),
        "pids": profile.pids_max or profile.pids,
        "tmp_bytes": int(profile.tmp_max or profile.tmp),
    }
    for name, most in bounds.items():
        if asked.get(name, 0) > most:
            raise ProfileForbids(profile.name, f"resources.{name}", f"at most {most}")
    changes: dict[str, Any] = {}
    if "memory_bytes" in asked:
        memory = asked["memory_bytes"]
        changes["memory"] = ByteSize(memory)
        shm = min(int(profile.shm), max(limits.MIB, memory // 16))
        changes["shm"] = ByteSize(shm)
        tmp = min(int(profile.tmp), memory // 2 - shm)
        if tmp < limits.SPILL_TOTAL_BYTES_MAX:
            rule = "half of it must hold `/tmp` with room for what commands spill"
            raise ProfileForbids(profile.name, "resources.memory_bytes", rule)
        changes["tmp"] = ByteSize(tmp)
    if "tmp_bytes" in asked:
        changes["tmp"] = ByteSize(asked["tmp_bytes"])
    if "cpu_millis" in asked:
        changes["cpus"] = asked["cpu_millis"] / _MILLIS
    if "pids" in asked:
        changes["pids"] = asked["pids"]
    return changes


def _with(profile: ProfileSettings, changes: Mapping[str, Any]) -> ProfileSettings:
    if not changes:
        return profile
    try:
        return ProfileSettings.model_validate({**profile.model_dump(), **changes})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "resources"
        raise ProfileForbids(profile.name, where, first["msg"]) from None
