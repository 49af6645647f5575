"""The kit finds what is wrong: faults planted in a sound adapter, by the ids of the rules."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandbox_adapter.v1 import tool_pb2
from tests.conformance import faults, watch_faults
from tests.conformance.faulty_adapter import Fault, serving
from tests.conformance.kit import KitRun, Unjudged, run_kit
from tests.conformance.targets import unjudged_of
from tests.integration.daemon_process import DaemonProcess

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]

LOOKS = ("write.creates", "write.makes-parents", "write.keeps-mode", "write.modes-of-new")
"""Rules that look at what was written, which without FileService only a shell can show."""
WITHOUT_FILES = ("adapter.*", "write.*", "edit.*", "versions.*", "inputs.write-*", "inputs.edit-*")
"""Areas that look at files, or at which services are served."""
UNJUDGED_WITHOUT_FILES = (
    *unjudged_of("default"),
    Unjudged("the adapter does not claim FILES", 10),
    Unjudged("a file is too large to be looked at without FileService", 6),
)


@dataclass(frozen=True)
class Planted:
    """A fault, the rules that must find it, and rules beside them that must still pass."""

    name: str
    fault: Fault
    found_by: tuple[str, ...]
    beside: tuple[str, ...]


def spoiled(name: str, *tools: str) -> Fault:
    """A fault of `faults` that spoils the results of these tools."""
    spoil: Callable[[tool_pb2.ToolResult], None] = getattr(faults, name)
    return faults.Wrong(set(tools), spoil)


PLANTED = (
    Planted(
        "lost_edit",
        faults.LostEdit(),
        ("edit.parallel-edits-all-count",),
        ("edit.mixed-endings-stay", "edit.several-matches", "edit.reference-many"),
    ),
    Planted(
        "crlf_folded",
        faults.Tampering({"edit"}, faults.fold_crlf),
        ("edit.crlf-file", "edit.mixed-endings-stay"),
        ("edit.lf-file", "edit.mode-stays"),
    ),
    Planted(
        "phantom_last_line",
        spoiled("phantom_last_line", "read"),
        ("read.final-newline", "read.two-thousand-lines"),
        ("read.last-line-without-newline", "read.binary", "read.empty"),
    ),
    Planted(
        "marker_off_by_one",
        spoiled("marker_off_by_one", "read"),
        ("read.limit-cuts", "read.pages-make-the-file", "read.two-thousand-lines"),
        ("read.final-newline", "read.limit-reaches-the-end"),
    ),
    Planted(
        "silent_cap",
        spoiled("silent_cap", "grep", "glob"),
        ("grep.cap", "glob.cap"),
        ("grep.rows", "glob.order"),
    ),
    Planted(
        "cut_inside_code_point",
        spoiled("cut_inside_code_point", "bash"),
        ("bash.cut-between-characters", "bash.cut-of-wide-characters"),
        ("bash.cut-by-lines", "bash.invalid-utf8-is-replaced"),
    ),
    Planted(
        "exit_code_lost",
        spoiled("exit_code_lost", "bash"),
        ("bash.exit-codes", "bash.killed-by-signal"),
        ("bash.output-and-facts", "bash.streams-keep-order"),
    ),
    Planted(
        "hang_on_background_job",
        faults.HangsOnBackgroundJobs(),
        ("bash.background-plain",),
        ("bash.exit-codes", "bash.waited-jobs-are-no-survivors"),
    ),
    Planted(
        "status_two_discarded",
        spoiled("status_two_discarded", "grep"),
        ("grep.unreadable-parts",),
        ("grep.rows", "grep.no-match"),
    ),
    Planted(
        "link_replaced",
        faults.LinkReplaced(),
        ("write.keeps-links", "write.through-a-link"),
        ("write.keeps-mode", "write.replaces"),
    ),
    Planted(
        "mode_lost",
        faults.Tampering({"write", "edit"}, mode=0o644),
        ("write.keeps-mode", "edit.mode-stays"),
        ("write.replaces", "edit.crlf-file"),
    ),
    Planted(
        "nul_passed_on",
        spoiled("nul_passed_on", "bash"),
        ("bash.nul-is-made-visible",),
        ("bash.invalid-utf8-is-replaced", "bash.output-and-facts"),
    ),
    Planted(
        "runs_again",
        faults.RunsAgain(),
        ("calls.repeated-is-replayed", "calls.fifty-at-once-run-once"),
        ("calls.ids-belong-to-sessions", "calls.unknown-are-never-seen"),
    ),
    Planted(
        "first_of_several",
        faults.FirstOfSeveral(),
        ("edit.several-matches", "edit.refusals-change-nothing"),
        ("edit.lf-file", "edit.crlf-file"),
    ),
    Planted(
        "newline_added",
        faults.Tampering({"write"}, faults.add_final_newline),
        ("write.every-byte", "write.empty"),
        ("write.keeps-mode", "write.makes-parents"),
    ),
    Planted(
        "encoding_guessed",
        faults.Tampering({"edit"}, faults.guess_encoding),
        ("edit.other-bytes-survive", "edit.reference-bytes"),
        ("edit.crlf-file", "edit.lf-file"),
    ),
    Planted(
        "timeout_as_kill",
        spoiled("timeout_as_kill", "bash"),
        ("bash.timeout-is-a-result",),
        ("bash.exit-codes", "bash.killed-by-signal"),
    ),
    Planted(
        "partial_output_lost",
        spoiled("partial_output_lost", "bash"),
        ("bash.timeout-is-a-result",),
        ("bash.output-and-facts", "bash.exit-codes"),
    ),
    Planted(
        "hidden_left_out",
        spoiled("hidden_left_out", "glob"),
        ("glob.hidden-and-ignored",),
        ("glob.no-files", "glob.slash"),
    ),
    Planted(
        "any_order",
        spoiled("any_order", "grep", "glob"),
        ("grep.order-of-many-names", "glob.reference"),
        ("grep.no-match", "glob.no-files"),
    ),
    Planted(
        "place_forgotten",
        watch_faults.ForgetsPlaces(),
        ("watch.any-number-resumes", "watch.resumes-while-it-runs", "watch.behind-the-end"),
        ("watch.started-output-result", "watch.output-is-raw"),
    ),
    Planted(
        "output_held_back",
        watch_faults.HoldsBack(),
        ("watch.output-comes-while-it-runs", "watch.heartbeats"),
        ("watch.started-output-result", "watch.output-is-raw"),
    ),
    Planted(
        "events_counted",
        watch_faults.Counts(),
        ("watch.numbers-are-places",),
        ("watch.started-output-result", "watch.output-comes-while-it-runs"),
    ),
    Planted(
        "live_output_cleaned",
        watch_faults.Changes(watch_faults.clean),
        ("watch.output-is-raw",),
        ("watch.started-output-result", "watch.heartbeats"),
    ),
    Planted(
        "dropped_in_silence",
        watch_faults.Changes(watch_faults.drop_in_silence),
        ("watch.takes-any-length", "watch.slow-reader-loses-and-learns"),
        ("watch.started-output-result", "watch.many-watch-one-call"),
    ),
    Planted(
        "result_worded_anew",
        watch_faults.Changes(watch_faults.word_anew),
        ("watch.started-output-result", "watch.other-tools-start-and-end"),
        ("watch.output-is-raw", "watch.numbers-are-places"),
    ),
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    daemon = DaemonProcess("docker", tmp_path_factory.mktemp("sound") / "state").start()
    try:
        yield daemon
    finally:
        daemon.end_for_good()


async def judged(
    sound: DaemonProcess, folder: Path, fault: Fault, *rules: str, files: bool = True
) -> KitRun:
    """The run of these rules against the adapter with the fault; without files, at level core."""
    arguments = [part for rule in rules for part in ("--select", rule)]
    if not files:
        arguments += ["--level", "core"]
    async with serving(sound.address, folder, fault, files=files) as address:
        return await asyncio.to_thread(run_kit, address, folder, *arguments)


@pytest.mark.parametrize("planted", PLANTED, ids=[planted.name for planted in PLANTED])
async def test_fault_is_found_by_its_rules_alone(
    sound: DaemonProcess, tmp_path: Path, planted: Planted
) -> None:
    run = await judged(sound, tmp_path, planted.fault, *planted.found_by, *planted.beside)
    assert run.code == 1
    assert run.failed == set(planted.found_by), run.said
    assert run.counts["pass"] == len(planted.beside), run.said


async def test_sound_adapter_passes_through_the_same_proxy(
    sound: DaemonProcess, tmp_path: Path
) -> None:
    rules = {rule for planted in PLANTED for rule in (*planted.found_by, *planted.beside)}
    run = await judged(sound, tmp_path, faults.Sound(), *sorted(rules))
    assert run.code == 0, run.said
    assert run.counts["pass"] == len(rules), run.said


async def test_sound_adapter_without_files_passes_what_a_shell_can_show(
    sound: DaemonProcess, tmp_path: Path
) -> None:
    run = await judged(sound, tmp_path, faults.Sound(), *WITHOUT_FILES, files=False)
    assert run.code == 0, run.said
    assert run.unforeseen(UNJUDGED_WITHOUT_FILES) == [], run.said
    assert run.counts["pass"] > 150, run.said


async def test_lost_write_is_found_without_files(sound: DaemonProcess, tmp_path: Path) -> None:
    beside = ("bash.exit-codes", "bash.output-and-facts")
    run = await judged(sound, tmp_path, faults.LostWrite(), *LOOKS, *beside, files=False)
    assert run.failed == set(LOOKS), run.said
    assert run.counts["pass"] == len(beside), run.said
