"""Rules on what a path of read leads to: special files, near names, home, links (1.A)."""

from __future__ import annotations

import shlex
from typing import Any, Final

from sandbox_adapter.client import new_id
from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.outcome import Uncheckable
from sandbox_adapter.conformance.place import Place, to_json
from sandbox_adapter.conformance.rule import rule
from sandbox_adapter.conformance.rules.outside import devices_refused, may_lead_out
from sandbox_adapter.v1 import tool_pb2

DEVICES: Final = ("/dev/zero", "/dev/null", "/dev/full", "/dev/urandom", "/dev/tty")
UP: Final = "/.." * 40
"""Leads from any working directory to the root."""


async def _read(place: Place, path: str, **arguments: Any) -> tool_pb2.ToolResult:
    return await place.call("read", {"path": path, **arguments})


def _relative(place: Place, name: str) -> str:
    """A name of the place's folder, from the working directory."""
    return place.at(name).removeprefix(place.workdir.rstrip("/") + "/")


def _proposed(result: tool_pb2.ToolResult) -> str:
    """What a refusal proposes; empty where it proposes nothing."""
    expect.refused(result, "FILE_NOT_FOUND")
    return result.text.partition("Did you mean:")[2]


# --- Special files ---------------------------------------------------------------


@rule("read.device", cases=["R21"])
async def device(place: Place) -> None:
    """Devices are refused, endless and empty ones alike, and none is waited for."""
    results = {path: await _read(place, path) for path in DEVICES}
    there = {
        path: result
        for path, result in results.items()
        if not result.is_error or expect.reason_of(result) != "FILE_NOT_FOUND"
    }
    if not there:
        raise Uncheckable("the sandbox has no devices")
    devices_refused(place, there)


@rule("read.device-behind-a-link", cases=["R21"])
async def device_behind_a_link(place: Place) -> None:
    """A link to a device is refused as the device is."""
    await place.link("l", "/dev/zero")
    devices_refused(place, {place.at("l"): await place.read("l")})


_BIND: Final = {
    "python3": 'import socket; socket.socket(socket.AF_UNIX).bind("s")',
    "perl": 'use IO::Socket::UNIX; IO::Socket::UNIX->new(Local => "s", Listen => 1) or exit 1',
}


@rule("read.socket", cases=["R21"])
async def socket(place: Place) -> None:
    """A socket is refused as no regular file."""
    tries = [
        f"{command} {'-c' if command == 'python3' else '-e'} {shlex.quote(script)}"
        for command, script in _BIND.items()
    ]
    made = await place.bash_here(f"( {' || '.join(tries)} ) 2>/dev/null; [ -S s ]")
    if made.exit_code != 0:
        raise Uncheckable("the sandbox has nothing that makes a socket")
    result = expect.refused(await place.read("s"), "NOT_REGULAR")
    expect.says(result.text, place.at("s"))


# --- Missing files ---------------------------------------------------------------


@rule("read.near-names", cases=["R26", "contract 9"])
async def near_names(place: Place) -> None:
    """A missing file's error proposes a name of the same directory that is nearly the same."""
    for there, asked in (
        ("settings.json", "setings.json"),
        ("README.md", "readme.md"),
        ("user_service.py", "user_services.py"),
        ("index.test.ts", "index.tset.ts"),
    ):
        name = f"for {there}/{asked}"
        await place.put(f"for {there}/{there}", "x\n")
        result = await place.read(name)
        proposed = _proposed(result)
        expect.holds(there in proposed, f"{there} is not proposed for {asked}: {proposed!r}")
        first = result.text.partition("\n")[0]
        expect.holds(first.startswith(f"File not found: {place.at(name)}"), f"begins {first!r}")


@rule("read.three-near-names", cases=["R26"])
async def three_near_names(place: Place) -> None:
    """At most three names are proposed, each of which exists."""
    names = [f"report-{number}.txt" for number in range(1, 9)]
    for name in names:
        await place.put(name, "x\n")
    proposed = _proposed(await place.read("report-9.txt"))
    found = [name for name in names if name in proposed]
    expect.holds(1 <= len(found) <= 3, f"{len(found)} names are proposed: {proposed!r}")
    expect.equal(proposed.count("report-"), len(found), "names in the proposal")


@rule("read.stripped-name-is-offered", cases=["R29"])
async def stripped_name_is_offered(place: Place) -> None:
    """Quotes, `@` and outer white space are not taken away, but the name without them is told."""
    await place.put("wanted.txt", "x\n")
    for path in (place.at("wanted.txt"), _relative(place, "wanted.txt")):
        for spelled in (f"@{path}", f'"{path}"', f"'{path}'", f"{path} ", f"{path}\n"):
            result = await _read(place, spelled)
            expect.holds("wanted.txt" in _proposed(result), f"nothing is proposed for {spelled!r}")


@rule("read.undecodable-names", cases=["R31"])
async def undecodable_names(place: Place) -> None:
    """A name that is not UTF-8 cannot be given as `\\xNN`, and the error says that bash can."""
    await place.make_folder()
    folder = shlex.quote(place.folder)
    await place.shell(f"cd {folder} && printf 'x\\n' > \"$(printf 'caf\\351-menu.txt')\"")
    result = expect.refused(await place.read("caf\\xe9-menu.txt"), "FILE_NOT_FOUND")
    expect.says(result.text, "bash")
    # A neighbour whose name cannot be shown breaks no other answer.
    expect.refused(await place.read("cafe-menu.txt"), "FILE_NOT_FOUND")
    await place.put("caf\\xe9-menu.txt", "literal\n")
    expect.fine(await place.read("caf\\xe9-menu.txt"), "literal\n")


@rule("read.lone-surrogate-in-the-path", cases=["R31", "W15"])
async def lone_surrogate_in_the_path(place: Place) -> None:
    """A path that cannot be encoded is refused; a pair of surrogates is its character."""
    for path in ("a\ud800", "\udfff", "caf\udce9"):
        result = await place.call_json("read", to_json({"path": place.at(path)}))
        expect.refused(result, "INVALID_INPUT")
        expect.says(result.text, "path")
    await place.put("😀", "face\n")
    whole = await place.call_json("read", to_json({"path": place.at("😀")}))
    expect.fine(whole, "face\n")


# --- Where a path starts and may lead --------------------------------------------


@rule("read.relative-path", cases=["contract 6"])
async def relative_path(place: Place) -> None:
    """A relative path starts at the working directory and is told as it was given."""
    await place.put("d/f", "x\n")
    path = _relative(place, "d/f")
    for spelled in (path, f"./{path}"):
        expect.fine(await _read(place, spelled), "x\n")
    missing = _relative(place, "d/qqqqqqqqq")
    expect.refused(await _read(place, missing), "FILE_NOT_FOUND", f"File not found: {missing}")
    folder = _relative(place, "d")
    text = f"{folder} is a directory. Use glob or bash ls to list it."
    expect.refused(await _read(place, folder), "IS_DIRECTORY", text)


@rule("read.home", cases=["R28"], alone=True)
async def home(place: Place) -> None:
    """`~` is the tool user's home, for read and write as for commands."""
    name = new_id("kit")
    await place.shell(f'mkdir -p "$HOME/{name}" && printf "home\\n" > "$HOME/{name}/f"')
    expect.fine(await _read(place, f"~/{name}/f"), "home\n")
    expect.fine(await place.call("write", {"path": f"~/{name}/made", "content": "made\n"}))
    expect.exited(await place.bash(f'cat "$HOME/{name}/made"'), 0, "made\n")
    expect.fine(await _read(place, f"~//{name}/../{name}/f"), "home\n")
    for path in ("~", "~/", f"~/{name}"):
        text = f"{path} is a directory. Use glob or bash ls to list it."
        expect.refused(await _read(place, path), "IS_DIRECTORY", text)
    missing = f"~/{name}/qqqqqqqqq"
    expect.refused(await _read(place, missing), "FILE_NOT_FOUND", f"File not found: {missing}")


@rule("read.outside-the-working-directory", cases=["R34", "contract 6"], alone=True)
async def outside_the_working_directory(place: Place) -> None:
    """Paths may lead anywhere in the sandbox, or nowhere else where nothing isolates."""
    folder = f"/tmp/{new_id('kit')}"
    path = f"{folder}/f"
    made = await place.call("write", {"path": path, "content": "far\n"})
    if not may_lead_out(place, made):
        for outside in ("/etc/passwd", f"{place.workdir}{UP}/etc/passwd", f"..{UP}/etc/passwd"):
            result = expect.refused(await _read(place, outside), "PATH_OUTSIDE")
            expect.says(result.text, outside)
        return
    for spelled in (path, f"{place.workdir}{UP}{path}", f"..{UP}{path}", f"{folder}/../..{path}"):
        expect.fine(await _read(place, spelled), "far\n")


@rule("read.link-outside-the-working-directory", cases=["R34", "contract 6"], alone=True)
async def link_outside_the_working_directory(place: Place) -> None:
    """A link may lead as far as a path may, for read and write."""
    folder = f"/tmp/{new_id('kit')}"
    await place.link("l", folder)
    made = await place.write("l/f", "far\n")
    if not may_lead_out(place, made):
        await place.link("etc", "/etc")
        for name in ("etc/passwd", "etc/../etc/passwd", "etc/qqqqqqqqq"):
            expect.refused(await place.read(name), "PATH_OUTSIDE")
        return
    # The link dangled until the write made what it leads to.
    expect.fine(await place.read("l/f"), "far\n")
    expect.fine(await _read(place, f"{folder}/f"), "far\n")
