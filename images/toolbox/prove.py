"""Proves in the build that the toolbox is closed (security S11); any doubt fails the build.

* every program, library and extension module resolves what it needs inside the toolbox;
* the loader no longer names the image's preload list and cache;
* the guest's interpreter imports every extension module and maps nothing from outside;
* the packed guest imports, module by module, and the search program searches.
"""

import json
import os
import subprocess
from pathlib import Path

TOOLBOX = Path("/.sandboxd/toolbox")
LIB = TOOLBOX / "lib"
ELF = b"\x7fELF"
HOSTILE = {"PATH": "/bin", "LD_PRELOAD": "/no/such.so", "LD_LIBRARY_PATH": "/lib:/usr/lib"}

INSIDE = """
import importlib, os, pathlib, sys, zipfile
toolbox = "/.sandboxd/toolbox"
for module in pathlib.Path(sys.prefix).rglob("lib-dynload/*.so"):
    importlib.import_module(module.name.partition(".")[0])
for name in "ctypes json re select selectors signal socket threading zipimport hashlib".split():
    importlib.import_module(name)
guest = sys.argv[1]
sys.path.insert(0, guest)
for member in zipfile.ZipFile(guest).namelist():
    if member.startswith("guest/") and member.endswith(".py"):
        name = member.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        if not importlib.import_module(name).__file__.endswith(".pyc"):
            raise SystemExit("not loaded from its compiled form: " + name)
mapped = {line.split()[5] for line in open("/proc/self/maps") if len(line.split()) > 5}
stray = [path for path in mapped if path[0] == "/" and not path.startswith(toolbox + "/")]
if stray:
    raise SystemExit(f"mapped from outside the toolbox: {stray}")
if not sys.prefix == sys.exec_prefix == toolbox:
    raise SystemExit(f"prefix: {sys.prefix}, {sys.exec_prefix}")
if any(not entry.startswith((toolbox, guest)) for entry in sys.path):
    raise SystemExit(f"path: {sys.path}")
"""


def fail(message: str) -> None:
    raise SystemExit(f"prove: {message}")


def prove_libraries() -> int:
    """Asks the toolbox's own loader what it would load for each file; returns the file count."""
    checked = 0
    for path in TOOLBOX.rglob("*"):
        if path.is_symlink():
            fail(f"{path} is a link")
        if not path.is_file() or path.read_bytes()[:4] != ELF:
            continue
        if path.name in {"ld.so", "busybox"}:
            continue
        listed = subprocess.run(
            [LIB / "ld.so", "--library-path", LIB, "--list", path],
            capture_output=True,
            text=True,
            check=False,
        )
        if listed.returncode != 0:
            fail(f"{path}: {listed.stderr}")
        for line in listed.stdout.splitlines():
            found = line.partition(" => ")[2] or line.strip()
            if not found.startswith(("linux-vdso", "statically linked", f"{TOOLBOX}/")):
                fail(f"{path} would load {line.strip()}")
        checked += 1
    return checked


def prove_loader() -> None:
    loader = (LIB / "ld.so").read_bytes()
    # Its help text mentions the cache as well: only whole strings are paths that it opens.
    for name in (b"/etc/ld.so.preload\0", b"/etc/ld.so.cache\0"):
        if name in loader:
            fail(f"the loader still opens {name[:-1].decode()}")
    static = subprocess.run(
        ["readelf", "-l", TOOLBOX / "bin/busybox"], capture_output=True, text=True, check=True
    )
    if "INTERP" in static.stdout:
        fail("busybox is not static, so the image's loader settings would reach it")


def prove_programs() -> None:
    record = json.loads((TOOLBOX / "toolbox.json").read_text())
    python = record["argv"][:-1]
    guest = "/build/out/guest.pyz"
    inside = subprocess.run(
        [*python, "-c", INSIDE, guest], env=HOSTILE, capture_output=True, text=True, check=False
    )
    if inside.returncode != 0 or inside.stderr:
        fail(f"interpreter: {inside.stderr}")
    found = subprocess.run(
        [*record["rg"], "--no-config", "-c", "-e", "^def prove_", "--", __file__],
        env={"LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=False,
    )
    if found.stdout.strip() != "3":
        fail(f"ripgrep: {found.stdout} {found.stderr}")


def main() -> None:
    checked = prove_libraries()
    prove_loader()
    prove_programs()
    size = sum(path.stat().st_size for path in TOOLBOX.rglob("*") if path.is_file())
    print(f"prove: {checked} files resolve inside, {size / 2**20:.1f} MiB, uid {os.getuid()}")


if __name__ == "__main__":
    main()
