"""What the daemon tells Prometheus about what it did."""

from __future__ import annotations

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.conftest import OpenSession


def scrape(address: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = httpx.get(f"http://{address}/metrics", timeout=10).text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_calls_sessions_and_phases_are_counted(session: OpenSession) -> None:
    before = scrape(session.daemon.metrics)
    await session.bash("exit 3")
    await session.bash("seq 5000")
    await session.tool("write", path="f", content="x")
    await session.tool("edit", path="f", oldText="x", newText="y")
    await session.bash("sleep 5", timeout=0.1)
    after = scrape(session.daemon.metrics)

    def rise(name: str, **labels: str) -> float:
        key = (name, tuple(sorted(labels.items())))
        return after.get(key, 0) - before.get(key, 0)

    assert rise("sandboxd_call_seconds_count", tool="bash", ending="EXITED") == 2
    assert rise("sandboxd_call_seconds_count", tool="bash", ending="TIMED_OUT") == 1
    assert rise("sandboxd_call_seconds_count", tool="write", ending="COMPLETED") == 1
    assert rise("sandboxd_truncations_total", tool="bash") == 1
    assert rise("sandboxd_lock_wait_seconds_count") == 2
    assert after["sandboxd_sessions", (("state", "READY"),)] >= 1
    assert after["sandboxd_session_phase_seconds_count", (("phase", "guest_ready"),)] >= 1
    if session.backend == "docker":
        engine_calls = {
            dict(labels)["call"]
            for name, labels in after
            if name == "sandboxd_engine_call_seconds_count"
        }
        assert {"create", "start"} <= engine_calls
    # No label holds what a client or a session chose.
    assert session.id not in str(after)
