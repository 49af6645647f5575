"""Rules on what a process is started with: program, folder, environment."""

from __future__ import annotations

import asyncio

from sandbox_adapter.client import new_id
from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.outcome import Uncheckable
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.rule import PROCESSES, rule
from sandbox_adapter.conformance.rules.started import UNTIL_FED, script, shell, start


@rule("processes.working-directory", needs=(PROCESSES,), level="full")
async def working_directory(place: Place) -> None:
    """A process runs where it is told to; without a word, in the session's directory."""
    folder = await place.make_folder("a folder")
    relative = folder.removeprefix(place.workdir).lstrip("/")
    for cwd, wanted in (("", place.workdir), (folder, folder), (relative, folder)):
        started = await script(place, 'pwd; echo "$PWD"', cwd=cwd)
        await started.ended(0)
        expect.equal(await started.output(), f"{wanted}\n{wanted}\n".encode(), f"pwd of {cwd!r}")


@rule("processes.working-directories-do-not-mix", needs=(PROCESSES,), level="full")
async def working_directories_do_not_mix(place: Place) -> None:
    """Processes and calls that start at once each stand where they were told to."""
    folders = [await place.make_folder(f"d{number}") for number in range(4)]
    shell(place)
    calls = [asyncio.create_task(place.bash("pwd")) for _ in range(4)]
    started = await asyncio.gather(
        *(script(place, "pwd", cwd=folder) for folder in folders for _ in range(4))
    )
    wanted = [folder for folder in folders for _ in range(4)]
    for each, folder in zip(started, wanted, strict=True):
        await each.ended(0)
        expect.equal(await each.output(), f"{folder}\n".encode(), "pwd of a process")
    for call in await asyncio.gather(*calls):
        expect.exited(call, 0, f"{place.workdir}\n")


@rule("processes.working-directory-missing", needs=(PROCESSES,), level="full")
async def working_directory_missing(place: Place) -> None:
    """A folder that is not there, or is none, starts nothing."""
    await place.put("file", b"")
    for name in ("missing", "file"):
        with expect.fails("FAILED_PRECONDITION", "WORKING_DIRECTORY_MISSING"):
            await script(place, "exit 0", cwd=place.at(name))


@rule("processes.environment", needs=(PROCESSES,), level="full")
async def environment(place: Place) -> None:
    """The request's environment lies over the session's, which is that of commands."""
    async with place.target.session(env={"KEPT": "kept", "CHANGED": "old"}) as session:
        own = Place(place.target, session, session.effective.working_directory)
        text = 'echo "$KEPT $CHANGED $NEW ${HOME:-none}"'
        started = await script(own, text, env={"CHANGED": "new", "NEW": "\u00e9 = 'x'"})
        await started.ended(0)
        home = session.effective.home_directory
        wanted = f"kept new \u00e9 = 'x' {home}\n"
        expect.equal((await started.output()).decode(), wanted, "output")
        expect.exited(await own.bash('echo "$CHANGED$NEW"'), 0, "old\n")


@rule("processes.arguments-as-they-stand", needs=(PROCESSES,), level="full")
async def arguments_as_they_stand(place: Place) -> None:
    """Arguments reach the program one by one, with no shell in between."""
    words = [
        "",
        " ",
        "a b",
        "$HOME",
        "*",
        "'",
        '"',
        "\\",
        "\n",
        "\u00e9\u4e2d\U0001f600",
        "-n",
        "--",
    ]
    started = await start(
        place, [shell(place), "-c", "for each; do printf '<%s>' \"$each\"; done", "name", *words]
    )
    await started.ended(0)
    wanted = "".join(f"<{word}>" for word in words)
    expect.equal((await started.output()).decode(), wanted, "arguments")


@rule("processes.program-not-found", needs=(PROCESSES,), level="full")
async def program_not_found(place: Place) -> None:
    """A program that is not there, or may not be executed, does not start."""
    await place.put("plain", b"echo\n", 0o644)
    for name in ("no-such-program-here", place.at("missing"), "./missing"):
        with expect.fails("FAILED_PRECONDITION", "FILE_NOT_FOUND"):
            await start(place, [name])
    for name in (place.at("plain"), place.folder):
        with expect.fails("FAILED_PRECONDITION", "PERMISSION_DENIED"):
            await start(place, [name])


@rule("processes.failed-start-leaves-nothing", needs=(PROCESSES,), level="full")
async def failed_start_leaves_nothing(place: Place) -> None:
    """After a start that failed its id is free, and the list knows nothing of it."""
    process_id = new_id("p")
    path = place.at("program")
    with expect.fails("FAILED_PRECONDITION", "FILE_NOT_FOUND"):
        await start(place, [path], process_id=process_id)
    with expect.fails("NOT_FOUND", "PROCESS_UNKNOWN"):
        await place.client.processes.wait(place.session_id, process_id, wait_s=0)
    listed = await place.client.processes.list(place.session_id)
    expect.holds(process_id not in {each.process_id for each in listed}, "it is listed")
    await place.put("program", f"#!{shell(place)}\nexit 5\n", 0o755)
    try:
        started = await start(place, [path], process_id=process_id)
    except Exception as error:
        if (await place.bash(path)).exit_code == 126:
            raise Uncheckable("a script in the working directory cannot be run") from error
        raise
    expect.equal(started.answer.replayed, False, "replayed")
    await started.ended(5)


@rule("processes.program-by-path", needs=(PROCESSES,), level="full")
async def program_by_path(place: Place) -> None:
    """A name without a slash is looked up in the process's own PATH, one with it in its folder."""
    for name in ("one", "two"):
        await place.put(f"{name}/prog", f"#!{shell(place)}\necho {name}\n", 0o755)
    if (await place.bash(place.at("one/prog"))).exit_code == 126:
        raise Uncheckable("a script in the working directory cannot be run")
    path = f"{place.at('missing')}:{place.at('two')}:{place.at('one')}"
    by_name = await start(place, ["prog"], env={"PATH": path})
    await by_name.ended(0)
    expect.equal(await by_name.output(), b"two\n", "what PATH found")
    by_folder = await start(place, ["./prog"], cwd=place.at("one"), env={"PATH": path})
    await by_folder.ended(0)
    expect.equal(await by_folder.output(), b"one\n", "what its folder holds")


@rule("processes.leads-its-own-group", needs=(PROCESSES,), level="full")
async def leads_its_own_group(place: Place) -> None:
    """A process leads a session and a group of its own."""
    looks = await script(place, "read -r line < /proc/$$/stat")
    if (await looks.wait()).exit_code != 0:
        raise Uncheckable("there is no /proc/PID/stat to look at")
    text = (
        "read -r pid name state parent group session rest < /proc/$$/stat; "
        f"echo $((pid == $$)) $((group == $$)) $((session == $$)); {UNTIL_FED}"
    )
    started = await script(place, text)
    expect.equal(await started.until(b"\n"), b"1 1 1\n", "leads itself, its group, its session")
    await started.end()
