"""Where the daemon may listen (contract.md 7)."""

from __future__ import annotations

import pytest

from sandboxd.errors import EXIT_ADDRESS, EXIT_CONFIG, EXIT_UNSAFE, StartupError
from sandboxd.rpc import address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:50051", "127.0.0.1:50051"),
        ("127.9.9.9:1", "127.9.9.9:1"),
        ("[::1]:50051", "[::1]:50051"),
        ("localhost:0", "127.0.0.1:0"),
        ("unix:/run/x.sock", "unix:/run/x.sock"),
        ("unix:///run/x.sock", "unix:/run/x.sock"),
    ],
)
def test_loopback_and_unix_sockets_are_taken(text: str, expected: str) -> None:
    assert address.parse(text, setting="listen").text == expected


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("0.0.0.0:1", EXIT_UNSAFE),
        ("[::]:1", EXIT_UNSAFE),
        ("10.0.0.1:1", EXIT_UNSAFE),
        ("[::ffff:10.0.0.1]:1", EXIT_UNSAFE),
        ("0:1", EXIT_UNSAFE),
        ("no-such-host.invalid:1", EXIT_ADDRESS),
        ("unix:/" + "x" * 200, EXIT_ADDRESS),
        ("127.0.0.1", EXIT_CONFIG),
        (":50051", EXIT_CONFIG),
        ("127.0.0.1:99999", EXIT_CONFIG),
        ("127.0.0.1:x", EXIT_CONFIG),
        ("", EXIT_CONFIG),
    ],
)
def test_everything_else_is_refused_with_its_code(text: str, code: int) -> None:
    with pytest.raises(StartupError) as refused:
        address.parse(text, setting="listen")
    assert refused.value.exit_code == code
    assert "\n" not in str(refused.value)
