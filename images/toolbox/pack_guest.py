"""Packs the guest into a zipapp, the same bytes for the same sources.

Layout: a `__main__` that starts `guest.__main__.main`, and the package under the name `guest`,
each module as source (for tracebacks) and compiled beside it, where zipimport looks first.
Stored uncompressed: the guest starts sooner and the file is small anyway.
"""

import importlib.util
import py_compile
import tempfile
import zipfile
from pathlib import Path

GUEST = Path("/build/guest")
OUT = Path("/build/out/guest.pyz")
START = "from guest.__main__ import main\n\nraise SystemExit(main())\n"
# The oldest time that a zip file can hold.
EPOCH = (1980, 1, 1, 0, 0, 0)


def compiled(source: Path, name: str) -> bytes:
    with tempfile.NamedTemporaryFile(suffix=".pyc") as target:
        py_compile.compile(
            str(source),
            target.name,
            dfile=f"/.sandboxd/toolbox/guest.pyz/{name}",
            doraise=True,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
        return Path(target.name).read_bytes()


def main() -> None:
    start = GUEST.parent / "start.py"
    start.write_text(START)
    members = {"__main__.py": start}
    for source in GUEST.rglob("*.py"):
        members[f"guest/{source.relative_to(GUEST)}"] = source
    if "guest/__main__.py" not in members:
        raise SystemExit("pack_guest: the guest has no __main__.py")
    OUT.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(OUT, "w", zipfile.ZIP_STORED) as packed:
        for name, source in sorted(members.items()):
            for member, content in (
                (name, source.read_bytes()),
                (f"{name}c", compiled(source, name)),
            ):
                entry = zipfile.ZipInfo(member, EPOCH)
                entry.external_attr = 0o644 << 16
                packed.writestr(entry, content)
    OUT.chmod(0o644)
    print(f"pack_guest: {len(members)} modules, {OUT.stat().st_size} bytes,", end=" ")
    print(f"bytecode {importlib.util.MAGIC_NUMBER.hex()}")


if __name__ == "__main__":
    main()
