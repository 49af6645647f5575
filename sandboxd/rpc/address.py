"""Where the daemon may listen: loopback or a Unix socket, nothing else (contract.md 7).

Everything else needs TLS and tokens or client certificates. This version has
neither, so there it never listens.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from sandboxd.errors import EXIT_ADDRESS, EXIT_CONFIG, EXIT_UNSAFE, StartupError

UNIX_PATH_BYTES_MAX = 107


@dataclass(frozen=True)
class Address:
    """A checked address: a Unix socket's path, or a loopback host's number and port."""

    path: Path | None
    host: str
    port: int

    @property
    def text(self) -> str:
        """As gRPC takes it and as people read it."""
        if self.path is not None:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse(text: str, *, setting: str) -> Address:
    """Checks `HOST:PORT` or `unix:PATH`; a name must mean nothing but loopback.

    Raises `StartupError`: EXIT_CONFIG for what is no address, EXIT_UNSAFE for
    one that others can reach, EXIT_ADDRESS for a name that means nothing.
    """
    if text.startswith("unix:"):
        path = Path(text.removeprefix("unix:").removeprefix("//")).absolute()
        if len(os.fsencode(path)) > UNIX_PATH_BYTES_MAX:
            raise StartupError(
                f"`{setting}`: the socket's path is longer than {UNIX_PATH_BYTES_MAX} bytes",
                EXIT_ADDRESS,
            )
        return Address(path, "", 0)
    host, _, port_text = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port_text.isascii() or not port_text.isdigit() or int(port_text) > 65_535:
        raise StartupError(
            f"`{setting}` is `{text}`; it must be `HOST:PORT` or `unix:PATH`", EXIT_CONFIG
        )
    return Address(None, _loopback(host, text, setting), int(port_text))


def claim_socket(path: Path) -> None:
    """Makes room for a Unix socket: a dead one of an earlier daemon goes.

    Raises `StartupError` (EXIT_ADDRESS) where a daemon answers at it, or where
    something else is there.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise StartupError(f"cannot listen on `{path}`: {error.strerror}", EXIT_ADDRESS) from None
    if not stat.S_ISSOCK(mode):
        raise StartupError(f"cannot listen on `{path}`: it exists, and is no socket", EXIT_ADDRESS)
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        probe.settimeout(1.0)
        probe.connect(os.fspath(path))
    except (ConnectionRefusedError, FileNotFoundError):
        path.unlink(missing_ok=True)
    except OSError as error:
        raise StartupError(f"cannot listen on `{path}`: {error}", EXIT_ADDRESS) from None
    else:
        raise StartupError(f"cannot listen on `{path}`: it is in use", EXIT_ADDRESS)
    finally:
        probe.close()


def claim_port(host: str, port: int) -> None:
    """Makes sure that a TCP port can be had, before gRPC complains in a line of its own.

    Raises `StartupError` (EXIT_ADDRESS).
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As gRPC does, so that a port that is only waiting to be free is no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            text = Address(None, host, port).text
            why = (error.strerror or "it cannot be had").lower()
            raise StartupError(f"cannot listen on `{text}`: {why}", EXIT_ADDRESS) from None


def _loopback(host: str, text: str, setting: str) -> str:
    """The address that the host means. One that is not loopback, among several, refuses all."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise StartupError(f"`{setting}`: no such host: `{host}`", EXIT_ADDRESS) from None
    addresses = [str(entry[4][0]) for entry in found]
    for address in addresses:
        if not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
            allowed = "loopback" if setting == "metrics" else "loopback or `unix:PATH`"
            raise StartupError(
                f"`{setting}` is `{text}`, which others can reach; without TLS and tokens only "
                f"{allowed} is allowed",
                EXIT_UNSAFE,
            )
    # IPv4 first: what `localhost` means to most clients.
    return min(addresses, key=lambda address: (":" in address, addresses.index(address)))
