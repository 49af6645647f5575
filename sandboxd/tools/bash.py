"""bash: runs a script in a fresh shell (contract.md 6; texts and their order: 9)."""

from __future__ import annotations

import math
import re
import signal
from decimal import Decimal
from typing import Annotated, Literal

from google.protobuf.duration_pb2 import Duration
from pydantic import Field

from sandbox_adapter.v1 import error_pb2, tool_pb2
from sandboxd import limits
from sandboxd.backends.base import Reply
from sandboxd.errors import GuestFault, SandboxLost
from sandboxd.tools import endings
from sandboxd.tools.base import Ask, InvalidInput, JsonObject, failed
from sandboxd.tools.facts import Count, Facts, parse_facts
from sandboxd.tools.inputs import Fields, encoded
from sandboxd.tools.wording import counted, own_line, plain

COMMAND_BYTES_MAX = 16 * limits.MIB
MILLISECONDS_LIKELY_S = 10_000
"""A timeout that is reduced from this or more was probably meant in milliseconds."""
SURVIVORS_NAMED_MAX = 20
NOT_STARTED_CHARS_MAX = 500
"""Most of the guest's words on why no process could be made."""
ANSWER_SLACK_S = 30.0
"""Over the timeout: time to end the tree, drain the pipe, and answer on a busy machine."""

_UNFIT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_Name = Annotated[str, Field(max_length=64)]
_Survivor = Annotated[tuple[Annotated[int, Field(ge=1, le=2**31 - 1)], _Name], Field(strict=False)]


def _schema(default_s: float, max_s: float) -> JsonObject:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "command": {"type": "string", "description": "The script to run."},
            "timeout": {
                "type": "number",
                "minimum": 0,
                "description": "Most seconds that it may run, at most "
                f"{max_s:g}. Default, also for 0: {default_s:g}.",
            },
        },
        "required": ["command"],
        "additionalProperties": False,
    }


class _Spill(Facts):
    path: str = Field(min_length=1, max_length=4_096)
    bytes: Annotated[int, Field(ge=0, le=limits.SPILL_BYTES_MAX)]
    complete: bool


class OutputFacts(Facts):
    """What the guest says of a command's output, whether more is to come or not."""

    bytes_total: Count
    lines_total: Count
    lines_shown: Annotated[int, Field(ge=0, le=limits.BASH_LINES_MAX)]
    cut: bool
    binary: bool


class _SeenFacts(OutputFacts):
    """What the guest's op `peek` answers besides the text."""

    timeout_s: Annotated[float, Field(ge=0, le=1e9)]


class RunFacts(OutputFacts):
    """What the guest's op `run` answers besides the text; see `guest/README.md`."""

    ended: Literal["exited", "timed_out", "cancelled"]
    exit_code: Annotated[int, Field(ge=0, le=255)] | None
    signal: Annotated[int, Field(ge=1, le=64)] | None
    spill: _Spill | None
    survivors: list[_Survivor] = Field(max_length=64)
    survivors_total: Count
    output_open: bool
    swept: bool
    freed: Count
    full: list[endings.FullMount] = Field(default_factory=list, max_length=8)


class BashTool:
    """Times are the operator's settings, in seconds."""

    name = "bash"
    description = (
        "Runs a bash script (sh where the image has no bash) in the working directory, in a fresh "
        "shell each time: cd, variables and functions do not carry over to the next call. stdin "
        "is empty and there is no terminal, so pass flags instead of answering prompts. stdout "
        "and stderr come back as one text; of long output the last "
        f"{limits.BASH_LINES_MAX:,} lines or {limits.BASH_BYTES_MAX // limits.KIB} KB, with the "
        "path of a file that holds more. timeout is in seconds; a command that reaches it is "
        "ended, and what it printed is kept. A process started with & keeps running after the "
        "call; send its output to a file if you need it."
    )
    effect = tool_pb2.EFFECT_CLASS_OPAQUE
    parallel = False

    def __init__(
        self,
        timeout_default_s: float = limits.BASH_TIMEOUT_DEFAULT_S,
        timeout_max_s: float = limits.BASH_TIMEOUT_MAX_S,
    ) -> None:
        self.timeout_max_s: float | None = timeout_max_s
        self.timeout_default_s: float | None = min(timeout_default_s, timeout_max_s)
        self._max_s = timeout_max_s
        self._default_s = min(timeout_default_s, timeout_max_s)
        self.schema: JsonObject = _schema(self._default_s, self._max_s)

    def ask(self, raw: JsonObject) -> Ask:
        fields = Fields(raw, ("command", "timeout"))
        command = encoded(fields.text("command"), "command")
        if b"\0" in command:
            raise InvalidInput("`command` contains a NUL character. Remove it.")
        if len(command) > COMMAND_BYTES_MAX:
            raise InvalidInput(
                f"`command` is {len(command)} bytes long, and {COMMAND_BYTES_MAX} are the most. "
                "Write the data to a file first.",
                "FILE_TOO_LARGE",
            )
        asked_s = _asked_timeout(raw)
        timeout_s = min(asked_s, self._max_s) if asked_s else self._default_s
        return Ask(
            "run",
            {"timeout_s": timeout_s},
            {"timeout_s": timeout_s, "asked_s": asked_s},
            command,
            reply_bytes_max=limits.BASH_BYTES_MAX,
            timeout_s=timeout_s + ANSWER_SLACK_S,
        )

    def word(self, memo: JsonObject, answer: Reply | GuestFault) -> tool_pb2.ToolResult:
        met: JsonObject = memo.get("met", {})
        if isinstance(answer, GuestFault):
            return _not_started(answer, met)
        facts = parse_facts(RunFacts, answer.facts)
        text = _text(answer.body)
        end = _judged(facts, text, met)
        return _result(facts, text, end, float(memo["timeout_s"]), float(memo["asked_s"]))


def seen_so_far(answer: Reply) -> tool_pb2.ToolResult:
    """What is known of a command that has not ended: its text and the facts of its output.

    Raises `SandboxLost` where the answer to `peek` is none.
    """
    facts = parse_facts(_SeenFacts, answer.facts)
    return tool_pb2.ToolResult(
        text=_shown(facts, _text(answer.body), None),
        truncated=facts.cut,
        bytes_total=facts.bytes_total,
        lines_total=facts.lines_total,
        bash=tool_pb2.BashDetails(timeout=_duration(facts.timeout_s), binary=facts.binary),
    )


def _not_started(fault: GuestFault, met: JsonObject) -> tool_pb2.ToolResult:
    """Of a command whose shell found no room among the processes; raises every other fault."""
    if fault.reason != "SPAWN_FAILED":
        raise fault
    why = plain(str(fault), NOT_STARTED_CHARS_MAX).removesuffix(".")
    text = (
        f"The command was not started: {why}. End background processes that are not "
        "needed, or use a shorter command, then try again."
    )
    limit = endings.pids_limit(met)
    if fault.facts.get("exhausted") is not True or limit is None:
        raise InvalidInput(text, fault.reason)
    result = failed(fault.reason, text)
    result.ending = tool_pb2.ENDING_PIDS_EXHAUSTED
    result.limit.CopyFrom(limit)
    return result


def _judged(facts: RunFacts, text: str, met: JsonObject) -> endings.Ending:
    """What a limit made of the command; a timeout and a cancel stay what they are."""
    if facts.ended != "exited":
        return endings.Ending()
    code = facts.exit_code or 0 if facts.signal is None else 128 + facts.signal
    ran = endings.Ran(code, facts.survivors_total > 0, text, facts.full)
    return endings.judge(ran, met)


def _asked_timeout(raw: JsonObject) -> float:
    """The timeout that the caller asks for, in seconds; 0 for none."""
    value = raw.get("timeout")
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidInput("`timeout` must be a number of seconds. Leave it out for the default.")
    # Compared before conversion: an integer can be too large for a float.
    if value != value or value < 0 or value == math.inf:
        raise InvalidInput(
            "`timeout` must be a finite number of seconds, 0 or more. Leave it out for the default."
        )
    return float(min(value, 1e12))


def _text(body: bytes) -> str:
    """The guest's text, made fit for a result whatever the guest did."""
    text = body.decode("utf-8", "replace")
    text = _UNFIT.sub(lambda found: f"\\x{ord(found.group()):02x}", text)
    # Measured as it is shown: what the guest should have cleaned grows here.
    if (size := len(text.encode("utf-8"))) > limits.BASH_BYTES_MAX:
        raise SandboxLost("PROTOCOL", f"run: {size} bytes of text")
    return text


def _result(
    facts: RunFacts, text: str, end: endings.Ending, timeout_s: float, asked_s: float
) -> tool_pb2.ToolResult:
    shown = _shown(facts, text, facts.spill) or "(no output)"
    result = tool_pb2.ToolResult(
        text=own_line(shown, *_notes(facts, end, timeout_s, asked_s)),
        truncated=facts.cut,
        bytes_total=facts.bytes_total,
        lines_total=facts.lines_total,
        survivors=[tool_pb2.Survivor(pid=pid, name=plain(name)) for pid, name in facts.survivors],
        bash=tool_pb2.BashDetails(
            timeout=_duration(timeout_s),
            timeout_clamped=asked_s > timeout_s,
            output_open=facts.output_open,
            binary=facts.binary,
        ),
    )
    if facts.spill is not None:
        result.spill_path = plain(facts.spill.path, 4_096)
        result.bash.spill_bytes = facts.spill.bytes
    if facts.ended == "timed_out":
        result.ending = tool_pb2.ENDING_TIMED_OUT
        result.exit_code = 124
        result.limit.CopyFrom(tool_pb2.Limit(kind="time", limit=round(timeout_s * 1000)))
        return result
    if facts.ended == "cancelled":
        result.ending = tool_pb2.ENDING_CANCELLED
        result.reason = error_pb2.REASON_CANCELLED_BY_CALLER
    elif end.ending is not None:
        result.ending = end.ending
    elif facts.signal is not None:
        result.ending = tool_pb2.ENDING_SIGNALED
    else:
        result.ending = tool_pb2.ENDING_EXITED
    if end.limit is not None:
        result.limit.CopyFrom(end.limit)
    if facts.signal is not None:
        result.signal = facts.signal
        result.exit_code = 128 + facts.signal
    elif facts.exit_code is not None:
        result.exit_code = facts.exit_code
    return result


def _shown(facts: OutputFacts, text: str, spill: _Spill | None) -> str:
    if facts.binary:
        return f"[Binary output, {counted(facts.bytes_total, 'byte')}]"
    if not facts.cut:
        return text
    shown = len(text.encode("utf-8"))
    where = ""
    if spill is not None:
        part = f" (first {counted(spill.bytes, 'byte')} of it)"
        capped = "" if spill.complete else part
        where = f" Full output: {plain(spill.path, 4_096)}{capped}"
    head = (
        f"[Showing the last {facts.lines_shown} of {counted(facts.lines_total, 'line')} "
        f"({shown} of {counted(facts.bytes_total, 'byte')}).{where}]"
    )
    return f"{head}\n{text}"


def _notes(facts: RunFacts, end: endings.Ending, timeout_s: float, asked_s: float) -> list[str]:
    """The lines after the output, in the order of contract.md 9."""
    notes = []
    if end.ending == tool_pb2.ENDING_OOM_KILLED:
        notes.append(f"[{end.note}]")
    elif facts.ended == "timed_out":
        notes.append(f"[Command timed out after {_seconds(timeout_s)}]")
    elif facts.ended == "cancelled":
        notes.append("[Command was cancelled]")
    elif facts.signal is not None:
        name, code = _signal_name(facts.signal), 128 + facts.signal
        notes.append(f"[Command was killed by {name} (exit code {code})]")
    elif facts.exit_code:
        notes.append(f"[Command exited with code {facts.exit_code}]")
    if facts.survivors:
        what = (
            "Background processes still running"
            if facts.ended == "exited"
            else "Processes that could not be ended"
        )
        notes.append(f"[{what}: {_processes(facts)}]")
    if asked_s > timeout_s:
        notes.append(f"[Timeout reduced to the maximum of {_seconds(timeout_s)}]")
        if asked_s >= MILLISECONDS_LIKELY_S:
            notes.append("[`timeout` is in seconds, not in milliseconds.]")
    if end.note and end.ending != tool_pb2.ENDING_OOM_KILLED:
        notes.append(f"[{end.note}]")
    if facts.freed:
        ended = counted(facts.freed, "background process was", "background processes were")
        notes.append(f"[{ended} ended before this command: the process limit was reached.]")
    if facts.swept:
        notes.append(
            "[All processes of the sandbox were ended, because those of a cancelled or timed-out "
            "command kept multiplying. Start again what you need.]"
        )
    return notes


def _processes(facts: RunFacts) -> str:
    named = ", ".join(f"{pid} {plain(name)}" for pid, name in facts.survivors[:SURVIVORS_NAMED_MAX])
    rest = facts.survivors_total - min(len(facts.survivors), SURVIVORS_NAMED_MAX)
    return f"{named} and {rest} more" if rest > 0 else named


def _seconds(value: float) -> str:
    """`1 second`, `2 seconds`, `0.5 seconds`: without a trailing `.0` or an exponent."""
    number = format(Decimal(repr(float(value))).normalize(), "f")
    return f"{number} {'second' if value == 1 else 'seconds'}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        # Between the first and the last real-time signal, which alone have names.
        return f"SIGRTMIN+{number - signal.SIGRTMIN}" if number > 34 else f"SIG{number}"


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1_000_000_000))
    return duration
