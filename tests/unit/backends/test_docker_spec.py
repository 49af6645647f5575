"""What a container is made of, as a whole value."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from sandboxd.backends.base import SandboxSpec
from sandboxd.backends.docker_spec import (
    ImageFacts,
    Placement,
    container_config,
    group_text,
    image_facts,
    passwd_text,
)
from sandboxd.backends.folders import SessionFolder
from sandboxd.config import ProfileSettings
from sandboxd.errors import CreateFailed

IMAGE = ImageFacts(
    name="sandboxd/base:dev",
    id="sha256:" + "a" * 64,
    digest="sha256:" + "b" * 64,
    env={"PATH": "/usr/bin", "LD_PRELOAD": "/evil.so"},
)
PLACE = Placement(
    worker="worker-1",
    folder=SessionFolder(Path("/state/s/0123456789abcdef")),
    toolbox=Path("/state/toolbox/ffff"),
    guest_argv=("/.sandboxd/toolbox/bin/start", "guest.pyz"),
    rg_argv=("/.sandboxd/toolbox/bin/rg",),
    uid=60_123,
    gid=60_123,
    cpus=2.0,
    own_accounts=True,
)


def spec(**profile: Any) -> SandboxSpec:
    return SandboxSpec("0123456789abcdef", 3, ProfileSettings(**profile), {"TOKEN": "session's"})


def bind(source: str, target: str, *, read_only: bool) -> dict[str, Any]:
    return {
        "Type": "bind",
        "Source": source,
        "Target": target,
        "ReadOnly": read_only,
        "BindOptions": {"Propagation": "rprivate", "NonRecursive": True},
    }


def test_default_profile_gives_exactly_this_container() -> None:
    mib = 1024 * 1024
    small = "rw,nosuid,nodev,exec,mode=1777,uid=60123,gid=60123,size=67108864"
    folder = "/state/s/0123456789abcdef"
    assert container_config(spec(), IMAGE, PLACE) == {
        "Image": "sha256:" + "a" * 64,
        "User": "60123:60123",
        "WorkingDir": "/workspace",
        "Hostname": "0123456789ab",
        "Entrypoint": [
            *["/.sandboxd/toolbox/bin/start", "guest.pyz"],
            *["--mode", "container"],
            *["--socket", "/.sandboxd/session/guest.sock"],
            *["--secret-file", "/.sandboxd/session/secret"],
            *["--workdir", "/workspace"],
            *["--home", "/home/sandbox"],
            *["--user", "sandbox"],
            *["--rg-argv", '["/.sandboxd/toolbox/bin/rg"]'],
            *["--search", "auto"],
            *["--base-env", '{"PATH":"/usr/bin","LD_PRELOAD":"/evil.so"}'],
        ],
        "Cmd": [],
        "Env": [],
        "Labels": {
            "sandboxd.worker": "worker-1",
            "sandboxd.resource": "0123456789abcdef",
            "sandboxd.generation": "3",
        },
        "Healthcheck": {"Test": ["NONE"]},
        "StopSignal": "SIGKILL",
        "Tty": False,
        "OpenStdin": False,
        "AttachStdin": False,
        "AttachStdout": False,
        "AttachStderr": False,
        "NetworkDisabled": True,
        "HostConfig": {
            "Runtime": "runc",
            "NetworkMode": "none",
            "IpcMode": "private",
            "CgroupnsMode": "private",
            "Privileged": False,
            "CapAdd": [],
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges:true"],
            "ReadonlyRootfs": True,
            "Memory": 2048 * mib,
            "MemorySwap": 2048 * mib,
            "NanoCpus": 2_000_000_000,
            "PidsLimit": 512,
            "ShmSize": 64 * mib,
            "OomScoreAdj": 0,
            "OomKillDisable": False,
            "Ulimits": [
                {"Name": "core", "Soft": 0, "Hard": 0},
                {"Name": "nofile", "Soft": 4096, "Hard": 4096},
            ],
            "Init": False,
            "AutoRemove": False,
            "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
            "LogConfig": {"Type": "json-file", "Config": {"max-size": "64k", "max-file": "1"}},
            "Tmpfs": {
                "/run": small,
                "/var/tmp": small,
                "/tmp": "rw,nosuid,nodev,exec,mode=1777,uid=60123,gid=60123,size=536870912",
            },
            "Mounts": [
                bind(f"{folder}/store/workspace", "/workspace", read_only=False),
                bind(f"{folder}/store/home", "/home/sandbox", read_only=False),
                bind("/state/toolbox/ffff", "/.sandboxd/toolbox", read_only=True),
                bind(f"{folder}/run", "/.sandboxd/session", read_only=True),
                bind(f"{folder}/passwd", "/etc/passwd", read_only=True),
                bind(f"{folder}/group", "/etc/group", read_only=True),
            ],
        },
    }


def test_limits_of_the_profile_reach_the_container() -> None:
    made = container_config(
        spec(memory="1GiB", pids=64, tmp="64MiB", shm="8MiB", open_files=256),
        IMAGE,
        dataclasses.replace(PLACE, cpus=0.5),
    )["HostConfig"]
    assert made["Memory"] == made["MemorySwap"] == 1024**3
    assert (made["NanoCpus"], made["PidsLimit"]) == (500_000_000, 64)
    assert made["ShmSize"] == 8 * 1024**2
    assert made["Tmpfs"]["/tmp"].endswith("size=67108864")


def test_s12_image_with_volumes_gets_bounded_tmpfs_over_them() -> None:
    image = dataclasses.replace(IMAGE, volumes=("/data/", "/var/tmp", "/workspace", "/srv/x"))
    host = container_config(spec(), image, PLACE)["HostConfig"]
    assert set(host["Tmpfs"]) == {"/data", "/srv/x", "/run", "/var/tmp", "/tmp"}
    assert host["Tmpfs"]["/data"].endswith("size=67108864")
    assert len([mount for mount in host["Mounts"] if mount["Target"] == "/workspace"]) == 1


@pytest.mark.parametrize("volume", ["/", "/.sandboxd/toolbox", "/etc/passwd", "/proc/x", "/etc"])
def test_s12_image_with_a_volume_over_what_is_ours_is_refused(volume: str) -> None:
    image = dataclasses.replace(IMAGE, volumes=(volume,))
    with pytest.raises(CreateFailed) as refused:
        container_config(spec(), image, PLACE)
    assert refused.value.reason == "START_FAILED"


def test_image_with_an_environment_too_large_for_an_argument_is_refused() -> None:
    image = dataclasses.replace(IMAGE, env={"A": "x" * 100_000})
    with pytest.raises(CreateFailed):
        container_config(spec(), image, PLACE)


def test_own_user_of_an_image_keeps_the_images_accounts() -> None:
    place = dataclasses.replace(PLACE, uid=1000, gid=1000, own_accounts=False)
    made = container_config(spec(user="image"), IMAGE, place)
    assert made["User"] == "1000:1000"
    targets = {mount["Target"] for mount in made["HostConfig"]["Mounts"]}
    assert not targets & {"/etc/passwd", "/etc/group"}


def test_s15_labels_and_name_hold_nothing_of_the_session() -> None:
    made = json.dumps(container_config(spec(description="a secret project"), IMAGE, PLACE))
    assert "session's" not in made
    assert "secret project" not in made


def test_image_facts_prefer_the_repository_digest() -> None:
    inspected = {
        "Id": "sha256:id",
        "RepoDigests": ["debian@sha256:repo"],
        "Config": {
            "Env": ["A=b=c", "strange", "=a=b", "=", "E="],
            "User": "7",
            "Volumes": {"/data": {}},
        },
    }
    facts = image_facts("debian", inspected)
    assert (facts.id, facts.digest, facts.user) == ("sha256:id", "sha256:repo", "7")
    assert facts.env == {"A": "b=c", "E": ""}
    assert tuple(facts.volumes) == ("/data",)
    assert image_facts("x", {"Id": "sha256:id", "Config": None}).digest == "sha256:id"


def test_accounts_name_the_sessions_user_and_nobody_else_with_its_uid() -> None:
    rows = [row.split(":") for row in passwd_text(60_123, 60_124).splitlines()]
    assert [row[0] for row in rows if row[2] == "60123"] == ["sandbox"]
    assert all(len(row) == 7 for row in rows)
    assert "sandbox:x:60124:" in group_text(60_124)
    as_root = [row.split(":") for row in passwd_text(0, 0).splitlines()]
    assert [row[0] for row in as_root if row[2] == "0"] == ["root"]
    assert as_root[0][5] == "/home/sandbox"
