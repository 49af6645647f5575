"""The chat-completions format as pure functions: a request out, a reply in.

Servers that speak it disagree in how they cut a tool call into fragments: indexes
are missing, or 0 for all; ids come once, on every fragment, or as text `null`;
arguments come as text, as an object, or not at all. So a fragment is placed by
index, id and start signal together, everything is kept until the stream has ended,
and only a strict JSON object ever becomes arguments: a call that is nearly right
is not run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from orchestrator.errors import ModelError
from orchestrator.messages import JsonObject, ModelRequest, Reply, StopReason, ToolCall, Usage
from orchestrator.models import failures
from orchestrator.models.base import Fragment

CALLS_MAX: Final = 128
RAW_ARGUMENTS_CHARS_MAX: Final = 2_000

_STOPS: Final[dict[str, StopReason]] = {
    "stop": "end",
    "end_turn": "end",
    "eos": "end",
    "stop_sequence": "end",
    "tool_calls": "calls",
    "function_call": "calls",
    "length": "length",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "content_filter": "refused",
    "refusal": "refused",
    "sensitive": "refused",
}


def encode_request(
    request: ModelRequest, model: str, output_tokens_max: int | None, *, streamed: bool
) -> dict[str, Any]:
    """The body of a request."""
    body: dict[str, Any] = {
        "model": model,
        "messages": _encode_messages(request),
        "stream": streamed,
    }
    if streamed:
        body["stream_options"] = {"include_usage": True}
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.input_schema,
                },
            }
            for tool in request.tools
        ]
    if output_tokens_max is not None:
        body["max_tokens"] = output_tokens_max
    return body


def _encode_messages(request: ModelRequest) -> list[dict[str, Any]]:
    encoded: list[dict[str, Any]] = []
    for message in request.messages:
        if message.role == "tool":
            encoded.append(
                {"role": "tool", "tool_call_id": message.call_id, "content": message.text}
            )
            continue
        # An empty `tool_calls`, and a null `content`, are refused by some servers.
        entry: dict[str, Any] = {"role": message.role, "content": message.text}
        if message.calls:
            entry["tool_calls"] = [
                {
                    "id": call.call_id,
                    "type": "function",
                    "function": {
                        "name": call.name,
                        # Malformed arguments in the history make some servers fail every
                        # later request; the call's result says what was wrong.
                        "arguments": json.dumps(call.arguments or {}, ensure_ascii=False),
                    },
                }
                for call in message.calls
            ]
        encoded.append(entry)
    return encoded


@dataclass
class _Building:
    """A tool call under construction."""

    provider_id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)

    @property
    def raw(self) -> str:
        return "".join(self.pieces)

    def is_whole(self) -> bool:
        return bool(self.pieces) and strict_object(self.raw)[0] is not None


class Accumulator:
    """Takes the chunks of one attempt and gives the reply. Never shared by attempts."""

    def __init__(self, mint_id: Callable[[], str]) -> None:
        self._mint_id = mint_id
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[_Building] = []
        self._by_index: dict[int, _Building] = {}
        self._usage = Usage()
        self._raw_stop: str | None = None
        self.done = False
        """`[DONE]` was seen."""

    @property
    def finished(self) -> bool:
        """The server named a reason why the reply ended."""
        return self._raw_stop is not None

    def feed(self, name: str, data: str) -> list[Fragment]:
        """Takes one event, or a whole reply; returns what can be shown of it."""
        if data.strip() == "[DONE]":
            self.done = True
            return []
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError):
            chunk = None
        if not isinstance(chunk, dict):
            raise ModelError(
                "garbled", "the reply holds something that is no JSON object", retryable=True
            )
        if chunk.get("error") or name == "error":
            raise failures.from_stream(chunk.get("error") or chunk)
        self._take_usage(chunk.get("usage"))
        choices = chunk.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            return []
        choice = choices[0]
        self._take_usage(choice.get("usage"))
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            self._raw_stop = reason
        delta = choice.get("delta") or _placed(choice.get("message"))
        return self._take_delta(delta) if isinstance(delta, dict) else []

    def _take_delta(self, delta: dict[str, Any]) -> list[Fragment]:
        shown: list[Fragment] = []
        # Some servers send the same reasoning under two names: the first one counts.
        for key in ("reasoning_content", "reasoning", "reasoning_text"):
            value = delta.get(key)
            if isinstance(value, str) and value:
                self._reasoning.append(value)
                shown.append(Fragment("reasoning", value))
                break
        text = delta.get("content")
        if isinstance(text, str) and text:
            self._text.append(text)
            shown.append(Fragment("text", text))
        refusal = delta.get("refusal")
        if isinstance(refusal, str) and refusal:
            self._text.append(refusal)
            shown.append(Fragment("text", refusal))
        fragments = delta.get("tool_calls")
        for fragment in fragments if isinstance(fragments, list) else []:
            if isinstance(fragment, dict):
                self._take_call(fragment)
        return shown

    def _take_call(self, fragment: dict[str, Any]) -> None:
        raw_function = fragment.get("function")
        function: dict[str, Any] = raw_function if isinstance(raw_function, dict) else {}
        index = fragment.get("index")
        index = index if isinstance(index, int) and not isinstance(index, bool) else None
        id_ = fragment.get("id")
        id_ = id_ if isinstance(id_, str) and id_ not in ("", "null") else ""
        name = function.get("name")
        name = name if isinstance(name, str) else ""
        call = self._place(index, id_, name)
        call.provider_id = call.provider_id or id_
        call.name = call.name or name
        arguments = function.get("arguments")
        if isinstance(arguments, dict):
            call.pieces.append(json.dumps(arguments, ensure_ascii=False))
        elif isinstance(arguments, str) and arguments:
            call.pieces.append(arguments)

    def _place(self, index: int | None, id_: str, name: str) -> _Building:
        """The call that a fragment belongs to, by index, id and start signal."""
        current = self._current(index)
        if id_:
            same = current if current is not None and current.provider_id == id_ else None
            if same is None and index is None:
                same = next((call for call in self._calls if call.provider_id == id_), None)
            if same is not None and not (name and same.is_whole() and name != same.name):
                return same
            # A fresh id on every fragment, without a name, goes on with the current call.
            if current is not None and not name and current.name:
                return current
            return self._begin(index)
        if current is None:
            return self._begin(index)
        starts_anew = bool(name) and (
            current.is_whole() or (bool(current.name) and name != current.name)
        )
        return self._begin(index) if starts_anew else current

    def _current(self, index: int | None) -> _Building | None:
        if index is None:
            return self._calls[-1] if self._calls else None
        return self._by_index.get(index)

    def _begin(self, index: int | None) -> _Building:
        if len(self._calls) >= CALLS_MAX:
            raise ModelError("garbled", f"the reply asks for more than {CALLS_MAX} calls")
        call = _Building()
        self._calls.append(call)
        if index is not None:
            self._by_index[index] = call
        return call

    def _take_usage(self, raw: Any) -> None:
        if not isinstance(raw, dict):
            return
        inside = raw.get("prompt_tokens_details")
        outside = raw.get("completion_tokens_details")
        self._usage = Usage(
            input=_count(raw, "prompt_tokens"),
            output=_count(raw, "completion_tokens"),
            cached=_count(inside, "cached_tokens") or _count(raw, "cached_tokens"),
            reasoning=_count(outside, "reasoning_tokens"),
            reported=True,
        )

    def reply(self) -> Reply:
        """The reply, once the stream has ended.

        Raises `ModelError` where no terminal mark was seen: then nothing of it may
        be used.
        """
        if self._raw_stop is None and not self.done:
            raise ModelError("network", "the reply ended without its end mark", retryable=True)
        if self._raw_stop == "error":
            raise ModelError("server_error", "the model server gave up", retryable=True)
        calls = tuple(self._finish(call) for call in self._calls)
        return Reply(
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            calls=calls,
            stop=self._stop(bool(calls)),
            raw_stop=self._raw_stop or "",
            usage=self._usage,
        )

    def _stop(self, has_calls: bool) -> StopReason:
        # Some servers write the words large.
        stop = _STOPS.get(self._raw_stop.lower(), "other") if self._raw_stop is not None else "end"
        # `stop` beside calls, and `tool_calls` without one, are both seen in the wild.
        if stop in ("end", "calls"):
            return "calls" if has_calls else "end"
        return stop

    def _finish(self, call: _Building) -> ToolCall:
        if not call.name:
            raise ModelError("garbled", "the reply holds a call without a name", retryable=True)
        arguments, fault = strict_object(call.raw)
        return ToolCall(
            call_id=self._mint_id(),
            provider_id=call.provider_id[:256],
            name=call.name,
            arguments=arguments,
            raw_arguments="" if arguments is not None else call.raw[:RAW_ARGUMENTS_CHARS_MAX],
            fault=fault,
        )


def _placed(message: Any) -> Any:
    """A whole message with its calls numbered: each is one, whatever ids they share."""
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    if not isinstance(calls, list):
        return message
    numbered = [
        {**call, "index": index} for index, call in enumerate(calls) if isinstance(call, dict)
    ]
    return {**message, "tool_calls": numbered}


def _count(raw: Any, key: str) -> int:
    value = raw.get(key) if isinstance(raw, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def strict_object(raw: str) -> tuple[JsonObject | None, str]:
    """A JSON object from text, or None and what is wrong with the text.

    Nothing and an empty list are an empty object. Nothing is repaired: what runs
    must be what was asked for.
    """
    if not raw.strip():
        return {}, ""
    try:
        value = json.loads(raw, parse_constant=_refuse_constant, object_pairs_hook=_unique)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        return None, f"not valid JSON: {error}"
    if value == []:
        return {}, ""
    if not isinstance(value, dict):
        return None, f"a JSON {type(value).__name__}, not an object"
    return value, ""


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} occurs twice")
        found[key] = value
    return found
