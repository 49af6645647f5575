"""The engine that a profile asks for, in containers and out of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox_adapter.v1 import error_pb2
from tests.integration.conftest import BACKENDS, OpenSession, open_session
from tests.integration.daemon_process import DaemonProcess

PROFILES = """
[profiles.default]
[profiles.grep]
search = "grep"
[profiles.ripgrep]
search = "ripgrep"
"""
TREE = r"""
git init -q .; printf 'dist/\n' > .gitignore; mkdir -p 'a b/c' a-b dist shut
printf 'one needle\r\ntwo(x) {\r\n' > 'a b/c/na:me:3.py'; printf 'café needle\n' > a-b/é.txt
printf 'needle in dist\n' > dist/o; printf '\0needle' > bin; printf 'needle' > $'n\nl'
printf '\xff\xfeh\0i\0 \0n\0e\0e\0d\0l\0e\0\n\0' > u16; printf 'na\xefve needle\n' > latin
mkfifo fifo; ln -s a-b link; ln -s bin gone; seq -f 'row %g' 150 > rows; printf 'needle' > closed
chmod 0 shut closed
"""
CALLS: list[dict[str, Any]] = [
    {"pattern": "needle"},
    {"pattern": r"\bneedle$"},
    {"pattern": r"caf\w needle"},
    {"pattern": r"two\(\w\) \{$", "include": "*.{py,txt}"},
    {"pattern": "two(x) {", "literal": True},
    {"pattern": "two(x"},
    {"pattern": "in dist"},
    {"pattern": "in dist", "path": "dist"},
    {"pattern": "needle", "path": "bin"},
    {"pattern": "needle", "path": "u16"},
    {"pattern": "needle", "path": "fifo"},
    {"pattern": "needle", "path": "nope"},
    {"pattern": "NEEDLE"},
    {"pattern": "^row"},
    {"pattern": r"^row \d{3}$", "path": "rows"},
    {"pattern": "absent"},
]


@pytest.fixture(scope="module", params=BACKENDS)
def profiled(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DaemonProcess]:
    """A daemon with a profile for each engine."""
    state: Path = tmp_path_factory.mktemp("engines") / "state"
    daemon = DaemonProcess(request.param, state, config=PROFILES).start()
    try:
        yield daemon
    finally:
        daemon.end_for_good()


async def one_session(daemon: DaemonProcess, profile: str) -> AsyncIterator[OpenSession]:
    async for opened in open_session(daemon, profile=profile):
        yield opened


@pytest.mark.parametrize(
    ("profile", "engine"),
    [("default", "ripgrep "), ("ripgrep", "ripgrep "), ("grep", "grep (GNU grep) ")],
)
async def test_session_says_which_engine_searches(
    profiled: DaemonProcess, profile: str, engine: str
) -> None:
    async for session in one_session(profiled, profile):
        assert session.session.effective.search_engine.startswith(engine)


async def test_model_sees_the_same_whichever_engine_searches(profiled: DaemonProcess) -> None:
    texts: list[list[tuple[str, bool]]] = []
    for profile in ("ripgrep", "grep"):
        async for session in one_session(profiled, profile):
            assert (await session.bash(TREE)).text == "(no output)"
            results = [await session.tool("grep", **arguments) for arguments in CALLS]
            await session.bash("chmod 755 shut closed")
            texts.append([(_text(result.text), result.is_error) for result in results])
    for arguments, ours, theirs in zip(CALLS, *texts, strict=True):
        assert ours == theirs, arguments
    # Out of a container the tests may run as root, who may read everything.
    kept_out = "[2 paths could not be searched: closed: Permission denied]"
    assert kept_out in texts[0][0][0] or profiled.backend == "local"
    assert texts[0][0][0].count("needle") == 5 + (kept_out not in texts[0][0][0])


def _text(text: str) -> str:
    """Without the pattern and the mark that only ripgrep puts above its words."""
    head, error, words = text.partition("error: ")
    return words if error and head.startswith("regex parse error:") else text


async def test_pattern_for_ripgrep_alone_is_refused_with_advice(profiled: DaemonProcess) -> None:
    async for session in one_session(profiled, "grep"):
        await session.tool("write", path="f", content="x\n")
        result = await session.tool("grep", pattern=r"\p{L}")
        assert (result.is_error, result.reason) == (True, error_pb2.REASON_INVALID_PATTERN)
        assert result.text.endswith("Write the pattern in simpler terms, or use bash with grep.")
