"""Reads an expression in ripgrep's syntax, as models write it.

What is accepted has the meaning that ripgrep gives it, and what ripgrep refuses is
refused in its words, so that both engines agree. What no other grep can do is refused
too and says so: look-around, backreferences, `\\p{...}`, anchors of the whole text.
A lazy repetition finds the same lines as a greedy one, and a group with a name the
same as one without: these need no help from the engine.
"""

from __future__ import annotations

import re
from typing import Final

from . import ere_sets
from .ere_nodes import Boundary, Chars, Choice, Concat, Edge, Node, Repeat
from .ere_sets import Ranges
from .ops import OpError

NESTED_MAX: Final = 200
COUNT_MAX: Final = 1_000
WRITTEN_BYTES_MAX: Final = 100_000
"""Of all classes as they are written for a grep, see `ere`."""
MEMBER_RANGES_MAX: Final = 100_000
"""Of all members of brackets together: joining them takes a tenth of a second."""
TOO_LARGE: Final = (
    "the pattern is too large for this sandbox's grep: use fewer classes and smaller counts"
)
_LINE_FEED: Final = ere_sets.single("\n")
_RETURN: Final = ere_sets.single("\r")
_EITHER: Final = ere_sets.union(_LINE_FEED, _RETURN)
_NAME: Final = re.compile(r"[^\W\d][\w.\[\]]*")
_REPEATED: Final = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_CONTROLS: Final = {"a": 0x07, "f": 0x0C, "t": 0x09, "n": 0x0A, "r": 0x0D, "v": 0x0B}
_HEX_DIGITS: Final = {"x": 2, "u": 4, "U": 8}
_BOUNDARIES: Final[dict[str, frozenset[str]]] = {
    "b": frozenset({"wn", "nw"}),
    "B": frozenset({"ww", "nn"}),
    "<": frozenset({"nw"}),
    ">": frozenset({"wn"}),
    "b{start}": frozenset({"nw"}),
    "b{end}": frozenset({"wn"}),
    "b{start-half}": frozenset({"nw", "nn"}),
    "b{end-half}": frozenset({"wn", "nn"}),
}


def parse(pattern: str) -> Node:
    """Raises `OpError` INVALID_PATTERN."""
    return _Parser(pattern).whole()


def literal(text: str, *, ignore_case: bool = False) -> Node:
    """A text as it stands."""
    for char, name in (("\n", "\\n"), ("\r", "\\r")):
        if char in text:
            raise _line_end(name)
    chars = [ere_sets.single(char) for char in text]
    return Concat(tuple(Chars(ere_sets.any_case(each) if ignore_case else each) for each in chars))


def refusal(pattern: str, words: str) -> OpError:
    shown = pattern if len(pattern) <= 200 else pattern[:200] + "…"
    return OpError("INVALID_PATTERN", f"regex parse error:\n    {shown}\nerror: {words}")


def _line_end(name: str) -> OpError:
    return OpError("INVALID_PATTERN", f'the literal "{name}" is not allowed in a regex')


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._nested = 0
        self._stacked = 0
        self._ignore_case = False
        self._names: set[str] = set()
        self._written_bytes = 0
        self._member_ranges = 0

    def whole(self) -> Node:
        node = self._choice()
        if self._at < len(self._text):
            raise self._no("unopened group")
        return node

    def _no(self, words: str) -> OpError:
        return refusal(self._text, words)

    def _peek(self, length: int = 1) -> str:
        return self._text[self._at : self._at + length]

    def _take(self, text: str) -> bool:
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    # --- outside of brackets --------------------------------------------------

    def _choice(self) -> Node:
        """Options up to the end or to a closing parenthesis, which is left."""
        ignored_case = self._ignore_case
        options = [self._concat()]
        while self._take("|"):
            options.append(self._concat())
        # Flags inside a group end with it.
        self._ignore_case = ignored_case
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _concat(self) -> Node:
        items: list[Node] = []
        repeatable = False
        while (char := self._peek()) and char not in "|)":
            if char in "*+?{":
                if not repeatable:
                    raise self._no("repetition operator missing expression")
                low, high = self._repetition()
                if isinstance(items[-1], Repeat):
                    # Counted all over the pattern, so that groups do not multiply them.
                    self._stacked += 1
                    if self._stacked > NESTED_MAX:
                        raise self._no(
                            f"more than {NESTED_MAX} repetitions of repetitions need ripgrep"
                        )
                items[-1] = Repeat(items[-1], low, high)
                continue
            node = self._item()
            repeatable = node is not None
            if node is not None:
                items.append(node)
        return items[0] if len(items) == 1 else Concat(tuple(items))

    def _repetition(self) -> tuple[int, int | None]:
        char = self._peek()
        self._at += 1
        low, high = _REPEATED[char] if char in _REPEATED else self._counts()
        # Lazy or not, the lines are the same.
        self._take("?")
        return low, high

    def _counts(self) -> tuple[int, int | None]:
        end = self._text.find("}", self._at)
        inside = self._text[self._at : end if end >= 0 else None]
        first, comma, second = (part.strip() for part in inside.partition(","))
        # A blank may stand beside a number, not in place of one.
        no_second = comma and not second and not inside.endswith(",")
        if no_second or not first[:1].isdecimal() or not first[0].isascii():
            raise self._no("repetition quantifier expects a valid decimal")
        if end < 0:
            raise self._no("unclosed counted repetition")
        if any(not part.isascii() or not part.isdecimal() for part in (first, second or "0")):
            raise self._no("unclosed counted repetition")
        self._at = end + 1
        high = int(second) if second else (None if comma else int(first))
        low = int(first)
        if high is not None and high < low:
            raise self._no("invalid repetition count range, the start must be <= the end")
        if max(low, high or 0) > COUNT_MAX:
            raise self._no(f"a repetition of more than {COUNT_MAX} times needs ripgrep")
        return low, high

    def _item(self) -> Node | None:
        """The next item; None for flags, which are nothing to repeat."""
        if self._take("("):
            return self._group()
        if self._take("["):
            return self._chars(self._bracket())
        if self._take("\\"):
            return self._escape()
        char = self._peek()
        self._at += 1
        if char == ".":
            return Chars(ere_sets.complement(ere_sets.OUT_OF_LINES))
        if char in "^$":
            return Edge(char == "^")
        return self._chars(ere_sets.single(char))

    def _group(self) -> Node | None:
        before = self._ignore_case
        if self._take("?") and not self._opening():
            return None
        self._nested += 1
        if self._nested > NESTED_MAX:
            raise self._no(f"groups nested more than {NESTED_MAX} deep need ripgrep")
        node = self._choice()
        self._ignore_case = before
        self._nested -= 1
        if not self._take(")"):
            raise self._no("unclosed group")
        return node

    def _opening(self) -> bool:
        """What follows `(?`. False: it was flags alone, up to the parenthesis."""
        for sign in ("=", "!", "<=", "<!"):
            if self._take(sign):
                words = "look-around, including look-ahead and look-behind, is not supported"
                raise self._no(words)
        if self._take("P<") or self._take("<"):
            end = self._text.find(">", self._at)
            name = self._text[self._at : end] if end >= 0 else ""
            if _NAME.fullmatch(name) is None:
                raise self._no("invalid or unclosed capture group name")
            if name in self._names:
                raise self._no("duplicate capture group name")
            self._names.add(name)
            self._at = end + 1
            return True
        return self._flags()

    def _flags(self) -> bool:
        on = True
        seen = 0
        while char := self._peek():
            self._at += 1
            seen += 1
            if char == ":" or (char == ")" and seen > 1):
                return char == ":"
            if char == "-" and on:
                on = False
            elif char == "i":
                self._ignore_case = on
            # Within lines these change nothing: `.` never finds a line's end, `^` and
            # `$` are those of the line, and greed only moves the end of a match.
            elif char not in "sU" and not (char in "mu" and on):
                known = char in "mRux"
                raise self._no(f"the flag {char} needs ripgrep" if known else "unrecognized flag")
        raise self._no("unclosed group")

    def _escape(self) -> Node:
        for name in sorted(_BOUNDARIES, key=len, reverse=True):
            if self._take(name):
                return Boundary(_BOUNDARIES[name])
        if self._peek() in ("A", "z"):
            raise self._no(f"\\{self._peek()} needs ripgrep; use ^ or $ for the ends of lines")
        found = self._class_escape()
        if found is not None:
            return self._chars(found)
        return self._chars(ere_sets.single(chr(self._code())))

    def _chars(self, ranges: Ranges) -> Chars:
        if ranges in (_LINE_FEED, _RETURN, _EITHER):
            raise _line_end("\\r" if ranges == _RETURN else "\\n")
        if self._ignore_case:
            ranges = ere_sets.any_case(ranges)
        ranges = ere_sets.difference(ranges, ere_sets.OUT_OF_LINES)
        self._written_bytes += len(ere_sets.expression(ranges))
        if self._written_bytes > WRITTEN_BYTES_MAX:
            raise self._no(TOO_LARGE)
        return Chars(ranges)

    # --- escapes --------------------------------------------------------------

    def _class_escape(self) -> Ranges | None:
        """The set of `\\d` and the like, behind the backslash; None: it is a character."""
        char = self._peek()
        if char in ("p", "P"):
            raise self._no(
                "Unicode classes such as \\p{L} need ripgrep; use \\w, \\d, \\s or a bracket"
            )
        if not char or char not in "dwsDWS":
            return None
        self._at += 1
        kind = char.lower()
        found = (
            ere_sets.digits() if kind == "d" else ere_sets.word() if kind == "w" else ere_sets.SPACE
        )
        return ere_sets.complement(found) if char.isupper() else found

    def _code(self) -> int:
        """The character behind a backslash."""
        char = self._peek()
        self._at += 1
        if not char:
            raise self._no("incomplete escape sequence, reached end of pattern prematurely")
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char in _HEX_DIGITS:
            return self._hex(_HEX_DIGITS[char])
        if char.isascii() and char.isdigit():
            raise self._no("backreferences are not supported")
        if not char.isascii() or char.isalnum() or char in "<>" or char < " ":
            raise self._no("unrecognized escape sequence")
        return ord(char)

    def _hex(self, length: int) -> int:
        if self._take("{"):
            end = self._text.find("}", self._at)
            inside = self._text[self._at : end] if end >= 0 else ""
            self._at = end + 1
        else:
            inside = self._peek(length)
            self._at += length
            if len(inside) < length:
                inside = ""
        try:
            if not inside.isalnum():
                raise ValueError
            code = int(inside, 16)
            chr(code).encode()
        except (ValueError, OverflowError):
            raise self._no("hexadecimal literal is not a Unicode character") from None
        return code

    # --- brackets -------------------------------------------------------------

    def _bracket(self) -> Ranges:
        """The set of a bracket, behind its opening."""
        self._nested += 1
        if self._nested > NESTED_MAX:
            raise self._no(f"brackets nested more than {NESTED_MAX} deep need ripgrep")
        negated = self._take("^")
        members: list[Ranges] = []
        while self._take("-"):
            members.append(ere_sets.single("-"))
        if not members and self._take("]"):
            members.append(self._range_from(ord("]")))
        left: Ranges | None = None
        operator = ""
        while not self._take("]"):
            sign = self._peek(2)
            if sign in ("&&", "--", "~~"):
                left = self._combined(left, operator, self._joined(members))
                operator, members = sign, []
                self._at += 2
            else:
                members.append(self._member())
                self._member_ranges += len(members[-1])
                if self._member_ranges > MEMBER_RANGES_MAX:
                    raise self._no(TOO_LARGE)
        self._nested -= 1
        found = self._combined(left, operator, self._joined(members))
        return ere_sets.complement(found) if negated else found

    def _joined(self, members: list[Ranges]) -> Ranges:
        """All characters of some sets. Cases come before what is taken away from them."""
        found = ere_sets.normal(each for ranges in members for each in ranges)
        return ere_sets.any_case(found) if self._ignore_case else found

    @staticmethod
    def _combined(left: Ranges | None, operator: str, right: Ranges) -> Ranges:
        if left is None:
            return right
        if operator == "&&":
            return ere_sets.intersection(left, right)
        without = ere_sets.difference(left, right)
        if operator == "--":
            return without
        return ere_sets.union(without, ere_sets.difference(right, left))

    def _member(self) -> Ranges:
        if not self._peek():
            raise self._no("unclosed character class")
        if self._take("["):
            return self._named() or self._bracket()
        if self._take("\\"):
            found = self._class_escape()
            if found is not None:
                if self._peek() == "-" and self._peek(2) not in ("-]", "--"):
                    raise self._no("invalid range boundary, must be a literal")
                return found
            return self._range_from(self._code())
        char = self._peek()
        self._at += 1
        return self._range_from(ord(char))

    def _range_from(self, low: int) -> Ranges:
        if self._peek() != "-" or self._peek(2) in ("-]", "--"):
            return ((low, low),)
        self._at += 1
        if not self._peek():
            raise self._no("unclosed character class")
        if self._take("\\"):
            if self._class_escape() is not None:
                raise self._no("invalid range boundary, must be a literal")
            high = self._code()
        else:
            high = ord(self._peek())
            self._at += 1
        if high < low:
            raise self._no("invalid character class range, the start must be <= the end")
        return ere_sets.normal([(low, high)])

    def _named(self) -> Ranges | None:
        """The set of `[:alpha:]`, behind its bracket; None: it is none, as in ripgrep."""
        end = self._text.find(":]", self._at + 1)
        if self._peek() != ":" or end < 0:
            return None
        name = self._text[self._at + 1 : end]
        found = ere_sets.ASCII_CLASSES.get(name.removeprefix("^"))
        if found is None:
            return None
        self._at = end + 2
        return ere_sets.complement(found) if name.startswith("^") else found
