"""The process ops of a real guest, as tests ask for them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.guest.real_guest import Guest, GuestSaidNo, Pending

MIB = 1024 * 1024


class Processes:
    """The process ops of a guest."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest

    def start(
        self, name: str, argv: list[str], env: dict[str, str] | None = None, **args: Any
    ) -> dict[str, Any]:
        body = json.dumps({"argv": argv, "env": env or {}}).encode()
        arguments = {"process_id": name, "cwd": "", **args}
        return self.guest.request("process_start", arguments, body)[0]

    def script(self, name: str, text: str, **args: Any) -> dict[str, Any]:
        return self.start(name, ["sh", "-c", text], **args)

    def wait(self, name: str, wait_s: float = 20.0) -> dict[str, Any]:
        return self.guest.request("process_wait", {"process_id": name, "wait_s": wait_s})[0]

    def read(
        self, name: str, offset: int = 0, stream: str = "stdout", wait_s: float = 0.0
    ) -> tuple[dict[str, Any], bytes]:
        return self.begin_read(name, offset, stream, wait_s).result()

    def begin_read(
        self, name: str, offset: int = 0, stream: str = "stdout", wait_s: float = 20.0
    ) -> Pending:
        args = {"process_id": name, "stream": stream, "offset": offset, "bytes_max": MIB}
        return self.guest.begin("process_read", {**args, "wait_s": wait_s})

    def all(self, name: str, stream: str = "stdout") -> bytes:
        """An output up to its end."""
        data = b""
        while True:
            facts, piece = self.read(name, len(data), stream, 20.0)
            assert facts["dropped"] == 0
            data += piece
            if facts["closed"]:
                return data

    def until(self, name: str, wanted: bytes) -> bytes:
        data = b""
        while wanted not in data:
            facts, piece = self.read(name, len(data), wait_s=20.0)
            data += piece
            assert piece or not facts["closed"], data
        return data

    def write(
        self, name: str, data: bytes, offset: int = 0, wait_s: float = 5.0, **args: Any
    ) -> dict[str, Any]:
        return self.begin_write(name, data, offset, wait_s, **args).result()[0]

    def begin_write(
        self, name: str, data: bytes, offset: int = 0, wait_s: float = 5.0, **args: Any
    ) -> Pending:
        arguments = {"process_id": name, "offset": offset, "wait_s": wait_s, **args}
        return self.guest.begin("process_write", arguments, data)

    def signal(self, name: str, number: int) -> bool:
        args = {"process_id": name, "signal": number}
        delivered: bool = self.guest.request("process_signal", args)[0]["delivered"]
        return delivered

    def list(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        page: dict[str, Any] = {"next": 0}
        while page["next"] is not None:
            page = self.guest.request("process_list", {"after": page["next"]})[0]
            found += page["processes"]
        return found


def refusal(action: Any, *args: Any, **how: Any) -> str:
    with pytest.raises(GuestSaidNo) as said:
        action(*args, **how)
    return said.value.reason
