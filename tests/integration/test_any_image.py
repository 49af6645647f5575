"""Any Linux image can be a sandbox: it works, or its start says what of the image is in the way.

The images are those of `tests/images/recipes.py`. One daemon has a profile for each.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from sandbox_adapter.client import AdapterClient
from sandbox_adapter.errors import AdapterError
from sandbox_adapter.v1 import error_pb2, tool_pb2
from tests.images.recipes import RECIPES, image
from tests.integration.daemon_process import DaemonProcess, containers_of, docker
from tests.integration.tool_round import assert_bash, assert_five_tools, said, sandbox

pytestmark = [pytest.mark.docker, pytest.mark.timeout(240)]

BASE_PROFILES = {
    "base": "",
    "base-root": 'user = "0:0"\nallow_root = true\n',
    "base-writable": "read_only_root = false\n",
    "base-writable-root": 'user = "0:0"\nallow_root = true\nread_only_root = false\n',
    "base-huge": 'user = "999999999:999999998"\n',
    "base-image-root": 'user = "image"\nallow_root = true\n',
}

WORKING = {
    **dict.fromkeys(BASE_PROFILES, "/bin/bash"),
    "busybox": "/bin/sh",
    "musl": "/bin/sh",
    "odd-home-moved": "/bin/sh",
    "odd-toolbox-full": "/bin/sh",
    "odd-tmp-link": "/bin/sh",
    "odd-tmp-read-only": "/bin/sh",
    "odd-etc-link": "/bin/sh",
    "odd-proc-file": "/bin/sh",
    "odd-sh-script": "/bin/sh",
    "odd-sh-on-path": "/busybox/sh",
    "odd-bash-crashes": "/bin/sh",
    "odd-bash-silent": "/bin/sh",
    "odd-bash-hangs": "/bin/sh",
    "odd-bash-no-loader": "/bin/sh",
    "odd-bash-foreign": "/bin/sh",
    "odd-configured": "/bin/sh",
    "odd-environment": "/bin/bash",
    "odd-path-empty": "/bin/sh",
    "odd-path-hostile": "/bin/sh",
    "odd-volumes": "/bin/sh",
    "odd-user-name": "/bin/sh",
    "odd-user-huge": "/bin/sh",
}
"""Profile and the shell that its sessions get."""

WITHOUT_A_SHELL = {
    "shellless": "has no bash and no sh.",
    "odd-sh-folder": "(/bin/sh: no executable file)",
    "odd-sh-dangling": "(/bin/sh: No such file or directory)",
    "odd-sh-forbidden": "(/bin/sh: no executable file)",
    "odd-sh-foreign": "(/bin/sh: Exec format error)",
    "odd-sh-circle": "(/bin/sh: Too many levels of symbolic links)",
}

IN_THE_WAY = "at or above `{}` is in the way of a mount"
REFUSED = {
    "odd-workspace-file": ("START_FAILED", IN_THE_WAY.format("/workspace"), "/workspace"),
    "odd-home-file": ("START_FAILED", IN_THE_WAY.format("/home/sandbox"), "not a directory"),
    "odd-mount-file": ("START_FAILED", IN_THE_WAY.format("/.sandboxd/toolbox"), "not a directory"),
    "odd-toolbox-file": (
        *("START_FAILED", IN_THE_WAY.format("/.sandboxd/toolbox"), "not a directory"),
    ),
    "odd-tmp-file": ("START_FAILED", IN_THE_WAY.format("/tmp"), "not a directory"),
    "odd-passwd-folder": ("START_FAILED", IN_THE_WAY.format("/etc/passwd"), "is a directory"),
    "odd-workspace-link": (
        "GUEST_NOT_READY",
        "ended before",
        "`/workspace`, which leads to `/etc`",
    ),
    "odd-home-link": ("GUEST_NOT_READY", "ended before", "`/home/sandbox`, which leads to `/etc`"),
    "odd-home-hidden": (
        *("GUEST_NOT_READY", "ended before"),
        "which leads to `/var/tmp/sandbox`, below another mount",
    ),
    "odd-mount-link": ("GUEST_NOT_READY", "ended before", "which leads to `/workspace/toolbox`"),
    "odd-toolbox-link": ("GUEST_NOT_READY", "ended before", "which leads to `/bin`"),
    "odd-volume-inside": ("START_FAILED", "a volume at `/workspace/data`", "a volume at"),
    "odd-user-unknown": (
        "START_FAILED",
        "cannot be told",
        "'nobody-here'; the image's /etc/passwd",
    ),
    "odd-user-no-accounts": ("START_FAILED", "cannot be told", "'app'; the image's /etc/passwd"),
    "odd-user-root-by-name": ("START_FAILED", "lacks `allow_root = true`", "is root"),
    "odd-user-too-huge": ("START_FAILED", "impossible number", "'4294967294'"),
}
"""Profile, reason, what the caller is told, and what the operator's log says."""


@pytest.fixture(scope="module")
def images_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    config = "[profiles.default]\n"
    for name, settings in BASE_PROFILES.items():
        config += f"[profiles.{name}]\n{settings}"
    for name in RECIPES:
        config += f'[profiles.{name}]\nimage = "{image(name)}"\n'
        config += 'user = "image"\n' if "-user-" in name else ""
    state_dir = tmp_path_factory.mktemp("images") / "state"
    daemon = DaemonProcess("docker", state_dir, config=config)
    try:
        yield daemon.start()
    finally:
        daemon.end_for_good()


@pytest.mark.parametrize("profile", WORKING)
async def test_six_tools_work(images_daemon: DaemonProcess, profile: str) -> None:
    async with sandbox(images_daemon, profile) as session:
        assert session.session.effective.shell == WORKING[profile]
        assert session.session.effective.search_engine.startswith("ripgrep ")
        await assert_five_tools(session)
        await assert_bash(session)


@pytest.mark.parametrize("profile", WITHOUT_A_SHELL)
async def test_without_a_shell_bash_says_so_and_the_other_tools_work(
    images_daemon: DaemonProcess, profile: str
) -> None:
    async with sandbox(images_daemon, profile) as session:
        assert session.session.effective.shell == ""
        result = await session.bash("echo x")
        assert result.is_error
        assert result.reason == error_pb2.REASON_SHELL_MISSING
        assert result.ending == tool_pb2.ENDING_COMPLETED
        assert WITHOUT_A_SHELL[profile] in result.text
        assert "The other tools work" in result.text
        await assert_five_tools(session)


@pytest.mark.parametrize("profile", REFUSED)
async def test_image_that_is_in_the_way_is_refused_with_the_cause_and_nothing_stays(
    images_daemon: DaemonProcess, profile: str
) -> None:
    reason, told, logged = REFUSED[profile]
    logged_before = len(images_daemon.log)
    async with AdapterClient(images_daemon.address) as client:
        with pytest.raises(AdapterError) as failed:
            await client.create_session(profile=profile)
    assert failed.value.reason == reason
    assert told in failed.value.failure.text
    # The host's own paths are the operator's alone.
    assert str(images_daemon.state_dir) not in failed.value.failure.text
    assert logged in images_daemon.log[logged_before:]
    assert containers_of(images_daemon.state_dir) == []
    assert list((images_daemon.state_dir / "s").iterdir()) == []


async def test_commands_run_on_musl(images_daemon: DaemonProcess) -> None:
    async with sandbox(images_daemon, "musl") as session:
        assert "/lib/ld-musl-" in await said(session, "cat /proc/$$/maps; true")


@pytest.mark.parametrize(
    ("profile", "ids", "name"),
    [
        ("odd-user-name", "1234 2345", "app"),
        ("odd-user-linked", "1234 2345", "app"),
        ("odd-user-group", "1234 3456", "app"),
        ("odd-user-number", "4321 4321", "sandbox"),
        ("odd-user-huge", "2147483647 2147483646", "sandbox"),
    ],
)
async def test_user_of_the_image_is_found_without_running_it(
    images_daemon: DaemonProcess, profile: str, ids: str, name: str
) -> None:
    async with sandbox(images_daemon, profile) as session:
        text = await said(session, "echo $(id -u) $(id -g) $USER; touch f; stat -c '%u %g' f")
        assert text == f"{ids} {name}\n{ids}\n"
        # The container that was asked has gone before the session's own was made.
        assert len(containers_of(images_daemon.state_dir)) == 1


@pytest.mark.parametrize(
    ("profile", "root_is_writable"),
    [("base", False), ("base-root", False), ("base-writable", False), ("base-writable-root", True)],
)
async def test_root_folder_is_as_writable_as_the_profile_and_the_user_allow(
    images_daemon: DaemonProcess, profile: str, root_is_writable: bool
) -> None:
    async with sandbox(images_daemon, profile) as session:
        result = await session.bash("echo x > /new && cat /new; grep CapEff /proc/self/status")
        assert ("x\n" in result.text) is root_is_writable
        assert "CapEff:\t0000000000000000" in result.text


async def test_configuration_of_the_image_configures_nothing(images_daemon: DaemonProcess) -> None:
    async with sandbox(images_daemon, "odd-configured") as session:
        text = await said(session, "echo $HOME $PWD $USER $SHELL ${OLDPWD-unset}; pwd")
        assert text == "/home/sandbox /workspace sandbox /bin/sh unset\n/workspace\n"
        (container,) = containers_of(images_daemon.state_dir)
        found = json.loads(docker("inspect", container))[0]["Config"]
        assert found["Healthcheck"]["Test"] == ["NONE"]
        assert found["StopSignal"] == "SIGKILL"
        assert "x" not in found["Labels"].values()


async def test_environment_of_the_image_reaches_commands_and_nothing_else(
    images_daemon: DaemonProcess,
) -> None:
    async with sandbox(images_daemon, "odd-environment") as session:
        result = await session.bash("echo ${BASH_ENV-unset} ${ENV-unset} $LC_ALL $PYTHONHOME $HOME")
        # What bash and its loader say of the variables is the image's own doing.
        assert result.text.endswith("\nunset unset xx /nowhere /home/sandbox\n")
        assert "INJECTED" not in result.text


async def test_path_of_the_image_is_kept_unless_it_is_empty(images_daemon: DaemonProcess) -> None:
    async with sandbox(images_daemon, "odd-path-empty") as session:
        assert "/usr/bin" in await said(session, "echo $PATH; ls")
    async with sandbox(images_daemon, "odd-path-hostile") as session:
        assert await said(session, "echo $PATH") == "/evil:.::/nonexistent\n"
        await session.tool("write", path="a", content="needle\n")
        assert (await session.tool("grep", pattern="needle")).text == "a:1:needle"


async def test_volumes_of_the_image_are_covered_and_bounded(images_daemon: DaemonProcess) -> None:
    async with sandbox(images_daemon, "odd-volumes") as session:
        await said(
            session, "echo x > /data/x; echo x > /workspace/x; echo x > /tmp/x; echo x > ~/x"
        )
        (container,) = containers_of(images_daemon.state_dir)
        mounts = json.loads(docker("inspect", container))[0]["Mounts"]
        assert [mount for mount in mounts if mount["Type"] == "volume"] == []
        filled = await session.bash("head -c 100M /dev/zero > /data/big")
        assert filled.exit_code != 0
