"""The command line as an operator meets it: one clear line and a documented exit code."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandboxd.config import load_settings
from sandboxd.errors import (
    EXIT_ADDRESS,
    EXIT_CONFIG,
    EXIT_ENGINE,
    EXIT_STATE,
    EXIT_UNSAFE,
    ConfigError,
)

START_S_MAX = 30.0


def _command(state_dir: Path, *arguments: str) -> list[str]:
    own = ["--state-dir", str(state_dir), "--listen", "127.0.0.1:0", "--metrics", "off"]
    return [sys.executable, "-m", "sandboxd", "serve", *own, *arguments]


def _refused(command: list[str], **environment: str) -> tuple[int, str]:
    """Exit code and the one error line of a command that must not start."""
    ended = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=START_S_MAX,
        check=False,
        env={**os.environ, **environment},
    )
    lines = ended.stderr.splitlines()
    errors = [line for line in lines if line.startswith("sandboxd: error: ")]
    assert len(errors) == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.returncode, errors[0].removeprefix("sandboxd: error: ")


@contextmanager
def _serving(command: list[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A daemon of the local backend, and its ready line."""
    command = [*command, "--backend", "local", "--allow-unsafe-local"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        ready = ""
        while not ready.startswith("sandboxd 0"):
            ready = process.stderr.readline()
            assert ready, "the daemon ended before it was ready"
        yield process, ready
    finally:
        process.kill()
        process.wait(START_S_MAX)
        assert process.stderr is not None
        process.stderr.close()


def test_wrong_key_in_the_settings_names_the_nearest(tmp_path: Path) -> None:
    config = tmp_path / "sandboxd.toml"
    config.write_text("sesions_max = 3\n")
    code, line = _refused(_command(tmp_path / "state", "--config", str(config)))
    assert code == EXIT_CONFIG
    assert "`sesions_max`" in line
    assert "`sessions_max`" in line
    assert not (tmp_path / "state").exists()


def test_wrong_key_in_a_profile_names_its_place(tmp_path: Path) -> None:
    config = tmp_path / "sandboxd.toml"
    config.write_text('[profiles.default]\nmemmory = "1GiB"\n')
    code, line = _refused(_command(tmp_path / "state", "--config", str(config)))
    assert code == EXIT_CONFIG
    assert "`profiles.default.memmory`" in line
    assert "`memory`" in line


@pytest.mark.parametrize("user", ["0:0", "0:5", "00:0", "000000000:7"])
def test_profile_that_is_root_by_its_number_needs_to_say_so(tmp_path: Path, user: str) -> None:
    config = tmp_path / "sandboxd.toml"
    config.write_text(f'[profiles.default]\nuser = "{user}"\n')
    with pytest.raises(ConfigError, match=f'`user = "{user}"` needs `allow_root = true`'):
        load_settings(config, {})
    config.write_text(f'[profiles.default]\nuser = "{user}"\nallow_root = true\n')
    assert load_settings(config, {}).profiles["default"].user == user
    config.write_text('[profiles.default]\nuser = "10:0"\n')
    assert load_settings(config, {}).profiles["default"].user == "10:0"


@pytest.mark.parametrize("text", ["listen = [", "\x00", "sessions_max = []"])
def test_settings_that_cannot_be_read_are_refused(tmp_path: Path, text: str) -> None:
    config = tmp_path / "sandboxd.toml"
    config.write_text(text)
    code, _ = _refused(_command(tmp_path / "state", "--config", str(config)))
    assert code == EXIT_CONFIG


def test_unknown_flag_is_one_line(tmp_path: Path) -> None:
    code, line = _refused(_command(tmp_path / "state", "--frobnicate"))
    assert code == EXIT_CONFIG
    assert "--frobnicate" in line


@pytest.mark.parametrize("flag", ["--listen", "--metrics"])
@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:50051"])
def test_address_that_others_can_reach_is_refused(tmp_path: Path, flag: str, address: str) -> None:
    """Security: without TLS and tokens only loopback and Unix sockets (contract.md 7)."""
    code, line = _refused(_command(tmp_path / "state", flag, address))
    assert code == EXIT_UNSAFE
    assert address in line


def test_local_backend_needs_its_flag(tmp_path: Path) -> None:
    code, line = _refused(_command(tmp_path / "state", "--backend", "local"))
    assert code == EXIT_UNSAFE
    assert "--allow-unsafe-local" in line


@pytest.mark.parametrize("flag", ["--listen", "--metrics"])
def test_busy_port_is_refused(tmp_path: Path, flag: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = _command(tmp_path / "state", flag, address, "--backend", "local")
        code, line = _refused([*command, "--allow-unsafe-local"])
    assert code == EXIT_ADDRESS
    assert address in line


def test_port_of_a_running_daemon_is_refused_to_the_next(tmp_path: Path) -> None:
    """Regression guard: gRPC shares ports between processes unless told otherwise."""
    with _serving(_command(tmp_path / "one")) as (_, ready):
        address = ready.split("listening on ")[1].split()[0]
        command = _command(tmp_path / "two", "--listen", address, "--backend", "local")
        code, line = _refused([*command, "--allow-unsafe-local"])
    assert code == EXIT_ADDRESS
    assert address in line


def test_state_folder_in_use_is_refused(tmp_path: Path) -> None:
    with _serving(_command(tmp_path / "state")):
        command = _command(tmp_path / "state", "--backend", "local", "--allow-unsafe-local")
        code, line = _refused(command)
    assert code == EXIT_STATE
    assert "in use" in line


def test_state_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    command = _command(tmp_path / "file" / "state", "--backend", "local", "--allow-unsafe-local")
    code, _ = _refused(command)
    assert code == EXIT_STATE


def test_engine_that_cannot_be_reached_is_refused(tmp_path: Path) -> None:
    socket_path = tmp_path / "no-engine.sock"
    code, line = _refused(_command(tmp_path / "state"), DOCKER_HOST=f"unix://{socket_path}")
    assert code == EXIT_ENGINE
    assert "engine" in line


def test_unix_socket_of_a_dead_daemon_is_taken_over_and_removed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "d.sock"
    with _serving(_command(tmp_path / "state", "--listen", f"unix:{path}")) as (first, _):
        assert path.stat().st_mode & 0o077 == 0
        first.kill()
        first.wait(START_S_MAX)
        assert path.exists()
        with _serving(_command(tmp_path / "state", "--listen", f"unix:{path}")) as (second, ready):
            assert f"unix:{path}" in ready
            other = _command(tmp_path / "other", "--listen", f"unix:{path}")
            code, _ = _refused([*other, "--backend", "local", "--allow-unsafe-local"])
            assert code == EXIT_ADDRESS
            second.terminate()
            assert second.wait(START_S_MAX) == 0
    assert not path.exists()


def test_sigterm_ends_an_idle_daemon_at_once_with_code_0(tmp_path: Path) -> None:
    with _serving(_command(tmp_path / "state")) as (process, _):
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(START_S_MAX) == 0
        assert time.monotonic() - began < 5.0


def test_version_prints_one_line() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "sandboxd", "version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=START_S_MAX,
    )
    assert ended.stdout.startswith("sandboxd 0.")


def test_help_documents_every_exit_code() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "sandboxd", "serve", "--help"],
        capture_output=True,
        text=True,
        check=True,
        timeout=START_S_MAX,
    )
    for code in range(8):
        assert f"\n  {code}  " in ended.stdout
