"""The daemon's values as messages of the contract."""

from __future__ import annotations

import json
from typing import Final

from sandbox_adapter.v1 import adapter_pb2, session_pb2, tool_pb2
from sandboxd import limits
from sandboxd.config import ProfileSettings, Settings
from sandboxd.errors import InvalidEnvelope
from sandboxd.rpc.envelope import duration, seconds
from sandboxd.sessions.outcomes import timestamp
from sandboxd.sessions.records import SessionRecord, State
from sandboxd.sessions.specification import Specification
from sandboxd.tools.base import Tool

_NETWORKS: Final = {
    "none": session_pb2.NETWORK_NONE,
    "allowlist": session_pb2.NETWORK_ALLOWLIST,
    "open": session_pb2.NETWORK_OPEN,
}
_STATES: Final = {
    State.CREATING: session_pb2.SESSION_STATE_CREATING,
    State.READY: session_pb2.SESSION_STATE_READY,
    State.RESTARTING: session_pb2.SESSION_STATE_RESTARTING,
    State.FAILED: session_pb2.SESSION_STATE_FAILED,
    State.DELETED: session_pb2.SESSION_STATE_DELETED,
}
_NETWORK_NAMES: Final = {value: name for name, value in _NETWORKS.items()}


def specification(request: session_pb2.CreateSessionRequest) -> Specification:
    """What the client asks for. Raises `InvalidEnvelope`."""
    network = None
    if request.HasField("network") and request.network != session_pb2.NETWORK_UNSPECIFIED:
        network = _NETWORK_NAMES.get(request.network)
        if network is None:
            raise InvalidEnvelope("network", "must be a value of Network")
    resources = request.resources
    return Specification(
        profile=request.profile,
        env=dict(request.env),
        labels=dict(request.labels),
        idle_timeout_s=_optional_seconds(request, "idle_timeout"),
        max_lifetime_s=_optional_seconds(request, "max_lifetime"),
        network=network,
        resources={
            field.name: getattr(resources, field.name)
            for field in resources.DESCRIPTOR.fields
            if request.HasField("resources") and resources.HasField(field.name)
        },
    )


def update_times(request: session_pb2.UpdateSessionRequest) -> tuple[float | None, float | None]:
    """New idle timeout and lifetime in seconds, where given. Raises `InvalidEnvelope`."""
    return _optional_seconds(request, "idle_timeout"), _optional_seconds(request, "max_lifetime")


def session(record: SessionRecord) -> session_pb2.Session:
    """A session as clients see it."""
    message = session_pb2.Session(
        session_id=record.key.session_id,
        profile=record.profile.name,
        state=_STATES[record.state],
        reason=record.reason,
        message=record.message,
        generation=record.generation,
        labels=record.labels,
        created_at=timestamp(record.created_at),
        expires_at=timestamp(record.expires_at),
        idle_expires_at=timestamp(record.idle_expires_at),
        epoch=record.epoch,
        idle_timeout=duration(record.idle_timeout_s),
        max_lifetime=duration(record.max_lifetime_s),
    )
    if record.facts is not None:
        facts = record.facts
        message.effective.CopyFrom(
            session_pb2.Effective(
                image=facts.image,
                image_digest=facts.image_digest,
                runtime=facts.runtime,
                uid=facts.uid,
                gid=facts.gid,
                resources=session_pb2.Resources(
                    memory_bytes=facts.memory_bytes,
                    cpu_millis=facts.cpu_millis,
                    pids=facts.pids,
                    disk_bytes=facts.disk_bytes,
                    tmp_bytes=facts.tmp_bytes,
                ),
                network=_NETWORKS.get(facts.network, session_pb2.NETWORK_UNSPECIFIED),
                quota_mechanism=facts.quota_mechanism,
                working_directory=facts.working_directory,
                home_directory=facts.home_directory,
                shell=facts.shell,
                search_engine=facts.search_engine,
            )
        )
        for name, phase_s in facts.phases_s.items():
            message.phases.add(name=name, duration=duration(phase_s))
    return message


def tool(item: Tool) -> tool_pb2.Tool:
    """A tool as an orchestrator needs to know it."""
    message = tool_pb2.Tool(
        name=item.name,
        description=item.description,
        input_schema_json=json.dumps(item.schema, ensure_ascii=False, sort_keys=True),
        effect=item.effect,
        parallel=item.parallel,
    )
    if item.timeout_default_s is not None:
        message.timeout_default.CopyFrom(duration(item.timeout_default_s))
    if item.timeout_max_s is not None:
        message.timeout_max.CopyFrom(duration(item.timeout_max_s))
    return message


def profile(item: ProfileSettings, *, is_default: bool, engine: bool) -> adapter_pb2.Profile:
    """A profile as clients may know it. Without an engine it has no image and no runtime."""
    return adapter_pb2.Profile(
        name=item.name,
        description=item.description,
        image=item.image if engine else "",
        runtime=item.runtime if engine else "",
        resources=session_pb2.Resources(
            memory_bytes=int(item.memory),
            cpu_millis=round(item.cpus * 1_000),
            pids=item.pids,
            disk_bytes=0,
            tmp_bytes=int(item.tmp),
        )
        if engine
        else session_pb2.Resources(),
        network=_NETWORKS[item.network] if engine else session_pb2.NETWORK_OPEN,
        is_default=is_default,
    )


def bounds(settings: Settings) -> adapter_pb2.Limits:
    """Every bound in force (contract.md 5), from the module that is enforced."""
    return adapter_pb2.Limits(
        read_lines_max=limits.READ_LINES_MAX,
        read_bytes_max=limits.READ_BYTES_MAX,
        bash_lines_max=limits.BASH_LINES_MAX,
        bash_bytes_max=limits.BASH_BYTES_MAX,
        grep_matches_max=limits.GREP_MATCHES_MAX,
        grep_line_chars_max=limits.GREP_LINE_CHARS_MAX,
        glob_paths_max=limits.GLOB_PATHS_MAX,
        bash_timeout_default=duration(settings.bash.timeout_default_s),
        bash_timeout_max=duration(settings.bash.timeout_max_s),
        search_timeout=duration(limits.SEARCH_TIMEOUT_S),
        write_bytes_max=limits.WRITE_BYTES_MAX,
        edit_file_bytes_max=limits.EDIT_FILE_BYTES_MAX,
        message_bytes_max=limits.MESSAGE_BYTES_MAX,
        chunk_bytes_max=limits.CHUNK_BYTES_MAX,
        spill_bytes_max=limits.SPILL_BYTES_MAX,
        spill_total_bytes_max=limits.SPILL_TOTAL_BYTES_MAX,
        calls_parallel_max=limits.CALLS_PARALLEL_MAX,
        calls_queued_max=limits.CALLS_QUEUED_MAX,
        result_retention=duration(limits.RESULT_RETENTION_S),
        result_bytes_max=limits.RESULT_BYTES_MAX,
        tombstone_retention=duration(limits.TOMBSTONE_RETENTION_S),
        kill_grace=duration(limits.KILL_GRACE_S),
        read_scan=duration(limits.READ_SCAN_S),
        env_bytes_max=limits.ENV_BYTES_MAX,
        labels_max=limits.LABELS_MAX,
        label_key_chars_max=limits.LABEL_KEY_CHARS_MAX,
        label_value_chars_max=limits.LABEL_VALUE_CHARS_MAX,
        list_page_max=limits.LIST_PAGE_MAX,
        input_depth_max=limits.INPUT_DEPTH_MAX,
        calls_recorded_max=limits.CALL_ROWS_MAX,
        verbs_parallel_max=limits.VERBS_PARALLEL_MAX,
        verb_timeout=duration(limits.VERB_TIMEOUT_S),
        upload_idle=duration(limits.UPLOAD_IDLE_S),
        keepalive_min=duration(limits.KEEPALIVE_MIN_MS / 1_000),
        glob_entries_max=limits.GLOB_ENTRIES_MAX,
        process_output_bytes_max=limits.PROCESS_OUTPUT_BYTES_MAX,
        processes_max=limits.PROCESSES_MAX,
        processes_ended_max=limits.PROCESSES_ENDED_MAX,
        processes_recorded_max=limits.PROCESSES_RECORDED_MAX,
        process_output_total_bytes_max=limits.PROCESS_OUTPUT_TOTAL_BYTES_MAX,
        watchers_parallel_max=limits.WATCHERS_PARALLEL_MAX,
        process_verbs_max=limits.PROCESS_VERBS_MAX,
        process_argument_bytes_max=limits.PROCESS_ARGUMENT_BYTES_MAX,
        stream_life=duration(limits.STREAM_LIFE_S),
        call_awaited=duration(limits.CALL_AWAITED_S),
    )


def _optional_seconds(
    request: session_pb2.CreateSessionRequest | session_pb2.UpdateSessionRequest,
    field: str,
) -> float | None:
    if not request.HasField(field):
        return None
    return seconds(field, getattr(request, field))
