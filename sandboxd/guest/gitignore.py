"""Whether git ignores a directory or a file.

ripgrep applies ignore rules itself; a POSIX grep knows of none, so its files are
chosen here. Some questions are answered here for both. Started in a directory that
git ignores, ripgrep still sees what the rules name one level up only by chance, and
differently from version to version. So "does the searched path lie in an ignored
directory" and "which directory hides this file" are not asked of it.

The rules are git's: the deepest `.gitignore` first, in it the last line that fits;
what lies in an ignored directory is ignored; `.git/info/exclude` comes last; a nested
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
LINE_BYTES_MAX: Final = 8 * 1024
RULES_MAX: Final = 5_000
CACHED_MAX: Final = 10_000
SCOPES_MAX: Final = 64
"""Of directories with all rules that count there. A walk needs those above it only."""
COMBINED_MAX: Final = 256
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

    def last_part(self, folders: list[str]) -> re.Pattern[str] | None:
        """What a name in the directory `folders` must match for the rule to fit it.

        None: nothing there can fit. Not for rules with stars in other places than
        the first one.
        """
        first = self.parts[0]
        if first is None:
            return self.parts[1]
        if len(self.parts) != len(folders) + 1:
            return None
        for part, name in zip(self.parts, folders, strict=False):
            assert part is not None
            if not part.match(name):
                return None
        return self.parts[-1]

    @property
    def simple(self) -> bool:
        """Whether it is about one name, or about names in one place."""
        return None not in self.parts or (len(self.parts) == 2 and self.parts[1] is not None)

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


class Scope:
    """The rules for the names of one directory, the first one that fits deciding."""

    def __init__(self, rules: list[tuple[Rule, list[str]]], combined: Combined) -> None:
        """`rules`: each with the directory's path below its ignore file."""
        self._rules: list[tuple[Rule, re.Pattern[str] | None, list[str]]] = []
        names: list[re.Pattern[str] | None] = []
        for rule, folders in rules:
            last = rule.last_part(folders) if rule.simple else None
            if last is not None or not rule.simple:
                self._rules.append((rule, last, folders))
                names.append(last or rule.parts[-1])
        self._any: re.Pattern[str] | None = None
        if None not in names:
            # Most names fit no rule at all: one expression finds that out.
            self._any = combined.of(tuple(each.pattern for each in names if each))

    def ignores(self, name: str, is_directory: bool) -> bool:
        if not self._rules or (self._any is not None and self._any.match(name) is None):
            return False
        for rule, last, folders in self._rules:
            if last is None:
                fits = rule.fits([*folders, name], is_directory)
            else:
                fits = last.match(name) is not None and (is_directory or not rule.directories_only)
            if fits:
                return not rule.negated
        return False


class Combined:
    """Expressions for any of several; the same few serve most directories."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], re.Pattern[str]] = {}

    def of(self, patterns: tuple[str, ...]) -> re.Pattern[str]:
        found = self._known.get(patterns)
        if found is None:
            if len(self._known) >= COMBINED_MAX:
                self._known.clear()
            text = "|".join(f"(?:{each})" for each in patterns) or "(?!)"
            found = self._known[patterns] = re.compile(text, re.DOTALL)
        return found


class IgnoreRules:
    """Answers for real paths; ignore files are read once."""

    def __init__(self) -> None:
        self._rules: dict[str, list[Rule]] = {}
        self._roots: dict[str, str | None] = {}
        self._ignored: dict[str, bool] = {}
        self._scopes: dict[str, Scope] = {}
        self._combined = Combined()

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
            if os.path.exists(os.path.join(at, ".git")):
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
            ignored = ignored or self.scope(parent, root).ignores(name, True)
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
        return self.scope(directory, root).ignores(_ANY_NAME, False)

    def scope(self, directory: str, root: str) -> Scope:
        """The rules for what lies in a directory of the work tree `root`."""
        found = self._scopes.get(directory)
        if found is not None:
            return found
        rules: list[tuple[Rule, list[str]]] = []
        folders: list[str] = []
        folder = directory
        while True:
            rules += [(rule, folders) for rule in reversed(self._rules_of(folder))]
            if folder == root:
                break
            folders = [os.path.basename(folder), *folders]
            folder = os.path.dirname(folder)
        rules += [(rule, folders) for rule in reversed(self._rules_of(root, _exclude_of(root)))]
        if len(self._scopes) >= SCOPES_MAX:
            self._scopes.clear()
        found = self._scopes[directory] = Scope(rules, self._combined)
        return found

    def _rules_of(self, directory: str, name: str = ".gitignore") -> list[Rule]:
        path = os.path.join(directory, name)
        if path not in self._rules:
            if len(self._rules) >= CACHED_MAX:
                self._rules.clear()
            self._rules[path] = _read_rules(path)
        return self._rules[path]


def _exclude_of(root: str) -> str:
    """Where a work tree's own rules are: of a linked one, in the repository it belongs to."""
    git = os.path.join(root, ".git")
    try:
        if os.path.isdir(git):
            return os.path.join(git, "info/exclude")
        folder = os.path.join(root, _one_line(git).removeprefix("gitdir:").strip())
        common = os.path.join(folder, _one_line(os.path.join(folder, "commondir")).strip())
    except (OSError, ValueError):
        return os.path.join(git, "info/exclude")
    return os.path.join(common, "info/exclude")


def _one_line(path: str) -> str:
    return os.fsdecode(_read(path, LINE_BYTES_MAX)).partition("\n")[0]


def _read_rules(path: str) -> list[Rule]:
    try:
        data = _read(path, FILE_BYTES_MAX)
    except OSError:
        return []
    lines = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape").split("\n")
    rules = [parse_rule(line) for line in lines[:RULES_MAX]]
    return [rule for rule in rules if rule is not None]


def _read(path: str, bytes_max: int) -> bytes:
    """The beginning of a regular file; of anything else nothing. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        return os.read(fd, bytes_max) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    finally:
        os.close(fd)
