"""What a container of the `docker` backend is: a pure function from facts to configuration.

Every hardening setting is here and nowhere else. The image configures nothing
(security S12): entrypoint, user, working folder, stop signal, health check and
log are set; its environment reaches commands through the guest only; folders that
it declares as volumes are covered by small tmpfs.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sandboxd.backends.base import SandboxFacts, SandboxSpec
from sandboxd.backends.folders import SECRET_NAME, SessionFolder
from sandboxd.backends.listener import SOCKET_NAME
from sandboxd.errors import CreateFailed
from sandboxd.limits import KIB, MIB

WORKSPACE: Final = "/workspace"
HOME: Final = "/home/sandbox"
TOOLBOX: Final = "/.sandboxd/toolbox"
RUN: Final = "/.sandboxd/session"
USER_NAME: Final = "sandbox"

LABEL_WORKER: Final = "sandboxd.worker"
LABEL_RESOURCE: Final = "sandboxd.resource"
LABEL_GENERATION: Final = "sandboxd.generation"

SMALL_TMPFS_BYTES: Final = 64 * MIB
"""Each further tmpfs: those of the profile, and covers of the image's volumes."""
VOLUMES_MAX: Final = 16
BASE_ENV_BYTES_MAX: Final = 96 * KIB
"""The image's environment as one argument; the kernel takes 128 KiB."""
_LOG_BYTES_MAX: Final = "64k"
_OWN: Final = (WORKSPACE, HOME, "/.sandboxd", "/tmp", "/dev/shm", "/proc", "/sys", "/dev", "/etc")


@dataclass(frozen=True)
class ImageFacts:
    """What matters of an image."""

    name: str
    id: str
    """What the container is made of: a tag may move between inspecting and creating."""
    digest: str
    """Repository digest, or the image's id where it has none."""
    user: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    volumes: Sequence[str] = ()


@dataclass(frozen=True)
class Placement:
    """Where things are on this worker, and as whom the container runs."""

    worker: str
    folder: SessionFolder
    toolbox: Path
    guest_argv: Sequence[str]
    rg_argv: Sequence[str]
    uid: int
    gid: int
    cpus: float
    """The profile's, or all that the worker has where that is less: the engine refuses more."""
    own_accounts: bool
    """Whether passwd and group are the daemon's; an image's own user has its own."""
    user_name: str = USER_NAME
    """What commands find in `USER`, root excepted."""


def image_facts(name: str, inspected: Mapping[str, Any]) -> ImageFacts:
    """Reads the engine's description of an image."""
    config = inspected.get("Config") or {}
    digests = inspected.get("RepoDigests") or []
    # An entry without a name, which some builders let pass, is nobody's.
    env = dict(
        entry.split("=", 1)
        for entry in config.get("Env") or []
        if "=" in entry and not entry.startswith("=")
    )
    return ImageFacts(
        name=name,
        id=str(inspected["Id"]),
        digest=str(digests[0]).rpartition("@")[2] if digests else str(inspected["Id"]),
        user=str(config.get("User") or ""),
        env=env,
        volumes=tuple(config.get("Volumes") or ()),
    )


def granted_facts(
    spec: SandboxSpec, image: ImageFacts, uid: int, gid: int, cpus: float
) -> SandboxFacts:
    """What a container has before its guest has said what the image offers."""
    profile = spec.profile
    return SandboxFacts(
        image=image.name,
        image_digest=image.digest,
        runtime=profile.runtime,
        uid=uid,
        gid=gid,
        memory_bytes=int(profile.memory),
        cpu_millis=round(cpus * 1000),
        pids=profile.pids,
        disk_bytes=0,
        tmp_bytes=int(profile.tmp),
        network=profile.network,
        quota_mechanism="none",
        working_directory=WORKSPACE,
        home_directory=HOME,
        shell="",
        search_engine="",
    )


def container_name(resource_id: str) -> str:
    """Random as the resource id is, so it tells nothing (security S15)."""
    return f"sandboxd-{resource_id}"


def owner_labels(worker: str, resource_id: str) -> list[str]:
    """The filters that find the containers of one sandbox."""
    return [f"{LABEL_WORKER}={worker}", f"{LABEL_RESOURCE}={resource_id}"]


def container_config(spec: SandboxSpec, image: ImageFacts, place: Placement) -> dict[str, Any]:
    """The body of the engine's create call. Raises `CreateFailed`."""
    return {
        "Image": image.id,
        "User": f"{place.uid}:{place.gid}",
        "WorkingDir": WORKSPACE,
        "Hostname": spec.resource_id[:12],
        "Entrypoint": _entrypoint(spec, image, place),
        "Cmd": [],
        "Env": [],
        "Labels": {
            LABEL_WORKER: place.worker,
            LABEL_RESOURCE: spec.resource_id,
            LABEL_GENERATION: str(spec.generation),
        },
        "Healthcheck": {"Test": ["NONE"]},
        "StopSignal": "SIGKILL",
        "Tty": False,
        "OpenStdin": False,
        "AttachStdin": False,
        "AttachStdout": False,
        "AttachStderr": False,
        "NetworkDisabled": spec.profile.network == "none",
        "HostConfig": _host_config(spec, image, place),
    }


def _host_config(spec: SandboxSpec, image: ImageFacts, place: Placement) -> dict[str, Any]:
    profile = spec.profile
    return {
        "Runtime": profile.runtime,
        "NetworkMode": "none" if profile.network == "none" else "bridge",
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "Privileged": False,
        "CapAdd": [],
        "CapDrop": ["ALL"],
        # The engine's default seccomp and AppArmor profiles stay: naming none keeps both.
        "SecurityOpt": ["no-new-privileges:true"],
        "ReadonlyRootfs": profile.read_only_root,
        "Memory": int(profile.memory),
        # Equal to Memory: no swap beside it.
        "MemorySwap": int(profile.memory),
        "NanoCpus": round(place.cpus * 1_000_000_000),
        "PidsLimit": profile.pids,
        "ShmSize": int(profile.shm),
        # The guest raises the score of what it starts, never its own.
        "OomScoreAdj": 0,
        "OomKillDisable": False,
        "Ulimits": [
            {"Name": "core", "Soft": 0, "Hard": 0},
            {"Name": "nofile", "Soft": profile.open_files, "Hard": profile.open_files},
        ],
        "Init": False,
        "AutoRemove": False,
        "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
        # What the guest prints before its hello explains a failed start.
        "LogConfig": {
            "Type": "json-file",
            "Config": {"max-size": _LOG_BYTES_MAX, "max-file": "1"},
        },
        "Tmpfs": _tmpfs(spec, image, place),
        "Mounts": _binds(place),
    }


def _entrypoint(spec: SandboxSpec, image: ImageFacts, place: Placement) -> list[str]:
    base_env = json.dumps(dict(image.env), separators=(",", ":"))
    if len(base_env) > BASE_ENV_BYTES_MAX:
        raise CreateFailed("START_FAILED", "the image's environment is too large")
    return [
        *place.guest_argv,
        *["--mode", "container"],
        *["--socket", f"{RUN}/{SOCKET_NAME}"],
        *["--secret-file", f"{RUN}/{SECRET_NAME}"],
        *["--workdir", WORKSPACE],
        *["--home", HOME],
        *["--user", "root" if place.uid == 0 else place.user_name],
        *["--rg-argv", json.dumps(list(place.rg_argv), separators=(",", ":"))],
        *["--search", spec.profile.search],
        *["--base-env", base_env],
    ]


def _tmpfs(spec: SandboxSpec, image: ImageFacts, place: Placement) -> dict[str, str]:
    def options(size_bytes: int) -> str:
        # Owned by the user: where the folder exists in the image, the runtime gives
        # the mount that folder's mode, whatever is asked for here.
        owner = f"uid={place.uid},gid={place.gid}"
        return f"rw,nosuid,nodev,exec,mode=1777,{owner},size={size_bytes}"

    small = [*spec.profile.writable_tmpfs, *_volumes(image)]
    mounts = {path: options(SMALL_TMPFS_BYTES) for path in small}
    return {**mounts, "/tmp": options(int(spec.profile.tmp))}


def _binds(place: Placement) -> list[dict[str, Any]]:
    folder = place.folder
    binds = [
        _bind(folder.workspace, WORKSPACE, read_only=False),
        _bind(folder.home, HOME, read_only=False),
        _bind(place.toolbox, TOOLBOX, read_only=True),
        _bind(folder.run, RUN, read_only=True),
    ]
    if place.own_accounts:
        binds.append(_bind(folder.passwd, "/etc/passwd", read_only=True))
        binds.append(_bind(folder.group, "/etc/group", read_only=True))
    return binds


def _bind(source: Path, target: str, *, read_only: bool) -> dict[str, Any]:
    return {
        "Type": "bind",
        "Source": str(source),
        "Target": target,
        "ReadOnly": read_only,
        # Nothing that is mounted later on either side shows on the other, and
        # nothing beneath the source comes along.
        "BindOptions": {"Propagation": "rprivate", "NonRecursive": True},
    }


def _volumes(image: ImageFacts) -> list[str]:
    """The image's volumes, each to be covered: it would be writable without a quota."""
    volumes = {posixpath.normpath(volume) for volume in image.volumes}
    # These are mounts of ours already.
    volumes -= {WORKSPACE, HOME, "/tmp"}
    if len(volumes) > VOLUMES_MAX:
        raise CreateFailed("START_FAILED", f"the image has more than {VOLUMES_MAX} volumes")
    for volume in volumes:
        if volume == "/" or any(volume == own or volume.startswith(f"{own}/") for own in _OWN):
            raise CreateFailed("START_FAILED", f"the image declares a volume at `{volume[:80]}`")
    return sorted(volumes)


def passwd_text(uid: int, gid: int) -> str:
    """The accounts inside: the session's user, and root's and nobody's names."""
    rows = [f"{USER_NAME}:x:{uid}:{gid}::{HOME}:/bin/sh"] if uid else []
    root_home = "/root" if uid else HOME
    rows.append(f"root:x:0:0:root:{root_home}:/bin/sh")
    rows.append("nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin")
    return "\n".join(rows) + "\n"


def group_text(gid: int) -> str:
    rows = [f"{USER_NAME}:x:{gid}:"] if gid else []
    return "\n".join([*rows, "root:x:0:", "tty:x:5:", "nogroup:x:65534:"]) + "\n"
