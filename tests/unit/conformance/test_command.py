"""The command line: what it says and which code it ends with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sandbox_adapter.conformance import access

COMMAND = [sys.executable, "-m", "sandbox_adapter.conformance"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], check=False, capture_output=True, text=True, timeout=50
    )


def test_list_shows_every_rule_and_asks_nobody() -> None:
    done = run("--list")
    assert done.returncode == 0
    assert "read.final-newline" in done.stdout
    assert len(done.stdout.splitlines()) > 100


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--target is missing"),
        (["--target", "x", "--jobs", "0"], "--jobs must be from 1 to 16"),
        (["--target", "x", "--select", "no.such-rule"], "no rule has such an id"),
        (["--target", "x", "--tls-cert", "c"], "--tls-cert and --tls-key go together"),
        (["--target", "x", "--token-file", "/none"], "cannot read `/none`"),
        (["--target", "x", "--known-differences", "/none"], "cannot read `/none`"),
        (["--target", "x", "--junit", "/none/x.xml"], "cannot write `/none/x.xml`"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(arguments: list[str], said: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("token", [b"", b" \n", "schlüssel".encode(), b"two words", b"a\nb"])
def test_file_that_holds_no_token_is_wrong_usage(tmp_path: Path, token: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(token)
    done = run("--target", "localhost:1", "--token-file", str(path))
    assert done.returncode == 2
    assert done.stderr == f"conformance: `{path}` holds no token: one word of printable ASCII\n"


def test_token_goes_nowhere_in_the_clear(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("secret\n")
    done = run("--target", "example.org:50051", "--token-file", str(path))
    assert done.returncode == 2
    assert "--token-file needs --tls-ca" in done.stderr


@pytest.mark.parametrize(
    ("target", "stays"),
    [
        ("unix:/run/x.sock", True),
        ("unix-abstract:x", True),
        ("127.0.0.1:50051", True),
        ("127.9.9.9:1", True),
        ("[::1]:50051", True),
        ("localhost:50051", True),
        ("dns:///localhost:1", True),
        ("ipv4:127.0.0.1:1", True),
        ("10.0.0.1:50051", False),
        ("example.org:50051", False),
        ("localhost.example.org:1", False),
        ("dns://8.8.8.8/localhost:1", False),
        ("ipv4:127.0.0.1:1,10.0.0.1:1", False),
        ("[::]:50051", False),
        ("0.0.0.0:1", False),
        ("", False),
    ],
)
def test_which_addresses_stay_on_the_machine(target: str, stays: bool) -> None:
    assert access.stays_here(target) is stays


@pytest.mark.parametrize("module", ["grpc_health", "grpc_reflection", "rich"])
def test_missing_extra_is_named_and_no_traceback(module: str) -> None:
    script = (
        f"import runpy, sys; sys.modules[{module!r}] = None; sys.argv[1:] = ['--list'];"
        "runpy.run_module('sandbox_adapter.conformance', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 2
    assert "pip install '.[conformance]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_adapter_that_does_not_answer_is_code_3(tmp_path: Path) -> None:
    done = run("--target", f"unix:{tmp_path}/none.sock", "--connect-timeout", "1")
    assert done.returncode == 3
    assert "does not answer" in done.stderr
