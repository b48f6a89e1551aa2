"""Convert conversations in common formats to OpenAI's `messages`."""

import json
from collections.abc import Mapping
from typing import Any, Literal

from moray.corpus.dataset import RowError
from moray.corpus.remarks import Remarks

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "function_call": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
}
# The system prompt where there is none; false removes those that there are.
DefaultSystem = str | Literal[False] | None
# Keys that say whether a message is trained: of OpenAI, LLaMA-Factory, axolotl and others.
_MASKS = dict.fromkeys(("weight", "loss", "loss_weight", "train", "trainable", "training"))
_REASONING = ("reasoning_content", "reasoning", "thinking")
_KNOWN = {
    *("role", "from", "content", "value", "tool_calls", "function_call", "name", "tool_call_id"),
    *_MASKS,
    *_REASONING,
}
# The supported types of content parts, and the keys that may contain their text.
_PARTS = {"text": ("text", "value"), "reasoning": ("reasoning", "text", "value")}


def conversation(
    messages: Any,
    tools: Any,
    system: str | None,
    default_system: DefaultSystem,
    remarks: Remarks,
) -> dict[str, str | None]:
    """Make the columns `messages` and `tools` of a document.

    Args:
        messages: a list of mappings with `role` and `content`, or with `from` and `value`; or
            that list as JSON. Content is text or a list of parts of type `text` and `reasoning`;
            reasoning may also be in `reasoning_content`.
        tools: a list of functions, wrapped as OpenAI does or bare; or that list as JSON.
        system: the row's system prompt, for messages that have none.
        default_system: system prompt to use if neither the row nor the messages have one; or
            false: remove those of both.
        remarks: gets what isn't used of the messages.

    Raises:
        RowError: if it isn't a valid conversation, or has no assistant message to train on.
    """
    message_list = parse(messages, "messages")
    if not isinstance(message_list, list) or not message_list:
        raise RowError(f"got {_kind(message_list)} for messages, expected a list", "fix the row")
    spoken = [
        _message(message, number, remarks)
        for number, message in enumerate(message_list, 1)
        if not _is_no_system_prompt(message)
    ]
    if not spoken:
        raise RowError("the conversation has no assistant message to train on", "remove the row")
    if all(message["role"] != "assistant" or "weight" in message for message in spoken):
        raise RowError("the conversation has no assistant message to train on", "remove the row")
    prompt = system or default_system
    if default_system is False:
        spoken = [message for message in spoken if message["role"] != "system"]
    elif prompt and spoken[0]["role"] != "system":
        spoken.insert(0, {"role": "system", "content": prompt})
    elif system and system.strip() != (spoken[0]["content"] or "").strip():
        remarks.add(
            "system",
            "some rows have one system prompt in their messages and another in the column of "
            "system prompts, which is not used (first in {place})",
            is_warning=True,
        )
    functions = _functions(parse(tools, "tools") or [])
    return {"messages": _as_json(spoken), "tools": _as_json(functions) if functions else None}


def join_completion(prompt: Any, completion: Any) -> list[Any]:
    """Join messages, as `conversation` takes them, of which those of the prompt aren't trained.

    Raises:
        RowError: if one of them is no list, or they don't fit together.
    """
    parts = {"prompt": parse(prompt, "prompt"), "completion": parse(completion, "completion")}
    for name, part in parts.items():
        if not isinstance(part, list):
            raise RowError(
                f"got {_kind(part)} for {name}, expected a list of messages",
                "fix the row; format: prompt-completion takes text",
            )
    context, answer = divide(parts["prompt"], parts["completion"], "completion")
    return [*map(_as_context, context), *answer]


def divide(prompt: list[Any], answer: list[Any], name: str) -> tuple[list[Any], list[Any]]:
    """The messages of a prompt and those of its answer, each of which is in one of them only.

    Some datasets repeat the prompt in the answer, or the end of the prompt, with or without its
    system prompt. In others, the answer is the whole conversation, and the prompt a part of it.

    Args:
        name: the answer's column, for errors.

    Raises:
        RowError: if both have a system prompt and they differ, or the answer would be two turns.
    """
    before, reply = (
        [message for message in messages if not _is_no_system_prompt(message)]
        for messages in (prompt, answer)
    )
    systems = [part.pop(0) for part in (before, reply) if part and _role(part[0]) == "system"]
    if len(systems) == 2 and _content(systems[0]) != _content(systems[1]):
        raise RowError(
            f"prompt and {name} have different system prompts, expected one in the prompt",
            "remove one of them",
        )
    ends, begins = ([*map(_content, part)] for part in (before, reply))
    size = len(before)
    # An answer of the assistant is no whole conversation.
    is_whole = bool(before and reply) and _role(reply[0]) != "assistant"
    places = range(len(reply) - size - 1, 0, -1) if is_whole else ()
    within = next((place for place in places if begins[place : place + size] == ends), 0)
    sizes = range(min(size, len(reply)), 0, -1)
    overlap = next((size for size in sizes if ends[-size:] == begins[:size]), 0)
    prompt_part, answer_part = [*systems[:1], *before], reply[overlap:]
    if within:
        prompt_part, answer_part = [*systems[:1], *reply[: within + size]], reply[within + size :]
    if reply and not answer_part:
        raise RowError(
            f"{name} has only messages of the prompt, and no answer", "add it, or remove the row"
        )
    if (
        prompt_part
        and answer_part
        and _role(prompt_part[-1]) == _role(answer_part[0]) == "assistant"
    ):
        raise RowError(
            f"the prompt ends in a message of the assistant, and {name} goes on with another: two "
            "turns, where the second was meant to continue the first, or to answer somebody",
            f"move the beginning of the answer from the prompt to {name}, or remove the row",
        )
    return prompt_part, answer_part


def asks(messages: Any, prompt: str) -> bool:
    """Whether a conversation has a text before its last message."""
    before = messages[:-1] if isinstance(messages, list) else []
    texts = [message.values() for message in before if isinstance(message, Mapping)]
    return any(prompt in values for values in texts)


def check_no_system(system: str | None, default_system: DefaultSystem, columns: str) -> None:
    """Check that a row whose columns are text has no system prompt, which no text can have.

    Raises:
        RowError: if it has one, its own or the config's.
    """
    if default_system is not False and (system or default_system):
        raise RowError(
            "got a system prompt, which answers that are text can't have",
            f"remove it, or write {columns} as messages",
        )


def _as_context(message: Any) -> Any:
    return {**message, "weight": 0} if _role(message) == "assistant" else message


def _role(message: Any) -> str | None:
    """OpenAI's name of a message's role; None if it has none that is known."""
    spelling = message.get("role") or message.get("from") if isinstance(message, Mapping) else None
    return _ROLES.get(str(spelling))


def _content(message: Any) -> tuple[Any, ...]:
    """A key that is equal for equal messages, however they are spelled."""
    if not isinstance(message, Mapping):
        return (message,)
    content = message["content"] if message.get("content") is not None else message.get("value")
    if isinstance(content, list):
        parts = (part for part in content if isinstance(part, Mapping))
        content = "".join(str(part.get("text") or part.get("value") or "") for part in parts)
    calls = message.get("tool_calls") or message.get("function_call") or None
    return _role(message), content or None, calls


def _is_no_system_prompt(message: Any) -> bool:
    """Whether a message is of the system and null or an empty list, as tables fill it in."""
    return _role(message) == "system" and all(
        message.get(key) in (None, []) for key in ("content", "value")
    )


def _message(message: Any, number: int, remarks: Remarks) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not {"role", "from"} & message.keys():
        raise RowError(
            f"message {number} has no role, expected role and content (or from and value)",
            "fix the row",
        )
    role = message.get("role") or message.get("from")
    if not isinstance(role, str) or role not in _ROLES:
        raise RowError(
            f"got role {role!r} in message {number}, expected one of {', '.join(_ROLES)}",
            "rename the role or remove the row",
        )
    raw = message["content"] if message.get("content") is not None else message.get("value")
    content, reasoning = _text_and_reasoning(raw, number)
    beside = (_text_and_reasoning(message.get(key) or None, number)[0] for key in _REASONING)
    reasoning = next((text for text in beside if text.strip()), reasoning)
    entry: dict[str, Any] = {"role": _ROLES[role], "content": content}
    if role == "function_call":
        entry |= {"content": None, "tool_calls": _calls(parse(content, role), number)}
    elif calls := _calls_beside(message):
        entry |= {"content": content or None, "tool_calls": _calls(calls, number)}
    elif entry["role"] == "assistant" and not (content + reasoning).strip():
        raise RowError(
            f"message {number}, of the assistant, is empty, expected text or a tool call",
            "fill it in, or remove the row",
        )
    if not _is_trained(message, number):
        entry["weight"] = 0
    if reasoning.strip():
        entry["reasoning_content"] = reasoning
    for key in ("name", "tool_call_id"):
        if isinstance(message.get(key), str):
            entry[key] = message[key]
    for key, value in message.items():
        if value and key not in _KNOWN:
            *masks, last = _MASKS
            remarks.add(
                f"key {key}",
                f"messages have the key {key!r}, which is not used (first in {{place}}, message "
                f"{number}: {str(value)[:40]!r}); only {', '.join(masks)} or {last} of 0 or false "
                "leave a message untrained",
            )
    return entry


def _is_trained(message: Mapping[str, Any], number: int) -> bool:
    for key in _MASKS.keys() & message.keys():
        value = message[key]
        if value not in (None, 0, 1):
            raise RowError(
                f"got {key} {value!r} in message {number}, expected 0 or 1",
                "round it, or remove the row",
            )
        if value == 0:
            return False
    return True


def _text_and_reasoning(content: Any, number: int) -> tuple[str, str]:
    """The text and the reasoning of a message, which may be a list of parts."""
    if content is None:
        return "", ""
    if isinstance(content, str):
        return content, ""
    if not isinstance(content, list):
        raise RowError(f"got {_kind(content)} in message {number}, expected text", "fix the row")
    texts = dict.fromkeys(_PARTS, "")
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in texts:
            raise RowError(
                f"got a part of type {kind} in message {number}, expected text or reasoning",
                "remove the part or the row",
            )
        texts[kind] += _part(part, number)
    return texts["text"], texts["reasoning"]


def _part(part: Mapping[str, Any], number: int) -> str:
    # Parts of a table have the keys of all the others, as nulls.
    filled = {key: value for key, value in part.items() if key != "type" and value is not None}
    keys = _PARTS[part["type"]]
    values = [filled[key] for key in keys if key in filled]
    if (filled and not values) or not all(isinstance(text, str) for text in values):
        got = _kind(values[0]) if values else f"no {' or '.join(keys)}"
        raise RowError(
            f"got {got} in a part of type {part['type']} in message {number}, expected text",
            "fix the row",
        )
    return "".join(values[:1])


def _calls_beside(message: Mapping[str, Any]) -> Any:
    """The tool calls beside a message's content; `function_call` is OpenAI's older form."""
    calls = (parse(message.get(key), key) for key in ("tool_calls", "function_call"))
    return next(filter(None, calls), None)


def _calls(calls: Any, number: int) -> list[dict[str, Any]]:
    entries = []
    for call in calls if isinstance(calls, list) else [calls]:
        function = call.get("function", call) if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise RowError(
                f"a tool call in message {number} has no name, expected name and arguments",
                "fix the row",
            )
        # OpenAI writes arguments as a JSON string; chat templates need them parsed. Llama's models
        # call them parameters.
        raw_arguments = function.get("arguments") or function.get("parameters")
        arguments = parse(raw_arguments, "arguments") or {}
        if not isinstance(arguments, Mapping):
            raise RowError(
                f"got {_kind(arguments)} for the arguments of a tool call in message {number}, "
                "expected a mapping",
                "fix the row; as text, arguments are encoded once",
            )
        entry: dict[str, Any] = {
            "type": "function",
            "function": {"name": function["name"], "arguments": arguments},
        }
        if isinstance(call.get("id"), str):
            entry["id"] = call["id"]
        entries.append(entry)
    return entries


def _functions(tools: Any) -> list[dict[str, Any]]:
    """Tools as OpenAI wraps them."""
    if not isinstance(tools, list):
        raise RowError(f"got {_kind(tools)} for tools, expected a list", "fix the row")
    functions = []
    for number, tool in enumerate(tools, 1):
        is_wrapped = isinstance(tool, Mapping) and tool.get("type") == "function"
        function = tool.get("function") if is_wrapped else tool
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise RowError(f"tool {number} has no name, expected a function", "fix the row")
        if "parameters" in function:
            parameters = parse(function["parameters"], "parameters")
            function = {**function, "parameters": parameters}
        functions.append({"type": "function", "function": function})
    return functions


def parse(value: Any, what: str) -> Any:
    """Parse a JSON string; anything else is returned as it is.

    Args:
        what: its name, for errors.

    Raises:
        RowError: if it is invalid.
    """
    if not isinstance(value, str):
        return value
    if not value.strip():
        return None
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise RowError(f"invalid JSON in {what} ({error})", "fix the row") from error


def _as_json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except TypeError as error:
        # Tables can contain times and bytes.
        raise RowError(
            f"got a value that JSON can't represent ({error})", "write it as text"
        ) from error


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    return "an empty list" if value == [] else type(value).__name__
