"""Rules on how a command is run: its shell, input, surroundings, timeout (tool-cases 1.D).

What outlives a call is in `bash_jobs`, what ends one early in `bash_endings`, what is
shown of the output in `bash_output`.
"""

from __future__ import annotations

import asyncio
import math
import re
import shlex
from typing import Final

from sandbox_adapter import errors
from sandbox_adapter.client import new_id
from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.outcome import Uncheckable
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.rule import rule
from sandbox_adapter.conformance.rules import bash_jobs
from sandbox_adapter.v1 import tool_pb2

MILLISECONDS_LIKELY_S: Final = 10_000
"""From here a timeout was probably meant in milliseconds (tool-cases B9)."""
ARGUMENT_BYTES_MAX: Final = 131_072
"""Bytes of one argument of a program on Linux, with its closing NUL."""


_STATE: Final = re.compile(
    r"\b(cd|chdir|fresh|new (shell|process)|persist\w*|carr(y|ies|ied)|stateless|isolated|separate"
    r"|independent\w*|clean|remember\w*|kept|keeps?|retain\w*|surviv\w*|outliv\w*|reset|lost"
    r"|from scratch|starts? over|own (shell|process))\b",
    re.IGNORECASE,
)
"""Words of which an English text holds one that says what is left of a call for the next."""

# --- The shell --------------------------------------------------------------------


@rule("bash.no-shell-says-so", cases=["B21", "contract 4"])
async def no_shell_says_so(place: Place) -> None:
    """Without a shell every command is refused, with what can be used instead."""
    for command in ("echo hi", "true", f"# {'x' * 200_000}"):
        result = await place.call("bash", {"command": command})
        if not result.is_error:
            raise Uncheckable("the sandbox has a shell")
        expect.refused(result, "SHELL_MISSING")
        named = re.search(r"\b(bash|sh|shell)\b", result.text)
        expect.holds(named is not None, f"the text names no shell: {result.text}")
    expect.refused(await place.call("bash", {"command": "a\0b"}), "INVALID_INPUT")
    expect.fine(await place.write("f", "x\n"))
    expect.fine(await place.read("f"), "x\n")


@rule("bash.bash-where-there-is-one", cases=["B21"])
async def bash_where_there_is_one(place: Place) -> None:
    """The shell is bash wherever the sandbox has a bash that works."""
    result = await place.bash('bash -c "echo works" 2>/dev/null; echo "[$BASH_VERSION]"')
    has_bash = result.text.startswith("works\n")
    if not has_bash:
        raise Uncheckable("the sandbox has no bash")
    expect.holds("[]" not in result.text, "there is a bash, and another shell ran the command")


@rule("bash.is-no-login-shell", cases=["B22"], alone=True)
async def is_no_login_shell(place: Place) -> None:
    """Start-up files of the home folder are not read."""
    for name in (".profile", ".bash_profile", ".bash_login", ".bashrc", ".shrc"):
        made = await place.call("write", {"path": f"~/{name}", "content": "echo noise\n"})
        if made.is_error:
            raise Uncheckable(f"the home folder cannot be written: {made.text}")
    for command in ("echo mine", f"# {'x' * 200_000}\necho mine"):
        expect.exited(await place.bash(command), 0, "mine\n")


@rule("bash.fresh-shell-each-time", cases=["B20", "B19", "contract 6"])
async def fresh_shell_each_time(place: Place) -> None:
    """Folder, variables, functions, masks and options do not carry over to the next call."""
    first = "cd /; export X=1; f() { :; }; alias ll=true; umask 0; set -e; set -f; trap : EXIT"
    expect.exited(await place.bash(first), 0)
    now = await place.bash('pwd; echo "[$X]"; umask; echo $-; (f) 2>/dev/null; echo $?')
    folder, variable, mask, options, code = now.text.rstrip("\n").split("\n")
    expect.equal(folder, place.workdir, "working directory")
    expect.equal((variable, code), ("[]", "127"), "variable and function")
    expect.holds(int(mask, 8) != 0, "the mask of the call before is in force")
    expect.holds(not set("ef") & set(options), f"options of the call before: {options}")


@rule("bash.description-says-that-nothing-carries-over", cases=["B20", "B21"])
async def description_says_that_nothing_carries_over(place: Place) -> None:
    """The description for the model says that calls share no shell, and what times mean."""
    [tool] = [each for each in await place.client.list_tools() if each.name == "bash"]
    expect.holds(_STATE.search(tool.description) is not None, "nothing on state between calls")
    expect.holds("second" in tool.description.lower(), "nothing on the unit of times")
    limits = place.target.limits
    expect.equal(tool.timeout_default, limits.bash_timeout_default, "default timeout")
    expect.equal(tool.timeout_max, limits.bash_timeout_max, "greatest timeout")


@rule("bash.working-directory-gone", cases=["B35", "contract 4"], alone=True)
async def working_directory_gone(place: Place) -> None:
    """A working directory that is gone is an error that names it, and nothing runs."""
    await place.require("rm", "rmdir")
    folder = shlex.quote(place.workdir)
    await place.bash(f"cd / && rm -rf {folder}/* ; rmdir {folder} 2>/dev/null")
    result = await place.call("bash", {"command": "echo ran"})
    if not result.is_error and "ran" in result.text:
        raise Uncheckable("the working directory cannot be removed")
    expect.refused(result, "WORKING_DIRECTORY_MISSING")
    expect.says(result.text, place.workdir)


# --- What a command finds ------------------------------------------------------------


@rule("bash.descriptors-are-its-own", cases=["B42"])
async def descriptors_are_its_own(place: Place) -> None:
    """A command gets no descriptor but its input and output."""
    await place.require("ls")
    result = await place.bash("[ -d /proc/self/fd ] && ls -l /proc/$$/fd; echo end")
    rows = [line.split() for line in result.text.split("\n") if " -> " in line]
    if not rows:
        raise Uncheckable("there is no /proc/self/fd to look at")
    for row in rows:
        number, to = int(row[row.index("->") - 1]), row[-1]
        foreign = number > 2 and re.match(r"(socket|pipe|anon_inode):", to) is not None
        expect.holds(not foreign, f"descriptor {number} leads to {to}")


@rule("bash.environment-asks-and-pages-nothing", cases=["B13", "B14", "B15", "B22"])
async def environment_asks_and_pages_nothing(place: Place) -> None:
    """The environment keeps programs from asking, paging and colouring, in UTF-8."""
    names = (
        "GIT_TERMINAL_PROMPT PAGER GIT_PAGER MANPAGER EDITOR TERM DEBIAN_FRONTEND HOME USER PATH"
    )
    show = "; ".join(f'echo "{name}=[${name}]"' for name in [*names.split(), "BASH_ENV", "ENV"])
    result = await place.bash(f'{show}; echo "PWD=[$PWD]"; echo "L=[${{LC_ALL:-$LANG}}]"')
    found = dict(line.split("=", 1) for line in result.text.rstrip("\n").split("\n"))
    expect.equal(found["GIT_TERMINAL_PROMPT"], "[0]", "GIT_TERMINAL_PROMPT")
    for name in names.split():
        expect.holds(found[name] != "[]", f"{name} is not set")
    expect.equal((found["BASH_ENV"], found["ENV"]), ("[]", "[]"), "BASH_ENV and ENV")
    expect.equal(found["PWD"], f"[{place.workdir}]", "PWD")
    expect.holds(re.search(r"utf-?8", found["L"], re.IGNORECASE) is not None, f"L {found['L']}")
    await place.require("cat")
    paged = await place.bash("echo page | $PAGER; echo page | $GIT_PAGER; $EDITOR x; echo end")
    expect.holds(paged.text.startswith("page\npage\n"), f"pagers: {expect.shown(paged.text)}")
    expect.holds(paged.text.endswith("end\n"), "the editor held the command up")


@rule("bash.environment-holds-no-secret", cases=["B42"])
async def environment_holds_no_secret(place: Place) -> None:
    """No variable of a command looks like a credential of who runs it."""
    # `export -p` and not env: every shell has it.
    names = re.findall(r"(?:export|-x) (\w+)=", (await place.bash("export -p")).text)
    expect.holds("PATH" in names, "no variable found")
    for name in names:
        secret = re.search(r"TOKEN|SECRET|PASSWORD|API_?KEY|CREDENTIAL|GRPC", name)
        expect.holds(secret is None, f"the environment holds {name}")


@rule("bash.signals-start-at-default", cases=["B11"])
async def signals_start_at_default(place: Place) -> None:
    """Programs start with no signal ignored and none blocked."""
    await place.require("head")
    result = await place.bash("[ -r /proc/self/status ] && exec head -n 60 /proc/self/status")
    masks = re.findall(r"^Sig(?:Ign|Blk):\s*([0-9a-f]+)$", result.text, re.MULTILINE)
    if len(masks) != 2:
        raise Uncheckable("there is no /proc/self/status to look at")
    # 32 and 33 belong to the C library, which some ways to start a program ignore.
    seen = [int(mask, 16) & ~(0b11 << 31) for mask in masks]
    expect.equal(seen, [0, 0], "signals blocked and ignored")


@rule("bash.git-asks-nobody", cases=["B13", "B14"])
async def git_asks_nobody(place: Place) -> None:
    """git fails where it would ask for a password or a message, and does not page."""
    await place.require("git")
    start = "git init -q . && git config user.email a@b.invalid && git config user.name n"
    expect.exited(await place.bash_here(f"{start} && echo x > f && git add f"), 0)
    # Where the commit goes through, the editor took the empty message as it was.
    commit = await place.bash_here("git commit; git commit -q -m one; git log", timeout=30)
    expect.ending_is(commit, "EXITED")
    expect.says(commit.text, "one")
    ask = "printf 'protocol=https\\nhost=x.invalid\\n\\n' | git credential fill"
    asked = await place.bash_here(ask, timeout=30)
    expect.ending_is(asked, "EXITED")
    expect.holds(asked.exit_code != 0, "git had a password from somewhere")


# --- The script ------------------------------------------------------------------------


@rule("bash.script-of-any-length", cases=["B17"])
async def script_of_any_length(place: Place) -> None:
    """A script longer than an argument may be runs whole, and its commands' input stays empty."""
    head, tail = 'read -r line; echo "$? [$line]"; cat\n: \'', "'\necho end; exit 7"

    await place.require("cat")

    async def one(size: int) -> None:
        script = head + "x" * (size - len(head) - len(tail)) + tail
        text = "1 []\nend\n[Command exited with code 7]"
        expect.exited(await place.bash(script), 7, text)

    near = range(ARGUMENT_BYTES_MAX - 2, ARGUMENT_BYTES_MAX + 3)
    await asyncio.gather(*map(one, [*near, 1_048_575, 1_048_576, 1_048_577]))


@rule("bash.long-heredoc-arrives-whole", cases=["B17", "B18"])
async def long_heredoc_arrives_whole(place: Place) -> None:
    """Data of megabytes in a heredoc reaches its command byte for byte."""
    await place.make_folder()
    data = "".join(f"line {number} · it's \\ $HOME `x`\n" for number in range(60_000))
    path = shlex.quote(place.at("f"))
    await place.require("cat")
    expect.exited(await place.bash(f"cat > {path} <<'END'\n{data}END"), 0, "(no output)")
    expect.equal(await place.content("f"), data.encode(), "content")


# --- Timeouts asked for -----------------------------------------------------------------


@rule("bash.clamped-timeout-is-said", cases=["B9", "contract 9"])
async def clamped_timeout_is_said(place: Place) -> None:
    """A timeout over the maximum is reduced, and the result says to what."""
    most_s = place.target.limits.bash_timeout_max.ToNanoseconds() / 1e9
    if most_s <= 0:
        raise Uncheckable("the adapter bounds no timeout")
    number = f"{most_s:.9f}".rstrip("0").rstrip(".")
    note = f"[Timeout reduced to the maximum of {number} {'second' if most_s == 1 else 'seconds'}]"
    milliseconds = most_s * 1000 + MILLISECONDS_LIKELY_S
    for asked in (most_s + 1, milliseconds, 1e18, 10**30, int("9" * 300), 1.7e308):
        result = await place.bash("echo hi", timeout=asked)
        lines = result.text.split("\n")
        expect.exited(result, 0)
        expect.equal(lines[:2], ["hi", note], f"text for {asked}")
        expect.holds(result.bash.timeout_clamped, "`timeout_clamped` is not set")
        expect.equal(result.bash.timeout.ToNanoseconds() / 1e9, most_s, "timeout in force")
        if asked >= MILLISECONDS_LIKELY_S:
            hint = "\n".join(lines[2:]).lower()
            expect.says(hint, "second", "milli")
    typed = tool_pb2.BashInput(command="echo hi", timeout_seconds=1.7e308)
    expect.equal((await place.call_typed(typed)).text.split("\n")[:2], ["hi", note], "typed form")
    if most_s < MILLISECONDS_LIKELY_S:
        expect.equal((await place.bash("echo hi", timeout=most_s)).text, "hi\n", "text at the most")


@rule("bash.timeout-must-be-finite", cases=["B9"])
async def timeout_must_be_finite(place: Place) -> None:
    """NaN and infinities are refused in the typed form, and never wait or crash in JSON."""
    await place.make_folder()
    ran = shlex.quote(place.at("ran"))
    for value in (math.nan, math.inf, -math.inf):
        typed = tool_pb2.BashInput(command=f": > {ran}", timeout_seconds=value)
        call_id = new_id("call")
        for replayed in (False, True):
            answer = await place.client.call_typed(place.session_id, typed, call_id=call_id)
            expect.refused(place.with_shell(answer.result), "INVALID_INPUT")
            expect.equal(answer.result.replayed, replayed, "replayed")
    for text in ("NaN", "Infinity", "-Infinity", "1e400", "-1e400"):
        json = f'{{"command": "echo hi", "timeout": {text}}}'
        try:
            result = await place.call_json("bash", json)
        except errors.InvalidRequest:
            continue
        if result.is_error:
            expect.refused(place.with_shell(result), "INVALID_INPUT")
        else:
            expect.equal(text, "1e400", "the timeout that was taken")
            expect.holds(result.bash.timeout_clamped, f"{text} was taken and not reduced")
    expect.holds(not await place.exists("ran"), "a refused command ran")


# --- Calls beside each other ------------------------------------------------------------


@rule("bash.notes-in-order", cases=["contract 9", "B34", "D6"])
async def notes_in_order(place: Place) -> None:
    """The cut stands first; after the output come exit, background, clamped, in this order."""
    most_s = place.target.limits.bash_timeout_max.ToNanoseconds() / 1e9
    asked = {"timeout": most_s + 1} if most_s > 0 else {}
    await place.require("seq", "sleep")
    result = await place.bash("seq 1 2500; sleep 300 & exit 7", **asked)
    try:
        first, *body = result.text.split("\n")
        start = "[Showing the last 2000 of 2500 lines (9501 of 11393 bytes)."
        expect.equal(first[: len(start)], start, "first line")
        expect.equal(body[:2] + body[1999:2000], ["501", "502", "2500"], "output")
        notes = ["[Command exited with code 7]", bash_jobs.background_note(result)]
        expect.equal(body[2000:2002], notes, "notes")
        if asked:
            expect.says(body[2002], "[Timeout reduced to the maximum of ")
    finally:
        await bash_jobs.end(place, [each.pid for each in result.survivors])


@rule("bash.exit-codes-under-load", cases=["B10", "B11", "sandbox 25"], alone=True)
async def exit_codes_under_load(place: Place) -> None:
    """Every exit code is right while orphans come and go beside the commands."""
    await place.require("sleep")
    noise = "for i in 1 2; do ( ( sleep 0.2; exit 9 ) & ) ; done; "

    async def one(number: int) -> None:
        result = await place.bash(f"{noise}echo {number}; exit {number}")
        note = f"[Command exited with code {number}]"
        expect.fine(result)
        expect.equal(result.exit_code, number, "exit code")
        lines = result.text.split("\n")
        expect.holds(lines[0] == str(number), f"output {expect.shown(result.text)}")
        expect.holds(number == 0 or note in lines, "the note is missing")

    codes = range(0, 256, 3)
    for start in range(0, len(codes), 8):
        await asyncio.gather(*map(one, codes[start : start + 8]))
