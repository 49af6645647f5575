"""Rules on what a write keeps, makes and refuses that vectors cannot say (tool-cases 1.B)."""

from __future__ import annotations

import re
import shlex
from typing import Any, Final

from sandbox_adapter.client import new_id
from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.outcome import Uncheckable
from sandbox_adapter.conformance.place import Place, to_json
from sandbox_adapter.conformance.rule import ISOLATED, SIX_TOOLS, rule
from sandbox_adapter.conformance.rules.outside import devices_refused
from sandbox_adapter.v1 import file_pb2, tool_pb2

DEVICES: Final = ("/dev/null", "/dev/full", "/dev/tty")
FULL_KIB_MAX: Final = 4 * 1024 * 1024
"""Free space of a `/tmp` that a rule fills; of a larger one it keeps away."""


async def _write(place: Place, path: str, content: str, **arguments: Any) -> tool_pb2.ToolResult:
    return await place.call("write", {"path": path, "content": content, **arguments})


async def names(place: Place) -> list[str]:
    """Everything in the place's folder, hidden entries too, in bytewise order."""
    if not place.has_files:
        listed = await place.shell(f"ls -A {shlex.quote(place.folder)}")
        return sorted(listed.splitlines())
    found: list[str] = []
    async for batch in place.client.files.list(place.session_id, place.folder):
        found += [entry.path for entry in batch.entries]
    return sorted(found)


async def _is_link(place: Place, name: str) -> bool:
    path = place.at(name)
    if place.has_files:
        stat = await place.client.files.stat(place.session_id, path, no_follow=True)
        return stat.kind == file_pb2.FILE_KIND_SYMLINK
    return (await place.shell(f"[ -L {shlex.quote(path)} ] && echo yes || echo no")) == "yes\n"


# --- What survives ---------------------------------------------------------------


@rule("write.keeps-links", cases=["W1", "W3"])
async def keeps_links(place: Place) -> None:
    """A link that is written through is a link afterwards, also one that led nowhere."""
    await place.put("d/f", "old\n")
    links = {"to": "d/f", "over": "to", "absolute": place.at("d/f"), "dangling": "made/there"}
    for name, to in links.items():
        await place.link(name, to)
    for name in links:
        content = f"through {name}\n"
        expect.fine(await place.write(name, content))
        expect.holds(await _is_link(place, name), f"the link {name} is gone")
        behind = "made/there" if name == "dangling" else "d/f"
        expect.equal(await place.content(behind), content.encode(), f"content behind {name}")
    expect.equal(await names(place), sorted(["d", "made", *links]), "names in the folder")


@rule("write.keeps-hard-links", cases=["W6"])
async def keeps_hard_links(place: Place) -> None:
    """All names of a file with several show the new content, whether longer or shorter."""
    await place.put("f", "some old content\n")
    await place.put("d/x", "")
    folder = shlex.quote(place.folder)
    await place.shell(f"cd {folder} && ln f g && ln f d/h")
    for name, content in (("f", "longer than the old content was\n"), ("g", "s"), ("d/h", "")):
        expect.fine(await place.write(name, content))
        for other in ("f", "g", "d/h"):
            expect.equal(await place.content(other), content.encode(), f"{other} after {name}")
    # Neither `ls` nor `stat`: an old gVisor refuses the flags that GNU's give to the kernel.
    one = await place.shell(
        f"cd {folder} && [ f -ef f ] && if [ f -ef g ] && [ f -ef d/h ]; then echo yes; fi"
    )
    expect.equal(one, "yes\n", "whether the three names are one file")


@rule("write.keeps-owner", cases=["W5"])
async def keeps_owner(place: Place) -> None:
    """Owner, group and mode of a file stay where root writes it."""
    if not place.is_root:
        raise Uncheckable("the tools do not run as root")
    await place.put("f", "old\n", 0o640)
    path = shlex.quote(place.at("f"))
    await place.shell(f"chown 12345:23456 {path}")
    expect.fine(await place.write("f", "new\n"))
    owner = await place.shell(f"stat -c '%u:%g %a' {path}")
    expect.equal(owner, "12345:23456 640\n", "owner and mode")
    expect.equal(await place.content("f"), b"new\n", "content")


_SET_ATTRIBUTE: Final = "import os, sys; os.setxattr('f', sys.argv[1], bytes.fromhex(sys.argv[2]))"
_GET_ATTRIBUTE: Final = "import os, sys; print(os.getxattr('f', sys.argv[1]).hex())"
_ACL: Final = "02000000" + "".join(
    f"{tag:02x}00{permissions:02x}00{who}"
    for tag, permissions, who in (
        (0x01, 6, "ffffffff"),
        (0x02, 7, "39300000"),
        (0x04, 4, "ffffffff"),
        (0x10, 7, "ffffffff"),
        (0x20, 4, "ffffffff"),
    )
)
"""`user::rw-, user:12345:rwx, group::r--, mask::rwx, other::r--`, as the kernel keeps it."""


async def _keeps_attribute(place: Place, name: str, value: str) -> None:
    await place.require("python3")
    await place.put("f", "old\n")
    python = f"cd {shlex.quote(place.folder)} && python3 -c"
    await place.shell(f"{python} {shlex.quote(_SET_ATTRIBUTE)} {name} {value}")
    for content in ("new\n", "longer than it was\n"):
        expect.fine(await place.write("f", content))
        kept = await place.bash(f"{python} {shlex.quote(_GET_ATTRIBUTE)} {name}")
        expect.exited(kept, 0, f"{value}\n")
    expect.equal(await place.content("f"), b"longer than it was\n", "content")


@rule("write.keeps-attributes", cases=["W5"])
async def keeps_attributes(place: Place) -> None:
    """An extended attribute of a file stays."""
    await _keeps_attribute(place, "user.conformance", "006b6570740aff")


@rule("write.keeps-access-list", cases=["W5"])
async def keeps_access_list(place: Place) -> None:
    """The access control list of a file stays."""
    await _keeps_attribute(place, "system.posix_acl_access", _ACL)


@rule("write.mounted-file", cases=["W7", "D4"], needs=[SIX_TOOLS, ISOLATED], alone=True)
async def mounted_file(place: Place) -> None:
    """A file that is a mount of its own, which no rename can replace, is written in place."""
    path = "/etc/hosts"
    mounts = await place.call("read", {"path": "/proc/self/mounts"})
    if f" {path} " not in mounts.text:
        raise Uncheckable(f"{path} is no mount of its own")
    old = await place.call("read", {"path": path})
    result = await _write(place, path, old.text + "# conformance\n")
    if result.is_error and expect.reason_of(result) in ("READ_ONLY", "PERMISSION_DENIED"):
        raise Uncheckable(f"the tools' user must not write {path}")
    expect.fine(result)
    expect.fine(await place.call("read", {"path": path}), old.text + "# conformance\n")
    expect.fine(await _write(place, path, old.text))


@rule("write.fixed-folder", cases=["W9", "W21", "D4"])
async def fixed_folder(place: Place) -> None:
    """A file that may be written is, in a folder that takes no new names, and keeps its mode."""
    place.require_permissions()
    await place.put("d/f", "old content\n", 0o660)
    folder = shlex.quote(place.at("d"))
    await place.shell(f"chmod 555 {folder}")
    try:
        for content in ("new\n", "and longer than before\n", ""):
            expect.fine(await place.write("d/f", content))
            expect.equal(await place.content("d/f"), content.encode(), "content")
        expect.equal(await place.mode("d/f"), 0o660, "mode")
        expect.equal(await names(place.below("d")), ["f"], "names in the folder")
    finally:
        await place.shell(f"chmod 755 {folder}")


@rule("write.modes-of-new", cases=["W4", "W12"])
async def modes_of_new(place: Place) -> None:
    """A new file has 0666 and new parents 0777, less one umask."""
    expect.fine(await place.write("a/b/f", "x\n"))
    file, folders = await place.mode("a/b/f"), [await place.mode("a"), await place.mode("a/b")]
    expect.equal(file & ~0o666, 0, f"bits of a new file's mode {file:o} that are none of 0666")
    expect.equal(file & 0o600, 0o600, f"the owner's bits of a new file's mode {file:o}")
    for folder in folders:
        # A folder may have been given the set-group-ID bit by the one it is in.
        expect.equal(f"{folder & 0o666:o}", f"{file:o}", "a new parent's mode, less its x bits")
        expect.equal(folder & 0o700, 0o700, f"the owner's bits of a new parent's mode {folder:o}")


# --- What is refused -------------------------------------------------------------


@rule("write.lone-surrogate", cases=["W15"])
async def lone_surrogate(place: Place) -> None:
    """Content that cannot be encoded is refused with its place, and nothing changes."""
    await place.put("f", "old\n")
    for name, content in (
        ("f", "twelve chars\ud800 more"),
        ("f", "twelve chars\udfff"),
        ("new", "twelve chars\udc00\ud800"),
    ):
        arguments = {"path": place.at(name), "content": content}
        result = expect.refused(await place.call_json("write", to_json(arguments)), "INVALID_INPUT")
        expect.says(result.text, "content")
        # Counted from 0 or from 1. A path may hold any number.
        said = result.text.replace(place.at(name), "")
        placed = re.search(r"\b1[23]\b", said)
        expect.holds(placed is not None, f"no position: {expect.shown(result.text)}")
    result = await place.call_json("write", to_json({"path": place.at("p\ud800"), "content": "x"}))
    expect.refused(result, "INVALID_INPUT")
    expect.equal(await names(place), ["f"], "names in the folder")
    expect.equal(await place.content("f"), b"old\n", "content")


@rule("write.surrogate-pair", cases=["W15", "W16"])
async def surrogate_pair(place: Place) -> None:
    """Two escapes that are one character are written as its four bytes."""
    text = to_json({"path": place.at("f"), "content": "a😀\U0010ffff"})
    expect.holds("\\ud83d\\ude00" in text, "the input has no escapes")
    result = await place.call_json("write", text)
    expect.fine(result, f"Wrote 9 bytes to {place.at('f')}.")
    expect.equal(await place.content("f"), "a😀\U0010ffff".encode(), "content")


@rule("write.device", cases=["W17"])
async def device(place: Place) -> None:
    """A device is refused, also where it would swallow everything."""
    there = []
    for path in DEVICES:
        looked = await place.call("read", {"path": path})
        if expect.reason_of(looked) != "FILE_NOT_FOUND":
            there.append(path)
    if not there:
        raise Uncheckable("the sandbox has no devices")
    devices_refused(place, {path: await _write(place, path, "x\n") for path in there})


@rule("write.read-only", cases=["W10"], needs=[SIX_TOOLS, ISOLATED], alone=True)
async def read_only(place: Place) -> None:
    """On a file system that is read-only a write is refused as that, or for its permissions."""
    refusals = 0
    for folder in ("/sys", "/proc/sys/kernel", "/usr", "/"):
        path = f"{folder.rstrip('/')}/{new_id('kit')}"
        result = await _write(place, path, "x\n")
        if not result.is_error:
            continue
        refusals += 1
        reason = expect.reason_of(result)
        # The kernel may answer for a file system of its own that there is no such name.
        known = ("READ_ONLY", "PERMISSION_DENIED", "FILE_NOT_FOUND")
        expect.holds(reason in known, f"{path}: {reason}")
        expect.ending_is(result, "COMPLETED")
        expect.says(result.text, path)
    if not refusals:
        raise Uncheckable("nothing in the sandbox is read-only")


@rule("write.full-disk", cases=["W10", "W21", "contract 4"], harmful=True, timeout_s=120.0)
async def full_disk(place: Place) -> None:
    """Where the disk is full the write fails as that, the old content stays, nothing is left."""
    free = (await place.shell("df -P -k /tmp | tail -n 1")).split()[3]
    if not 0 < int(free) <= FULL_KIB_MAX:
        raise Uncheckable(f"/tmp is too large to be filled ({free} KiB are free)")
    here = Place(place.target, place.session, f"/tmp/{new_id('kit')}")
    old = "old content\n" * 1_000
    for name in ("f", "linked", "small/f"):
        await here.put(name, old)
    folder = shlex.quote(here.folder)
    # A megabyte stays free: enough to begin with, too little to end.
    await place.shell(
        f"cd {folder} && ln linked other && dd if=/dev/zero of=spare bs=1024 count=1024 && "
        "{ dd if=/dev/zero of=../filler bs=65536; rm spare; }"
    )
    for name in ("f", "linked", "small/f", "new", "a/b/new"):
        result = await here.write(name, "z" * 1_500_000)
        expect.holds(result.is_error, f"{name} was written to a full disk")
        expect.equal(expect.reason_of(result), "DISK_FULL", f"reason for {name}")
        expect.ending_is(result, "DISK_FULL")
        expect.says(result.text, here.at(name))
    for name in ("f", "linked", "other", "small/f"):
        expect.equal(await here.content(name), old.encode(), f"content of {name}")
    left = [name for name in await names(here) if name not in ("a", "small")]
    expect.equal(left, ["f", "linked", "other"], "names in the folder")
    expect.equal(await names(here.below("small")), ["f"], "names below")
    await place.shell("rm /tmp/filler")
    expect.fine(await here.write("f", "room again\n"))


# --- Where a path starts ---------------------------------------------------------


@rule("write.relative-path", cases=["contract 6"])
async def relative_path(place: Place) -> None:
    """A relative path starts at the working directory and is told as it was given."""
    path = place.at("d/f").removeprefix(place.workdir.rstrip("/") + "/")
    expect.fine(await _write(place, path, "x\n"), f"Wrote 2 bytes to {path}.")
    expect.equal(await place.content("d/f"), b"x\n", "content")
    expect.fine(await _write(place, f"./{path}", "yy\n"), f"Wrote 3 bytes to ./{path}.")
    expect.equal(await place.content("d/f"), b"yy\n", "content")


@rule("write.home", cases=["R28"], alone=True)
async def home(place: Place) -> None:
    """`~` is the tool user's home, and no folder of that name is made."""
    name = new_id("kit")
    path = f"~/{name}/f"
    expect.fine(await _write(place, path, "home\n"), f"Wrote 5 bytes to {path}.")
    expect.refused(await _write(place, "~", "x\n"), "IS_DIRECTORY")
    literal = Place(place.target, place.session, place.workdir)
    expect.holds(not await literal.exists("~"), "a folder called ~ was made")
    expect.fine(await place.call("read", {"path": path}), "home\n")
