"""What the kit shows an adapter: the flags for tokens and certificates, and their checks."""

from __future__ import annotations

import argparse
import ipaddress
import re
from pathlib import Path
from typing import Final

from sandbox_adapter.connection import Credentials

# A header of HTTP/2 holds no more (RFC 6750: a token is one word).
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")
_HOST: Final = re.compile(
    r"(?:dns:///|ipv4:|ipv6:|dns:)?(?:\[(?P<in_brackets>.*)\]|(?P<plain>[^:]*))(?::\d+)?"
)


class Usage(Exception):
    """Wrong usage. The text is one line."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    access = parser.add_argument_group("access")
    access.add_argument("--token-file", type=Path, metavar="F", help="file with a bearer token")
    access.add_argument("--tls-ca", type=Path, metavar="F", help="CA that signed the adapter")
    access.add_argument("--tls-cert", type=Path, metavar="F", help="client certificate")
    access.add_argument("--tls-key", type=Path, metavar="F", help="its key")


def credentials(options: argparse.Namespace) -> Credentials:
    """What the flags name. Raises `Usage`."""
    if (options.tls_cert is None) != (options.tls_key is None):
        raise Usage("--tls-cert and --tls-key go together")
    if options.tls_cert is not None and options.tls_ca is None:
        raise Usage("--tls-cert needs --tls-ca")
    token = _token(options.token_file)
    if token and options.tls_ca is None and not stays_here(options.target):
        raise Usage(
            "--token-file needs --tls-ca: without TLS anybody on the way can read the token"
        )
    return Credentials(
        token=token,
        tls_ca=_content(options.tls_ca),
        tls_certificate=_content(options.tls_cert),
        tls_key=_content(options.tls_key),
    )


def stays_here(target: str) -> bool:
    """Whether what is sent to this address stays on the machine: a Unix socket, loopback."""
    if target.startswith(("unix:", "unix-abstract:")):
        return True
    found = _HOST.fullmatch(target)
    if found is None:
        return False
    host = found["in_brackets"] or found["plain"] or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _token(path: Path | None) -> str:
    content = _content(path)
    if content is None:
        return ""
    text = content.decode("ascii", "replace").strip()
    if not _TOKEN.fullmatch(text):
        raise Usage(f"`{path}` holds no token: one word of printable ASCII")
    return text


def _content(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise Usage(f"cannot read `{path}`: {error.strerror}") from None
