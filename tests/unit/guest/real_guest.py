"""A real guest: its own process, in mode `local`, connected over a real socket."""

from __future__ import annotations

import contextlib
import json
import os
import py_compile
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import zipfile
from pathlib import Path
from typing import Any

from sandboxd.guest import protocol

GUEST_SOURCES = Path(protocol.__file__).parent
START = "from guest.__main__ import main\n\nraise SystemExit(main())\n"
REPLY_S = 30.0
BOOT = "b-test"


class GuestSaidNo(Exception):
    """The guest answered with an error."""

    def __init__(self, reason: str, text: str, facts: dict[str, Any]) -> None:
        super().__init__(f"{reason}: {text}")
        self.reason = reason
        self.text = text
        self.facts = facts


class Pending:
    """A request on its way; `result` waits for the answer."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._header: dict[str, Any] = {}
        self._body = b""

    def settle(self, header: dict[str, Any], body: bytes) -> None:
        self._header, self._body = header, body
        self._done.set()

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def result(self, timeout_s: float = REPLY_S) -> tuple[dict[str, Any], bytes]:
        if not self._done.wait(timeout_s):
            raise TimeoutError(f"no answer within {timeout_s} s")
        error = self._header.get("error")
        if error is not None:
            raise GuestSaidNo(error["reason"], error["text"], error["facts"])
        return self._header["ok"], self._body


class GuestSide:
    """The daemon's side of a guest's connection.

    `request` may be called from any thread; `begin` does not wait.
    """

    def __init__(self, run: Path) -> None:
        self.secret = secrets.token_hex(16)
        self.secret_file = run / "secret"
        self.secret_file.write_text(self.secret)
        self.socket_path = str(run / "s")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(self.socket_path)
        self.listener.listen(4)
        self.listener.settimeout(REPLY_S)
        self._lock = threading.Lock()
        self._waiting: dict[int, Pending] = {}
        self._last_id = 0
        self._call_ids: dict[int, str] = {}
        self._answered: list[str] = []
        self.records = True
        """Whether the next request says of answered calls that they are recorded."""
        self.hello: dict[str, Any] = {}

    def accept(self) -> None:
        """Takes the guest's next connection and greets it."""
        self.sock, _ = self.listener.accept()
        self.sock.settimeout(REPLY_S)
        header, _ = read_message(self.sock)
        self.hello = header["hello"]
        self.send({"welcome": {"protocol": protocol.PROTOCOL_VERSION, "boot": BOOT}})
        self.sock.settimeout(None)
        self._reader = threading.Thread(target=self._read, args=(self.sock,))
        self._reader.start()

    def disconnect(self) -> None:
        """Closes the connection; the guest dials again."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self.sock.close()
        with self._lock:
            self._waiting.clear()

    def send(self, header: dict[str, Any], body: bytes = b"") -> None:
        for buffer in protocol.encode_frames(header, body):
            self.sock.sendall(buffer)

    def expect(self, id_: int) -> Pending:
        """For a test that sends the frames of request `id_` itself."""
        pending = Pending()
        with self._lock:
            self._waiting[id_] = pending
            self._last_id = max(self._last_id, id_)
        return pending

    def begin(self, op: str, args: dict[str, Any] | None = None, body: bytes = b"") -> Pending:
        pending = Pending()
        with self._lock:
            self._last_id += 1
            self._waiting[self._last_id] = pending
            recorded: list[str] = []
            if self.records:
                recorded, self._answered = self._answered, []
            self.send(
                {
                    "id": self._last_id,
                    "boot": BOOT,
                    "op": op,
                    "args": args or {},
                    "recorded": recorded,
                },
                body,
            )
            if "call_id" in (args or {}):
                self._call_ids[self._last_id] = (args or {})["call_id"]
        return pending

    def request(
        self,
        op: str,
        args: dict[str, Any] | None = None,
        body: bytes = b"",
        timeout_s: float = REPLY_S,
    ) -> tuple[dict[str, Any], bytes]:
        return self.begin(op, args, body).result(timeout_s)

    def _read(self, sock: socket.socket) -> None:
        bodies: dict[int, list[bytes]] = {}
        headers: dict[int, dict[str, Any]] = {}
        while True:
            try:
                header, body = read_message(sock)
            except (ConnectionError, OSError):
                return
            id_ = header["id"]
            headers.setdefault(id_, header)
            bodies.setdefault(id_, []).append(body)
            if header.get("more"):
                continue
            with self._lock:
                pending = self._waiting.pop(id_, None)
                if id_ in self._call_ids:
                    self._answered.append(self._call_ids.pop(id_))
            if pending is not None:
                pending.settle(headers.pop(id_), b"".join(bodies.pop(id_)))


class Guest(GuestSide):
    """A guest process in mode `local`, with folders of its own."""

    def __init__(
        self,
        zipapp: Path,
        *,
        rg_argv: list[str] | None = None,
        search: str = "auto",
        path: str | None = None,
    ) -> None:
        """`path`: what commands and the search for a grep have as PATH."""
        self.root = Path(tempfile.mkdtemp(prefix="guest-", dir="/tmp"))
        self.workdir = self.root / "workspace"
        self.home = self.root / "home"
        run = self.root / "run"
        for folder in (self.workdir, self.home, run):
            folder.mkdir()
        super().__init__(run)
        if rg_argv is None:
            rg = shutil.which("rg", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
            rg_argv = [rg] if rg else []
        self.process = subprocess.Popen(
            [
                *[sys.executable, "-I", "-S", "-B", "-X", "utf8", str(zipapp)],
                *["--mode", "local", "--socket", self.socket_path],
                *["--secret-file", str(self.secret_file)],
                *["--workdir", str(self.workdir), "--home", str(self.home)],
                *["--root", str(self.root), "--rg-argv", json.dumps(rg_argv)],
                *["--search", search],
                *["--base-env", json.dumps({"PATH": path or os.environ["PATH"]})],
            ],
            env={"LC_ALL": "C", "PATH": "/nowhere"},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            self.accept()
        except BaseException:
            self.listener.close()
            self.process.kill()
            self.process.wait()
            shutil.rmtree(self.root)
            raise

    def rss_bytes(self) -> int:
        """Memory of the guest itself that is resident."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def close(self) -> None:
        """Ends the guest and its tree the way it ends itself: by the loss of its folder."""
        self.listener.close()
        shutil.rmtree(self.root, ignore_errors=True)
        self.disconnect()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            raise
        finally:
            shutil.rmtree(self.root, ignore_errors=True)


def read_message(sock: socket.socket) -> tuple[dict[str, Any], bytes]:
    """One frame."""
    header_bytes, body_bytes = protocol.decode_prefix(_exactly(sock, protocol.PREFIX.size))
    header = protocol.decode_header(_exactly(sock, header_bytes))
    return header, _exactly(sock, body_bytes)


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            raise ConnectionError("the guest closed the connection")
        data += piece
    return data


def pack(path: Path) -> None:
    """Packs the guest as the toolbox does: package `guest`, compiled too, and a `__main__`."""
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(path, "w") as packed:
        compiled = Path(folder) / "module.pyc"
        packed.writestr("__main__.py", START)
        for source in sorted(GUEST_SOURCES.glob("*.py")):
            packed.write(source, f"guest/{source.name}")
            py_compile.compile(
                str(source), str(compiled), doraise=True, invalidation_mode=unchecked
            )
            packed.write(compiled, f"guest/{source.name}c")
