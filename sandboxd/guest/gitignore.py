"""Whether git ignores a directory: what a search from inside it cannot find out.

ripgrep applies ignore rules itself. Started in a directory that git ignores it
still sees what the rules name one level up only by chance, and differently from
version to version. So the question "does the searched path lie in an ignored
directory" and the question "which directory hides this file" are answered here,
by git's rules: the deepest `.gitignore` first, in it the last line that fits; what
lies in an ignored directory is ignored; `.git/info/exclude` comes last; a nested
work tree knows nothing of the one around it.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from typing import Final

from . import name_patterns
from .ops import OpError

FILE_BYTES_MAX: Final = 256 * 1024
"""Of an ignore file; what comes later is not looked at."""
RULES_MAX: Final = 5_000
CACHED_MAX: Final = 10_000
_ANY_NAME: Final = "nQ7xZ3vK"
"""A file name that only rules for everything in a directory fit."""


@dataclass(frozen=True)
class Rule:
    """One line of an ignore file. A part of None stands for any number of directories."""

    parts: tuple[re.Pattern[str] | None, ...]
    negated: bool
    directories_only: bool

    def fits(self, names: list[str], is_directory: bool) -> bool:
        """`names`: the path below the ignore file's directory."""
        if self.directories_only and not is_directory:
            return False
        # Places in `parts` that are possible after each name: linear in both.
        places = self._skip_stars({0})
        for name in names:
            after: set[int] = set()
            for place in places:
                if place == len(self.parts):
                    continue
                part = self.parts[place]
                if part is None:
                    after.add(place)
                    if place == len(self.parts) - 1:
                        after.add(place + 1)
                elif part.match(name):
                    after.add(place + 1)
            places = self._skip_stars(after)
        return len(self.parts) in places

    def _skip_stars(self, places: set[int]) -> set[int]:
        reached = set(places)
        for place in sorted(places):
            at = place
            # Stars at the end need a name: `a/**` is what is in `a`, not `a` itself.
            while at < len(self.parts) - 1 and self.parts[at] is None:
                at += 1
                reached.add(at)
        return reached


def parse_rule(line: str) -> Rule | None:
    """A line of an ignore file; None where it says nothing."""
    line = line.removesuffix("\r")
    while line.endswith(" ") and not line.endswith("\\ "):
        line = line[:-1]
    if not line or line.startswith("#"):
        return None
    negated = line.startswith("!")
    if negated:
        line = line[1:]
    directories_only = line.endswith("/")
    line = line.removesuffix("/")
    anchored = "/" in line
    parts: list[re.Pattern[str] | None] = [] if anchored else [None]
    try:
        for part in line.removeprefix("/").split("/"):
            if part == "**" and anchored:
                # A row of them means no more than one, and would cost its square.
                if parts[-1:] != [None]:
                    parts.append(None)
            else:
                parts.append(re.compile(name_patterns.translate(part), re.DOTALL))
    except OpError:
        return None
    return Rule(tuple(parts), negated, directories_only)


class IgnoreRules:
    """Answers for real paths; ignore files are read once."""

    def __init__(self) -> None:
        self._rules: dict[str, list[Rule]] = {}
        self._roots: dict[str, str | None] = {}
        self._ignored: dict[str, bool] = {}

    def work_tree(self, directory: str) -> str | None:
        """The root of the work tree that a directory belongs to."""
        # Not recursive, here and below: a path may have two thousand parts.
        passed = []
        at, root = directory, None
        while True:
            if at in self._roots:
                root = self._roots[at]
                break
            passed.append(at)
            if os.path.lexists(os.path.join(at, ".git")):
                root = at
                break
            if at == os.path.dirname(at):
                break
            at = os.path.dirname(at)
        if len(self._roots) >= CACHED_MAX:
            self._roots.clear()
        self._roots |= dict.fromkeys(passed, root)
        return root

    def directory_ignored(self, directory: str) -> bool:
        """Whether git ignores the directory, by itself or for one above it."""
        root = self.work_tree(directory)
        if root is None:
            return False
        chain = []
        at = directory
        while at != root and at not in self._ignored:
            chain.append(at)
            at = os.path.dirname(at)
        ignored = at != root and self._ignored[at]
        if len(self._ignored) >= CACHED_MAX:
            self._ignored.clear()
        for each in reversed(chain):
            parent, name = os.path.split(each)
            ignored = ignored or self._decide(root, parent, name, True)
            self._ignored[each] = ignored
        return ignored

    def everything_ignored(self, directory: str) -> bool:
        """Whether a rule ignores whatever a directory holds, as `build/*` does.

        Never of the root of a work tree: rules that start from nothing and add
        what counts are written there.
        """
        root = self.work_tree(directory)
        if root is None or root == directory:
            return False
        return self._decide(root, directory, _ANY_NAME, False)

    def _decide(self, root: str, parent: str, name: str, is_directory: bool) -> bool:
        names = [name]
        folder = parent
        while True:
            for rule in reversed(self._rules_of(folder)):
                if rule.fits(names, is_directory):
                    return not rule.negated
            if folder == root:
                break
            names.insert(0, os.path.basename(folder))
            folder = os.path.dirname(folder)
        exclude = reversed(self._rules_of(root, ".git/info/exclude"))
        return next((not r.negated for r in exclude if r.fits(names, is_directory)), False)

    def _rules_of(self, directory: str, name: str = ".gitignore") -> list[Rule]:
        path = os.path.join(directory, name)
        if path not in self._rules:
            if len(self._rules) >= CACHED_MAX:
                self._rules.clear()
            self._rules[path] = _read_rules(path)
        return self._rules[path]


def _read_rules(path: str) -> list[Rule]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return []
    try:
        data = os.read(fd, FILE_BYTES_MAX) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    except OSError:
        return []
    finally:
        os.close(fd)
    lines = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape").split("\n")
    rules = [parse_rule(line) for line in lines[:RULES_MAX]]
    return [rule for rule in rules if rule is not None]
