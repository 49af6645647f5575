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
