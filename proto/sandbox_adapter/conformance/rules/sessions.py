"""Rules on sessions: ids, repeating, fencing, limits, deletion (contract.md 2 and 3)."""

from __future__ import annotations

import asyncio
from typing import Final

from google.protobuf.duration_pb2 import Duration

from sandbox_adapter import errors
from sandbox_adapter.client import new_id
from sandbox_adapter.conformance import expect
from sandbox_adapter.conformance.outcome import Broken, Uncheckable
from sandbox_adapter.conformance.place import Place
from sandbox_adapter.conformance.rule import ISOLATED, SIX_TOOLS, rule
from sandbox_adapter.v1 import session_pb2

CENTURY_S: Final = 100 * 365 * 86_400.0
"""A lifetime that hardly any profile allows."""
BAD_IDS: Final = ("-a", ".a", "a b", "a/b", "a\n", "é", "a" * 65, "a\0b", "_a")


@rule("sessions.echoes-what-is-in-force", cases=["contract 3"], needs=())
async def echoes_what_is_in_force(place: Place) -> None:
    """A new session is READY and says what it got."""
    async with place.target.session(labels={"kit": "yes"}) as session:
        expect.equal(session.state, session_pb2.SESSION_STATE_READY, "state")
        expect.equal(session.generation, 1, "generation")
        expect.equal(dict(session.labels), {"kit": "yes"}, "labels")
        effective = session.effective
        for name in ("working_directory", "home_directory"):
            path = getattr(effective, name)
            expect.holds(path.startswith("/"), f"{name} is {path!r}")
        expect.holds(bool(effective.quota_mechanism), "quota_mechanism is empty")
        expect.holds(bool(effective.network), "the network is not echoed")
        created = session.created_at.ToNanoseconds()
        expect.holds(session.expires_at.ToNanoseconds() > created, "expires_at")
        expect.holds(session.idle_expires_at.ToNanoseconds() > created, "idle_expires_at")
        expect.holds(bool(session.phases), "no phase of the start is told")
        expect.equal(await place.client.get_session(session.session_id), session, "GetSession")


@rule("sessions.create-repeated", cases=["contract 2"], needs=())
async def create_repeated(place: Place) -> None:
    """The same id with the same specification is the same session."""
    async with place.target.session(env={"A": "1", "B": "2"}) as session:
        request = session_pb2.CreateSessionRequest(
            session_id=session.session_id,
            profile=place.target.profile,
            env={"B": "2", "A": "1"},
        )
        answer = await place.target.send(place.target.sessions.CreateSession, request)
        expect.holds(answer.replayed, "replayed is not set")
        expect.equal(answer.session.created_at, session.created_at, "created_at")


@rule("sessions.create-conflict", cases=["contract 2"], needs=())
async def create_conflict(place: Place) -> None:
    """The same id with another specification is refused, and the session stays."""
    async with place.target.session(env={"A": "1"}) as session:
        for env in ({"A": "2"}, {}, {"A": "1", "B": ""}):
            with expect.fails("ALREADY_EXISTS", "ID_CONFLICT"):
                await place.client.create_session(
                    session_id=session.session_id, profile=place.target.profile, env=env
                )
        now = await place.client.get_session(session.session_id)
        expect.equal(now.state, session_pb2.SESSION_STATE_READY, "state")


@rule("sessions.create-at-once", cases=["contract 2"], needs=())
async def create_at_once(place: Place) -> None:
    """Eight creates of one id at once make one session."""
    session_id = new_id("conformance")
    request = session_pb2.CreateSessionRequest(session_id=session_id, profile=place.target.profile)
    create = place.target.sessions.CreateSession
    try:
        answers = await asyncio.gather(*(place.target.send(create, request) for _ in range(8)))
    finally:
        await place.client.delete_session(session_id)
    expect.equal(sum(not answer.replayed for answer in answers), 1, "creates that made it")
    starts = {answer.session.created_at.ToNanoseconds() for answer in answers}
    expect.equal(len(starts), 1, "different sessions")


@rule("sessions.server-makes-ids", cases=["contract 2"], needs=())
async def server_makes_ids(place: Place) -> None:
    """Without an id the server makes one and returns it."""
    request = session_pb2.CreateSessionRequest(profile=place.target.profile)
    answer = await place.target.send(place.target.sessions.CreateSession, request)
    try:
        expect.holds(bool(answer.session.session_id), "the id is empty")
    finally:
        await place.client.delete_session(answer.session.session_id)


@rule("sessions.refuses-bad-ids", cases=["contract 2"], needs=())
async def refuses_bad_ids(place: Place) -> None:
    """An id that breaks the rule of ids is a fault of the envelope that names the field."""
    for bad in BAD_IDS:
        request = session_pb2.CreateSessionRequest(session_id=bad, profile=place.target.profile)
        try:
            with expect.fails("INVALID_ARGUMENT", "INVALID_ENVELOPE", field="session_id"):
                await place.target.send(place.target.sessions.CreateSession, request)
        except Broken as broken:
            raise Broken(f"id {expect.shown(bad)}: {broken}") from None


@rule("sessions.refuses-unknown-profiles", cases=["contract 3"], needs=())
async def refuses_unknown_profiles(place: Place) -> None:
    """A profile that is not offered cannot be named."""
    with expect.fails("INVALID_ARGUMENT", "PROFILE_UNKNOWN"):
        await place.client.create_session(profile="no-such-profile-anywhere")


@rule("sessions.unknown-everywhere", cases=["contract 4"], needs=())
async def unknown_everywhere(place: Place) -> None:
    """Every RPC answers NOT_FOUND for a session that is not there."""
    client, unknown = place.client, new_id("never")
    requests = (
        client.get_session(unknown),
        client.update_session(unknown),
        client.delete_session(unknown),
        client.call_tool(unknown, "read", {"path": "f"}),
        client.get_call(unknown, "c"),
        client.cancel_call(unknown, "c"),
    )
    for request in requests:
        try:
            with expect.fails("NOT_FOUND", "SESSION_UNKNOWN"):
                await request
        except Broken:
            for other in requests:
                other.close()
            raise


@rule("sessions.deleted-stays-deleted", cases=["contract 2", "contract 3"])
async def deleted_stays_deleted(place: Place) -> None:
    """A deleted session is gone, is deleted again at no cost, and its id is not reused."""
    client = place.client
    async with place.target.session() as session:
        gone = session.session_id
        await client.call_tool(gone, "write", {"path": "f", "content": "x"}, call_id="c1")
        await client.delete_session(gone)
        await client.delete_session(gone)
        with expect.fails("FAILED_PRECONDITION", "SESSION_DELETED"):
            await client.get_session(gone)
        with expect.fails("FAILED_PRECONDITION", "SESSION_DELETED"):
            await client.create_session(session_id=gone, profile=place.target.profile)
        with expect.fails("FAILED_PRECONDITION", "SESSION_DELETED"):
            await client.call_tool(gone, "read", {"path": "f"})
        with expect.fails("FAILED_PRECONDITION", "SESSION_DELETED"):
            await client.get_call(gone, "c1")
        with expect.fails("FAILED_PRECONDITION", "SESSION_DELETED"):
            await client.update_session(gone)
        listed = [found.session_id async for found in client.list_sessions()]
        expect.holds(gone not in listed, "it is still listed")


@rule("sessions.delete-ends-calls", cases=["contract 3"])
async def delete_ends_calls(place: Place) -> None:
    """Deletion ends what runs as CANCELLED, with the reason, and does not wait for it."""
    await place.require("sleep")
    async with place.target.session() as session:
        own = Place(place.target, session, session.effective.working_directory)
        running = asyncio.create_task(own.bash("echo begun > begun; sleep 300"))
        await own.until_made("begun", running)
        await place.client.delete_session(session.session_id)
        result = await running
        expect.ending_is(result, "CANCELLED")
        expect.equal(expect.reason_of(result), "CANCELLED_BY_DELETE", "reason")


@rule("sessions.list-in-pages", cases=["contract 3"], needs=())
async def list_in_pages(place: Place) -> None:
    """Pages of one show every session once, oldest first."""
    target = place.target
    async with target.session() as one, target.session() as two, target.session() as three:
        mine = [one.session_id, two.session_id, three.session_id]
        seen = [found.session_id async for found in place.client.list_sessions(page_size=1)]
        expect.equal(len(set(seen)), len(seen), "a session is listed twice")
        expect.equal([found for found in seen if found in mine], mine, "order")


@rule("sessions.refuses-bad-pages", cases=["contract 4"], needs=())
async def refuses_bad_pages(place: Place) -> None:
    """A page size or token that is malformed is a fault of the envelope."""
    for request in (
        session_pb2.ListSessionsRequest(page_size=-1),
        session_pb2.ListSessionsRequest(page_size=1_001),
        session_pb2.ListSessionsRequest(page_token="no token"),
    ):
        with expect.fails("INVALID_ARGUMENT", "INVALID_ENVELOPE"):
            await place.target.send(place.target.sessions.ListSessions, request)


@rule("sessions.update", cases=["contract 3"], needs=())
async def update(place: Place) -> None:
    """UpdateSession sets timeouts and labels, removes empty ones, and counts as use."""
    client = place.client
    async with place.target.session(labels={"a": "1", "b": "2"}) as session:
        changed = await client.update_session(
            session.session_id, idle_timeout_s=77.0, labels={"a": "", "c": "3"}
        )
        expect.equal(dict(changed.labels), {"b": "2", "c": "3"}, "labels")
        expect.equal(changed.idle_timeout, Duration(seconds=77), "idle timeout")
        # More than one, in case the adapter's clock is coarse.
        before = changed.idle_expires_at.ToNanoseconds()
        for _ in range(50):
            again = await client.update_session(session.session_id)
            if again.idle_expires_at.ToNanoseconds() > before:
                return
            await asyncio.sleep(0.2)
        raise Broken("keep-alives do not move idle_expires_at")


@rule("sessions.epochs-fence", cases=["contract 2"])
async def epochs_fence(place: Place) -> None:
    """Once an epoch was seen a smaller one is refused everywhere, and nothing happens."""
    client = place.client
    async with place.target.session() as session:
        sid = session.session_id
        expect.equal((await client.update_session(sid, epoch=7)).epoch, 7, "epoch")
        with expect.fails("ABORTED", "EPOCH_STALE"):
            await client.update_session(sid, epoch=6, labels={"x": "y"})
        with expect.fails("ABORTED", "EPOCH_STALE"):
            await client.call_tool(sid, "write", {"path": "f", "content": "x"}, epoch=0)
        await client.call_tool(sid, "glob", {"pattern": "f"}, call_id="c")
        with expect.fails("ABORTED", "EPOCH_STALE"):
            await client.cancel_call(sid, "c", epoch=1)
        with expect.fails("ABORTED", "EPOCH_STALE"):
            await client.delete_session(sid, epoch=6)
        now = await client.get_session(sid)
        expect.equal(dict(now.labels), {}, "labels after a stale update")
        missing = await client.call_tool(sid, "read", {"path": "f"})
        expect.refused(missing.result, "FILE_NOT_FOUND")
        await client.call_tool(sid, "read", {"path": "f"}, epoch=7)
        await client.call_tool(sid, "read", {"path": "f"}, epoch=2**64 - 1)
        with expect.fails("ABORTED", "EPOCH_STALE"):
            await client.call_tool(sid, "read", {"path": "f"}, epoch=7)


@rule("sessions.give-their-environment", cases=["contract 3"])
async def give_their_environment(place: Place) -> None:
    """The session's environment reaches every command as it stands."""
    value = "a b'c\"d$e\n`é`"
    async with place.target.session(env={"KIT_VALUE": value}) as session:
        own = Place(place.target, session, session.effective.working_directory)
        expect.exited(await own.bash('printf %s "$KIT_VALUE"'), 0, value)


@rule("sessions.refuses-bad-environments", cases=["contract 4"], needs=())
async def refuses_bad_environments(place: Place) -> None:
    """Names that are none, NUL, and more than the announced bound are refused."""
    bad = [{"A-B": "1"}, {"1A": "1"}, {"": "1"}, {"A": "x\0y"}]
    if most := place.target.limits.env_bytes_max:
        bad.append({"A": "x" * (most + 1)})
    for env in bad:
        with expect.fails("INVALID_ARGUMENT", "INVALID_ENVELOPE"):
            await place.client.create_session(profile=place.target.profile, env=env)


@rule("sessions.refuses-bad-labels", cases=["contract 4"], needs=())
async def refuses_bad_labels(place: Place) -> None:
    """Labels over their bounds are refused."""
    limits = place.target.limits
    bad = []
    if limits.labels_max:
        bad.append({f"k{number}": "v" for number in range(limits.labels_max + 1)})
    if limits.label_key_chars_max:
        bad.append({"k" * (limits.label_key_chars_max + 1): "v"})
    if limits.label_value_chars_max:
        bad.append({"k": "v" * (limits.label_value_chars_max + 1)})
    if not bad:
        raise Uncheckable("the adapter bounds no labels")
    for labels in bad:
        with expect.fails("INVALID_ARGUMENT", "INVALID_ENVELOPE"):
            await place.client.create_session(profile=place.target.profile, labels=labels)


@rule("sessions.overrides-stay-in-the-profile", cases=["contract 3"], needs=())
async def overrides_stay_in_the_profile(place: Place) -> None:
    """An override is in force or refused, never mended; a negative one is malformed."""
    client, profile = place.client, place.target.profile
    try:
        async with place.target.session(max_lifetime_s=CENTURY_S) as session:
            created, expires = session.created_at.ToSeconds(), session.expires_at.ToSeconds()
            expect.holds(abs(expires - created - CENTURY_S) < 60, "the lifetime was reduced")
    except errors.AdapterError as error:
        _forbidden(error)
    for seconds in (-1.0, 0.0):
        with expect.fails("INVALID_ARGUMENT", "INVALID_ENVELOPE"):
            await client.create_session(profile=profile, idle_timeout_s=seconds)
    huge = session_pb2.Resources(memory_bytes=2**60)
    try:
        async with place.target.session(resources=huge) as session:
            given = session.effective.resources.memory_bytes
            expect.equal(given, huge.memory_bytes, "memory in force")
    except errors.AdapterError as error:
        _forbidden(error)


def _forbidden(error: errors.AdapterError) -> None:
    with expect.fails("PERMISSION_DENIED", "PROFILE_FORBIDS"):
        raise error


@rule("sessions.do-not-share-files", cases=["contract 3"], needs=(ISOLATED, SIX_TOOLS))
async def do_not_share_files(place: Place) -> None:
    """A file of one session is not there in another."""
    async with place.target.session() as other:
        for path in ("kit-own-file", "/tmp/kit-own-file", "~/kit-own-file"):
            own = await place.call("write", {"path": path, "content": "x"})
            if own.is_error:
                continue
            answer = await place.client.call_tool(other.session_id, "read", {"path": path})
            expect.refused(answer.result, "FILE_NOT_FOUND")
