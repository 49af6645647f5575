"""The same tree in front of every engine, and one answer to compare from each."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

from tests.unit.guest.real_guest import GuestSaidNo
from tests.unit.guest.search_place import SearchPlace, engines, search_place

Answer: TypeAlias = tuple[Any, ...]
FACTS = ("capped", "cut", "timed_out", "unsearched", "first_error", "binary", "ignored")

LINES = [
    *(b"foo", b"foo bar", b"foobar", b"Foo", b"FOO bar", b"foo_bar", b"_foo_", b"foo-bar"),
    *(b"foo(bar)", b"def foo(self):", b"    return x[1]", b"import os", b"TODO: x", b"x==y"),
    *(b"a{b", b"a}b]", b"x.y", b"a-b", b"a|b", b"a^b$c", b"\\n", b"\\", b'"q"', b"it's", b"[x]"),
    *(b"[]", b"-", b"^", b"]", b":", b"a:b", b"~", b"&&", b"#foo", b"$x", b"foo.", b"a/b/c"),
    *(b"", b"1", b"12", b"a1b2", b"aa", b"aaa", b"ab", b"abab", b"tab\there", b"  lead"),
    *(b"trail  ", b"\x01", b"\x7f", b"foo\r", b"bar \r", b"\r", b"foo \r"),
    *(
        "café|été foo|naïve|٣|x\xa0y|\u212a|K|k|ſ|s|“q”|foo—bar|😀|😀foo|ÉTÉ|Σ|ς|straße".encode()
    ).split(b"|"),
    *(b"\xe9foo", b"foo\xe9", b"a\xffb", b"\xb0foo", b"foo\xb0bar"),
]
"""What patterns are tried on: every kind of character that expressions treat in its own way."""

PATTERNS = r"""
foo
foo|bar
^foo
foo$
^$
\bfoo\b
\bfoo
foo\b
\Bfoo
foo\B
\b
\B
\bfoo\b.*\bbar\b
\b(foo|bar)\b
\b\w+\b
foo\b|\bbar
(\bfoo)?bar
(?:\bfoo\b|x)y?
^\bfoo\b$
.\b.
\w\B\w
\bé
é\b
😀\b
\bcaf\b
\b[A-Z]+\b
foo\b\s*\(
\w+
^\w+$
^\W+$
\d+
\D
\s
x\sy
[\w-]+
[^\w\s]
[^a-z]
[\d.]+
[[:alpha:]]+
[[:^alpha:]]
[[:word:]]
(?i)foo
(?i)k
(?i)S
(?i)été
(?i)[a-k]
(?i)[^a-k]
(?i)Σ
(?i:foo) bar
(?-i)foo
(?i)f(?-i)oo
a(?i)B|K
(?i)\bFOO\b
(?s)foo.
(?m)^foo
(?U)fo+
a.b
^.$
^..$
foo.
.*foo.*
a{2}
^a{2,3}$
a{2,}
a{0}b
a\{b
a\}b
}
]
[]]
[]a]
[^]]
[a\]]
[\[\]]
[-]
[a-]
[-a]
[\-x]
[:]
[a:]
[\^]
[\^-]
[\^\[-]
[.]
[*+?]
[$]
[&]
[\\]
[^"]*"
"[^"]*"
\$x
\^
\.
x\.y
\(
foo\(bar\)
x\[1\]
\\
\\n
(a|)
(|a)b
()
a||b
(a|b|)c
x*
^*a
a**
(a*)*b
(ab)+
(ab){2}
(ab)*?b
a+?b
a??b
(?:foo)bar
(?P<name>foo)
(?<name>foo)
\tfoo
tab\there
\x41
\x{e9}
\u00e9
\"q\"
it\'s
a\/b
a\-b
a\:b
x\=\=y
\#foo
\ foo
\_foo
é
[é]
[^é]
[à-ü]
é*t
“.*”
^😀$
[\x00-\x1f]
[^\x00-\x7F]
[a-c&&b-d]
[a-z--b]
[\w&&[^\d]]
[[a-c]x]
\w{3}
^\w{1,3}$
(^|x)foo
(foo|$)
a$b
foo^
[a-zA-Z_][a-zA-Z0-9_]*
def \w+\(
^\s*$
^\s+return
import\s+\w+
\w+\s*==\s*\w+
foo.*$
^.+$
(foo
foo)
[foo
a{
{a
a{b
a{2,1}
a{,2}
*a
+a
?a
a|*b
(*a)
[z-a]
[\d-z]
[a-\d]
(?=a)
(?!a)
(?<=a)b
(?<!a)b
(a)\1
(?
(?:
(?P<1>a)
(?#x)a
(?>a)
\y
\h
\e
\Q
\R
\c
foo\n
foo\r
[\n]
[\r\n]
[\ra]
a{2, 3}
a{ 2 ,}
a{2, }
a{ 2 , 3 }
a{1\,2}
(?i)[a-z--K]
(?i)[a-z&&K]
(?i)[^a-z~~K]
(?P<n>a)(?P<n>b)
(?P<n>a)|(?<n>b)
(?P<a\_b>a)
(?P<a.b>a)
(?\=a)
\,\_\=\!\ \:
""".strip().split("\n")
"""Patterns of which every engine says the same, refusals too."""


@contextmanager
def all_places() -> Iterator[dict[str, SearchPlace]]:
    """A guest for each engine."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(search_place(setup))
            for name, setup in sorted(engines().items())
        }


def write_everywhere(places: dict[str, SearchPlace], files: dict[str | bytes, bytes]) -> None:
    """The same files in every place, and nothing else."""
    for place in places.values():
        place.empty()
        for path, content in files.items():
            with contextlib.suppress(NotADirectoryError, IsADirectoryError, FileExistsError):
                place.write(path, content)


def answer(place: SearchPlace, pattern: str, **args: Any) -> Answer:
    """Facts and rows, or the reason of a refusal."""
    try:
        facts, rows = place.grep(pattern, **args)
    except GuestSaidNo as said:
        return (said.reason,)
    workdir = os.fspath(place.workdir)
    return (
        {name: facts[name] for name in FACTS},
        [(path.replace(workdir, "WORKDIR"), line, text) for path, line, text in rows],
    )


def answers(places: dict[str, SearchPlace], pattern: str, **args: Any) -> dict[str, Answer]:
    return {name: answer(place, pattern, **args) for name, place in places.items()}


def differing(places: dict[str, SearchPlace], pattern: str, **args: Any) -> dict[str, Answer]:
    """The answers, where they are not all the same."""
    found = answers(places, pattern, **args)
    first = next(iter(found.values()))
    return {} if all(each == first for each in found.values()) else found
