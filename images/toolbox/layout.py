"""Lays out the toolbox inside its build container: everything in it but the guest.

Runs with the interpreter that it copies. The order matters in one place: libraries are
collected after every program and extension module is in place, from what those really need.
"""

import compileall
import json
import os
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

TOOLBOX = Path("/.sandboxd/toolbox")
LIB = TOOLBOX / "lib"
STDLIB = LIB / f"python{sys.version_info.major}.{sys.version_info.minor}"

# The loader opens these two files of whatever image it runs in. The replacements have the same
# length and lie below a regular file, so no image can make them exist (security S11).
LOADER_STRINGS = {
    b"/etc/ld.so.preload\0": b"/proc/self/exe/pre\0",
    b"/etc/ld.so.cache\0": b"/proc/self/exe/c\0",
}

STDLIB_LEFT_OUT = frozenset(
    "__pycache__ _distutils_hack curses dbm dist-packages distutils ensurepip idlelib lib2to3 "
    "pydoc_data sitecustomize.py sqlite3 test tkinter turtledemo turtle.py venv".split()
)
# Their libraries are large or need configuration of the image; the guest uses none of them.
EXTENSIONS_LEFT_OUT = re.compile(
    r"_(ssl|hashlib|sqlite3|curses|curses_panel|dbm|gdbm|tkinter|bz2|lzma|decimal|crypt"
    r"|codecs_\w+|test\w*|ctypes_test|xx\w*)\.|(readline|nis|audioop|ossaudiodev|xx\w*)\."
)
# Loaded by name while a thread ends, so no program lists it as needed.
LIBRARIES_BY_NAME = ("libgcc_s.so.1",)


def copy_interpreter() -> None:
    (TOOLBOX / "bin").mkdir(parents=True)
    LIB.mkdir()
    shutil.copy(os.path.realpath(sys.executable), TOOLBOX / "bin/python3")
    # The search program comes unstripped: four fifths of it are debugging tables.
    subprocess.run(["strip", "-o", TOOLBOX / "bin/rg", "/build/rg"], check=True)
    (TOOLBOX / "bin/rg").chmod(0o755)
    shutil.copy("/bin/busybox", TOOLBOX / "bin/busybox")


def copy_stdlib() -> None:
    def left_out(folder: str, names: list[str]) -> set[str]:
        if folder.endswith("lib-dynload"):
            return {name for name in names if EXTENSIONS_LEFT_OUT.match(name)}
        return {name for name in names if name in STDLIB_LEFT_OUT or name.startswith("config-")}

    source = sysconfig.get_path("stdlib")
    shutil.copytree(source, STDLIB, ignore=left_out, symlinks=False)
    # Unchecked: the toolbox is read-only, so comparing times with the sources proves nothing.
    if not compileall.compile_dir(
        STDLIB,
        quiet=1,
        stripdir=os.fspath(TOOLBOX),
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    ):
        raise SystemExit("layout: the standard library does not compile")


def needed_libraries(program: Path) -> dict[str, str]:
    """Library name to path, as this container's loader resolves them for `program`."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    if "not found" in listed:
        raise SystemExit(f"layout: {program}:\n{listed}")
    return dict(re.findall(r"^\s*(\S+) => (/\S+)", listed, re.MULTILINE))


def copy_libraries() -> None:
    libraries: dict[str, str] = {}
    for program in [TOOLBOX / "bin/python3", TOOLBOX / "bin/rg", *STDLIB.rglob("*.so")]:
        libraries |= needed_libraries(program)
    beside_libc = Path(os.path.realpath(libraries["libc.so.6"])).parent
    for name in LIBRARIES_BY_NAME:
        libraries.setdefault(name, os.fspath(beside_libc / name))
    for name, path in libraries.items():
        shutil.copy(os.path.realpath(path), LIB / name)


def copy_loader() -> None:
    found = re.search(
        r"interpreter: (/\S+?)\]",
        subprocess.run(
            ["readelf", "-l", sys.executable], capture_output=True, text=True, check=True
        ).stdout,
    )
    if found is None:
        raise SystemExit("layout: the interpreter names no loader")
    loader = Path(os.path.realpath(found[1])).read_bytes()
    for old, new in LOADER_STRINGS.items():
        if len(old) != len(new) or loader.count(old) != 1:
            raise SystemExit(f"layout: {old!r} is in the loader {loader.count(old)} times")
        loader = loader.replace(old, new)
    (LIB / "ld.so").write_bytes(loader)
    (LIB / "ld.so").chmod(0o755)


def write_record() -> None:
    """How to start what is inside, so that no other program has to know the layout.

    `argv` starts the guest. Its first words are a static program that empties the environment:
    the loader itself would obey `LD_*` and `GLIBC_TUNABLES` of the image's environment.
    """
    through_loader = [f"{LIB}/ld.so", "--library-path", f"{LIB}", "--argv0"]
    python = f"{TOOLBOX}/bin/python3"
    version = subprocess.run(
        [TOOLBOX / "bin/rg", "--version"], capture_output=True, text=True, check=True
    ).stdout.split()[1]
    record = {
        "argv": [
            *[f"{TOOLBOX}/bin/busybox", "env", "-i", "LC_ALL=C"],
            *[*through_loader, python, python],
            *["-I", "-S", "-B", "-X", "utf8", f"{TOOLBOX}/guest.pyz"],
        ],
        "rg": [*through_loader, f"{TOOLBOX}/bin/rg", f"{TOOLBOX}/bin/rg"],
        "python": sys.version.split()[0],
        "ripgrep": version,
    }
    (TOOLBOX / "toolbox.json").write_text(json.dumps(record, indent=1) + "\n")


def main() -> None:
    copy_interpreter()
    copy_stdlib()
    copy_libraries()
    copy_loader()
    write_record()
    for path in [TOOLBOX, *TOOLBOX.rglob("*")]:
        path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)


if __name__ == "__main__":
    main()
