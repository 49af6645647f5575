"""The guest as one file, for the `local` backend: built from the installed package.

The name holds a digest of the sources, so that guests of an earlier version keep
the file that they were started from.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import zipfile
from pathlib import Path
from typing import Final

from sandboxd.guest import protocol

_START: Final = b"from guest.__main__ import main\n\nraise SystemExit(main())\n"
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


def ensure_zipapp(state_dir: Path) -> Path:
    """Builds the file where it is not there yet. Raises OSError."""
    sources = {
        f"guest/{path.name}": path.read_bytes()
        for path in sorted(Path(protocol.__file__).parent.glob("*.py"))
    }
    sources["__main__.py"] = _START
    digest = hashlib.sha256(repr(sorted(sources.items())).encode()).hexdigest()
    target = state_dir / f"guest-{digest[:16]}.pyz"
    if target.exists():
        return target
    fresh = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        with zipfile.ZipFile(fresh, "w", zipfile.ZIP_STORED) as packed:
            for name, content in sorted(sources.items()):
                packed.writestr(zipfile.ZipInfo(name, _EPOCH), content)
        os.replace(fresh, target)
    finally:
        fresh.unlink(missing_ok=True)
    return target
