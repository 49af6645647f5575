"""Every bound that the daemon keeps, with its unit in the name.

One place, so that `GetInfo` announces exactly what is enforced (contract.md 5).
The comment of each names who enforces it and what the other side sees. Bounds
that an operator may change live in `config.py` and take their defaults here.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# --- What a model sees. Enforced by the guest, worded by the tools. ----------

READ_LINES_MAX: Final = 2_000
READ_BYTES_MAX: Final = 50 * KIB
"""UTF-8 bytes of the body, newlines included, the marker excluded."""
READ_SCAN_S: Final = 30.0
"""Time that `read` spends on counting lines; beyond it the total is a lower bound."""

BASH_LINES_MAX: Final = 2_000
BASH_BYTES_MAX: Final = 50 * KIB

GREP_MATCHES_MAX: Final = 100
GREP_LINE_CHARS_MAX: Final = 500
GLOB_PATHS_MAX: Final = 1_000
GLOB_ENTRIES_MAX: Final = 1_000_000
"""Names that one glob looks at; beyond it the paths found so far are the result, which says so."""
SEARCH_TIMEOUT_S: Final = 30.0
"""Time of one grep or glob; beyond it the rows found so far are the result."""

# --- What a tool takes. Beyond: a result with `is_error`. --------------------

WRITE_BYTES_MAX: Final = 16 * MIB
EDIT_FILE_BYTES_MAX: Final = 64 * MIB
BASH_TIMEOUT_DEFAULT_S: Final = 120.0
BASH_TIMEOUT_MAX_S: Final = 3_600.0

VERSION_BYTES_MAX: Final = 64
"""A file version, which is ASCII; the contract's own bound."""

# --- Commands. Enforced by the guest. ----------------------------------------

KILL_GRACE_S: Final = 2.0
"""From TERM to KILL, in a timeout and in a cancel."""
DRAIN_QUIET_S: Final = 0.25
"""After the shell exits: silence on its pipe that ends the wait for more output."""
DRAIN_MAX_S: Final = 2.0
"""After the shell exits: longest wait for output of jobs that hold its pipe."""
SPILL_BYTES_MAX: Final = 16 * MIB
"""One command's spill file; what comes later is dropped and said."""
SPILL_TOTAL_BYTES_MAX: Final = 64 * MIB
"""All spill files of a session; the oldest go first."""

# --- The wire between clients and the daemon. Enforced by `rpc`. -------------

MESSAGE_BYTES_MAX: Final = 20 * MIB
CHUNK_BYTES_MAX: Final = 256 * KIB
KEEPALIVE_MIN_MS: Final = 10_000
"""Shortest time between a client's pings, with or without a running call."""

# --- Sessions and calls. Enforced by `sessions`. -----------------------------

CALLS_PARALLEL_MAX: Final = 16
"""Calls of one session that run at the same time; the guest has as many workers."""
CALLS_QUEUED_MAX: Final = 256
"""Calls of one session that wait; beyond it RESOURCE_EXHAUSTED with RetryInfo."""
RESULT_RETENTION_S: Final = 24 * 3_600.0
RESULT_BYTES_MAX: Final = 256 * MIB
"""Results kept for one tenant; beyond it the oldest results of reads expire."""
CALL_ROWS_MAX: Final = 1_000_000
"""Calls remembered for one tenant; beyond it new calls are refused."""
VERBS_PARALLEL_MAX: Final = 32
"""File verbs of one session at a time; beyond it RESOURCE_EXHAUSTED with RetryInfo."""
VERB_TIMEOUT_S: Final = 900.0
"""Longest time of one step of a file verb in the guest; removing a large tree is one step."""
WATCHERS_PARALLEL_MAX: Final = 32
"""Streams of `WatchCall` of one session at a time; beyond it RESOURCE_EXHAUSTED with RetryInfo."""
STREAM_LIFE_S: Final = 600.0
"""Longest life of a stream that follows a call or a process; then its reader opens another."""
CALL_AWAITED_S: Final = 5.0
"""How long `WatchCall` waits for a call that is not known yet."""
UPLOAD_IDLE_S: Final = 60.0
"""Longest wait for the next message of a client's stream."""
INPUT_DEPTH_MAX: Final = 32
"""Nesting of the JSON of a `CustomInput`; beyond it INVALID_ARGUMENT."""
PROCESSES_MAX: Final = 64
"""Processes of one session that run at the same time; the guest keeps it."""
PROCESSES_ENDED_MAX: Final = 128
"""Ended processes of a session that keep their output and are listed."""
PROCESSES_RECORDED_MAX: Final = 4_096
"""Processes of a session whose ids are known; beyond it no more are started."""
PROCESS_OUTPUT_BYTES_MAX: Final = MIB
"""Kept of each output of a process; older bytes are dropped and counted. The guest keeps it."""
PROCESS_OUTPUT_TOTAL_BYTES_MAX: Final = 16 * MIB
"""Kept of all of a session's processes; the oldest ended one's go first. The guest keeps it."""
PROCESS_ARGUMENT_BYTES_MAX: Final = 64 * KIB
"""Program and arguments of a process, with one byte for each end."""
PROCESS_VERBS_MAX: Final = 256
"""Process verbs of one session at a time, waits and readers included; beyond it
RESOURCE_EXHAUSTED with RetryInfo."""
OFFSET_MAX: Final = 2**53
"""Largest offset in an input or output of a process; beyond it INVALID_ARGUMENT."""
PROCESS_INPUT_S: Final = 5.0
"""Longest wait for a process to take its input."""
PROCESS_WAIT_MAX_S: Final = 60.0
"""Longest wait for a process to end; the caller asks again."""
TERMINAL_CELLS_MAX: Final = 10_000
"""Rows, or columns, of a terminal."""
TOMBSTONE_RETENTION_S: Final = 24 * 3_600.0
"""How long the id of a deleted session is remembered."""
ENV_BYTES_MAX: Final = 64 * KIB
LABELS_MAX: Final = 32
LABEL_KEY_CHARS_MAX: Final = 63
LABEL_VALUE_CHARS_MAX: Final = 255
LIST_PAGE_MAX: Final = 1_000
LIST_PAGE_DEFAULT: Final = 100

# --- The guest's connection. Enforced by `backends.guest_link`. --------------

GUEST_HEARTBEAT_S: Final = 10.0
"""Time between pings of an idle guest."""
GUEST_ANSWER_S: Final = 20.0
"""Longest silence after a ping; beyond it the sandbox is lost."""
GUEST_WRITE_S: Final = 10.0
"""Longest time that one frame may take to leave; beyond it the sandbox is lost."""
GUEST_REPLY_BYTES_MAX: Final = 20 * MIB
"""Largest reply that any request may ask for."""
GUEST_INFLIGHT_BYTES_MAX: Final = 64 * MIB
"""Bytes of requests and expected replies of one session at a time."""
