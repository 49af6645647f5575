"""Rules on read that vectors cannot say (tool-cases 1.A)."""

from __future__ import annotations

from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.rule import rule


@rule("read.pages-make-the-file", cases=["R6"])
async def pages_make_the_file(place: Place) -> None:
    """Following the offsets shows every line once, in order."""
    lines = [f"line {number}" for number in range(1, 101)]
    await place.put("f", "\n".join(lines) + "\n")
    seen: list[str] = []
    offset = 1
    while True:
        result = expect.fine(await place.read("f", offset=offset, limit=7))
        seen += result.text.split("\n")[: result.read.last_line - result.read.first_line + 1]
        if not result.read.HasField("next_offset"):
            break
        expect.equal(result.read.next_offset, result.read.last_line + 1, "next offset")
        offset = result.read.next_offset
    expect.equal(seen, lines, "the lines of all pages")
