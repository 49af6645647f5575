"""What the engine's words become for a caller, and for the operator."""

from __future__ import annotations

import pytest

from sandboxd.backends import docker_failures as failures
from sandboxd.backends.engine import EngineRefused
from sandboxd.config import ProfileSettings


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("Unknown runtime specified runsc", "no runtime `runsc`"),
        ("unknown or invalid runtime name: runsc", "no runtime `runsc`"),
        ("write /var/lib/docker/tmp: no space left on device", "disk is full"),
        ("Minimum memory limit allowed is 6MB", "memory limit"),
        ("OCI runtime create failed: /secret/path: exec format error", "could not start"),
    ],
)
def test_start_failure_hints_and_keeps_the_engines_words_to_the_operator(
    words: str, hint: str
) -> None:
    failure = failures.start_failed(ProfileSettings(runtime="runsc"), EngineRefused(500, words))
    assert failure.reason == "START_FAILED"
    assert hint in str(failure)
    assert "/" not in str(failure)
    assert failure.operator_text == words


@pytest.mark.parametrize(
    ("words", "place"),
    [
        ("Cannot mkdir: /workspace is not a directory", "/workspace"),
        (
            'error mounting "/x/store/home" to rootfs at "/home/sandbox": x: not a directory',
            "/home/sandbox",
        ),
        (
            'error mounting "/state/x" to rootfs at "/.sandboxd/toolbox": open /x: not a directory',
            "/.sandboxd/toolbox",
        ),
        (
            "unable to find user 1: read /engine/overlay2/x/merged/etc/passwd: is a directory",
            "/etc/passwd",
        ),
    ],
)
def test_what_an_image_has_in_the_way_is_named_without_paths_of_the_host(
    words: str, place: str
) -> None:
    failure = failures.start_failed(ProfileSettings(), EngineRefused(500, words))
    assert str(failure) == f"what the image has at or above `{place}` is in the way of a mount"
    assert failure.operator_text == words


@pytest.mark.parametrize(
    ("image", "pulled"),
    [
        ("debian:bookworm-slim", True),
        ("example.org/sandboxd/base:1", True),
        ("sandboxd/base:dev", False),
        ("sha256:" + "0" * 64, False),
    ],
)
def test_images_that_no_registry_has_are_not_pulled(image: str, pulled: bool) -> None:
    assert failures.may_be_pulled(image) is pulled


def test_pull_failure_tells_a_missing_image_from_a_missing_registry() -> None:
    missing = failures.pull_failed("x:1", EngineRefused(404, "manifest unknown"))
    offline = failures.pull_failed("x:1", EngineRefused(500, "dial tcp: i/o timeout"))
    assert missing.reason == offline.reason == "PULL_FAILED"
    assert "no registry gives out" in str(missing)
    assert "could not be pulled" in str(offline)


def test_guest_that_is_not_ready_shows_its_log_to_the_operator_only() -> None:
    failure = failures.guest_not_ready("ended before it was ready", 1, "guest: line\x1b[31m")
    assert failure.reason == "GUEST_NOT_READY"
    assert str(failure) == "the sandbox's guest ended before it was ready (exit code 1)"
    assert "\\x1b[31m" in failure.operator_text
