"""Which mount a path comes to, by the kernel's own table (security S11)."""

from __future__ import annotations

import pytest

from sandboxd.guest.places import is_visible_mount

HOME = "/var/tmp/sandbox"


def table(*mounts: tuple[int, int, str]) -> list[str]:
    """Lines of mountinfo: id, the id of the mount below, the place."""
    return [f"{own} {below} 0:1 / {place} rw - ext4 x rw\n" for own, below, place in mounts]


ROOT = (10, 1, "/")


@pytest.mark.parametrize(
    ("mounts", "visible"),
    [
        ([ROOT, (11, 10, HOME)], True),
        ([ROOT, (11, 10, "/var/tmp"), (12, 11, HOME)], True),
        ([ROOT, (11, 10, HOME), (12, 11, f"{HOME}/deeper")], True),
        ([ROOT, (11, 10, HOME), (12, 10, "/var/tmp-other")], True),
        # Two at one place: the upper one begins there as well.
        ([ROOT, (11, 10, HOME), (12, 11, HOME)], True),
        ([ROOT, (11, 10, HOME), (12, 10, "/var/tmp")], False),
        ([ROOT, (12, 10, "/var/tmp"), (11, 10, HOME)], False),
        ([ROOT, (11, 10, "/var"), (12, 11, HOME), (13, 10, "/var/tmp"), (14, 11, "/var")], False),
        ([ROOT, (11, 10, HOME), (12, 10, "/")], False),
        ([ROOT, (12, 10, "/var/tmp")], False),
        ([ROOT], False),
        ([], False),
    ],
)
def test_mount_is_visible_where_no_other_covers_it(
    mounts: list[tuple[int, int, str]], visible: bool
) -> None:
    assert is_visible_mount(HOME, table(*mounts)) is visible


def test_place_with_blanks_is_read_as_the_kernel_writes_it() -> None:
    assert is_visible_mount("/a b\\c", table(ROOT, (11, 10, "/a\\040b\\134c")))
