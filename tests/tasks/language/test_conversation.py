"""One spelling of a conversation out of the many that people have."""

import json
from datetime import UTC, datetime
from itertools import product
from typing import Any

import pytest

from moray.corpus.dataset import RowError
from moray.corpus.remarks import Remarks
from moray.tasks.language.conversation import conversation

Messages = list[dict[str, Any]]


def spoken(messages: Any, tools: Any = None, **more: Any) -> Messages:
    given = {"system": None, "default_system": None, "remarks": Remarks(), **more}
    found: Messages = json.loads(conversation(messages, tools, **given)["messages"] or "")
    return found


def functions(tools: Any) -> Any:
    talk = [{"role": "assistant", "content": "a"}]
    made = conversation(talk, tools, None, None, Remarks())["tools"]
    return made if made is None else json.loads(made)


def refusal(messages: Any, tools: Any) -> str:
    """What is said to be wrong with a row."""
    with pytest.raises(RowError) as caught:
        pytest.fail(f"{messages} make {conversation(messages, tools, None, None, Remarks())}")
    assert caught.value.remedy
    return caught.value.problem


def said(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def call(arguments: Any, name: str = "add", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


ANSWER = said("assistant", "a")
TALK = [said("system", "S"), said("user", "é 🐍"), said("assistant", "b"), said("tool", "3")]


@pytest.mark.parametrize(
    "messages",
    [
        TALK,
        [
            {"from": "system", "value": "S"},
            {"from": "human", "value": "é 🐍"},
            {"from": "gpt", "value": "b"},
            {"from": "observation", "value": "3"},
        ],
        [said("developer", "S"), *TALK[1:3], said("function", "3")],
        # A table gives each message the keys of all.
        [{"from": None, "value": None, **message} for message in TALK],
        [{"role": None, "from": message["role"], "value": message["content"]} for message in TALK],
        json.dumps(TALK),
    ],
    ids=["OpenAI", "ShareGPT", "older roles", "unused keys", "from beside role", "JSON text"],
)
def test_every_spelling_gives_the_same_messages(messages: Any) -> None:
    assert spoken(messages) == TALK


def test_text_is_kept_as_it_is() -> None:
    content = ' \n"quotes" \\ é 🐍 </s> '
    assert spoken([said("assistant", content)]) == [said("assistant", content)]


def test_what_templates_know_is_kept_and_the_rest_is_not() -> None:
    known = {"name": "n", "tool_call_id": "c1", "reasoning_content": "why"}
    noise: dict[str, Any] = {"weight": 1, "refusal": None, "audio": {}}
    assert spoken([said("assistant", "a", **known, **noise)]) == [said("assistant", "a", **known)]
    assert spoken([said("assistant", "a", name=None)]) == [said("assistant", "a")]


def test_content_may_be_nothing_or_parts_of_text() -> None:
    contents: list[tuple[Any, str]] = [
        (None, ""),
        ([], ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": " b"}], "a b"),
        # As a table gives it, where another row has an image.
        ([{"type": "text", "text": "a", "image_url": None}], "a"),
        ([{"type": "text", "text": None}, {"type": "text", "text": "a"}], "a"),
        ([{"type": "text", "value": "a"}, {"type": "text", "value": " b", "text": None}], "a b"),
    ]
    for content, text in contents:
        made = spoken([{"role": "user", "content": content}, ANSWER])
        assert made == [said("user", text), ANSWER], content


@pytest.mark.parametrize("key", ["reasoning", "text", "value"])
def test_reasoning_may_be_a_part(key: str) -> None:
    why = {"type": "reasoning", key: "why"}
    expected = said("assistant", "a", reasoning_content="why")
    assert spoken([said("assistant", "a", reasoning_content="why")]) == [expected]
    for answer in ({"type": "text", "text": "a"}, {"type": "text", "value": "a"}):
        assert spoken([{"role": "assistant", "content": [why, answer]}]) == [expected]
    alone = said("assistant", "", reasoning_content="why")
    assert spoken([{"role": "assistant", "content": [why]}]) == [alone]


@pytest.mark.parametrize(
    "beside",
    [
        {"reasoning_content": "", "thinking": "why"},
        {"reasoning_content": None, "reasoning": {}, "thinking": "why"},
        {"reasoning": [{"type": "text", "text": "why"}]},
    ],
    ids=["empty first", "nothing first", "parts"],
)
def test_reasoning_is_kept_under_whichever_key_it_is(beside: dict[str, Any]) -> None:
    expected = said("assistant", "a", reasoning_content="why")
    assert spoken([said("assistant", "a", **beside)]) == [expected]


def test_reasoning_before_a_call_of_a_tool_is_kept() -> None:
    why = {"type": "reasoning", "text": "why"}
    message = {"role": "assistant", "content": [why], "tool_calls": [call({})]}
    assert spoken([message]) == [
        {"role": "assistant", "content": None, "tool_calls": [call({})], "reasoning_content": "why"}
    ]


@pytest.mark.parametrize("key", ["weight", "loss", "loss_weight", "train", "trainable", "training"])
@pytest.mark.parametrize(("no", "yes"), [(0, 1), (0.0, 1.0), (False, True), (False, None)])
def test_a_turn_of_no_weight_keeps_that(key: str, no: Any, yes: Any) -> None:
    """The training leaves it out."""
    talk = [said("assistant", "a", **{key: no}), said("assistant", "b", **{key: yes})]
    assert spoken(talk) == [said("assistant", "a", weight=0), said("assistant", "b")]


def test_a_turn_is_trained_or_not_and_nothing_between() -> None:
    with pytest.raises(RowError, match=r"got weight 0\.5 in message 1, expected 0 or 1"):
        spoken([said("assistant", "a", weight=0.5)])


@pytest.mark.parametrize("key", ["reasoning", "thinking"])
def test_reasoning_has_several_names(key: str) -> None:
    expected = [said("assistant", "a", reasoning_content="why")]
    assert spoken([said("assistant", "a", **{key: "why"})]) == expected


def test_a_key_that_is_not_used_is_named_once_with_the_first_row_that_has_it() -> None:
    remarks = Remarks()
    for line in (1, 2):
        remarks.place = f"chats.jsonl, line {line}"
        talk = [said("user", "a", mood="b"), said("assistant", "a", mood="c", audio=None)]
        spoken(talk, remarks=remarks)
    assert remarks.lines("d") == [
        "dataset d: messages have the key 'mood', which is not used (first in chats.jsonl, line 1, "
        "message 1: 'b'); only weight, loss, loss_weight, train, trainable or training of 0 or "
        "false leave a message untrained"
    ]


def test_a_system_prompt_of_the_row_that_the_messages_replace_is_told() -> None:
    own, remarks = [said("system", "own"), *TALK_ALONE], Remarks()
    for same in ("", None, "own"):
        assert spoken(own, system=same, remarks=remarks) == own
    assert remarks.lines("d") == []
    assert spoken(own, system="row", remarks=remarks) == own
    (line,) = remarks.lines("d")
    assert line.startswith("warning: dataset d: some rows have one system prompt in their messages")


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": None, "tool_calls": [call({"a": [1, None]}, id="c1")]},
        {"role": "assistant", "tool_calls": [call('{"a": [1, null]}', id="c1")]},
        # Bare, as some data sets have it.
        {
            "from": "gpt",
            "value": "",
            "tool_calls": [{"name": "add", "arguments": {"a": [1, None]}, "id": "c1"}],
        },
        # As Llama's models call them.
        {
            "role": "assistant",
            "tool_calls": [{"name": "add", "parameters": {"a": [1, None]}, "id": "c1"}],
        },
        {"role": "assistant", "tool_calls": json.dumps([call({"a": [1, None]}, id="c1")])},
    ],
    ids=["a mapping", "JSON text", "bare", "parameters", "calls as JSON text"],
)
def test_a_call_of_a_tool_has_its_arguments_as_a_mapping(message: dict[str, Any]) -> None:
    calls = [call({"a": [1, None]}, id="c1")]
    assert spoken([message]) == [{"role": "assistant", "content": None, "tool_calls": calls}]


def test_a_function_call_of_openai_s_older_spelling_is_a_call() -> None:
    spellings: list[Any] = ['{"a": 1}', {"a": 1}]
    for text, arguments in product(["Wait.", "", None], spellings):
        one = {"name": "add", "arguments": arguments}
        (message, *_) = spoken([{"role": "assistant", "content": text, "function_call": one}])
        assert message == {
            "role": "assistant",
            "content": text or None,
            "tool_calls": [call({"a": 1})],
        }, one
    assert spoken([said("assistant", "a", function_call=None)]) == [ANSWER]


def test_a_call_without_arguments_has_none() -> None:
    without: list[Any] = [None, "", "{}", {}, "null"]
    for arguments in without:
        (message,) = spoken([said("assistant", "", tool_calls=[call(arguments)])])
        assert message["tool_calls"] == [call({})], arguments


def test_a_message_keeps_its_text_beside_several_calls() -> None:
    calls = [call({"a": 1}), call({"b": 2}, name="mul")]
    assert spoken([said("assistant", "Wait.", tool_calls=calls)]) == [
        said("assistant", "Wait.", tool_calls=calls)
    ]


def test_no_calls_are_left_out() -> None:
    talk = [said("assistant", "a", tool_calls=None), said("assistant", "a", tool_calls=[])]
    assert spoken([*talk, said("assistant", "a", tool_calls="[]")]) == [ANSWER] * 3


@pytest.mark.parametrize("several", [False, True])
def test_a_function_call_of_sharegpt_is_the_assistant_calling_a_tool(several: bool) -> None:
    one = {"name": "add", "arguments": {"a": 1}}
    talk = [
        {"from": "human", "value": "1 + 1?"},
        {"from": "function_call", "value": json.dumps([one, one] if several else one)},
        {"from": "observation", "value": "2"},
    ]
    assert spoken(talk) == [
        said("user", "1 + 1?"),
        {"role": "assistant", "content": None, "tool_calls": [call({"a": 1})] * (1 + several)},
        said("tool", "2"),
    ]


ADD = {"name": "add", "description": "é", "parameters": {"type": "object", "properties": {}}}
WRAPPED = {"type": "function", "function": ADD}


def test_tools_come_wrapped_or_bare_as_a_list_or_as_text() -> None:
    inside = {**ADD, "parameters": json.dumps(ADD["parameters"])}
    for tools in ([WRAPPED], [ADD], json.dumps([WRAPPED]), json.dumps([ADD], indent=2), [inside]):
        assert functions(tools) == [WRAPPED], tools


def test_no_tools_are_nothing() -> None:
    nothing: list[Any] = [None, [], "", " ", "[]", "null"]
    for tools in nothing:
        assert functions(tools) is None, tools


TALK_ALONE = [said("user", "a"), said("assistant", "b")]


def test_the_nearest_system_prompt_holds() -> None:
    prompts = [
        (None, None, None, None),
        (None, None, "config", "config"),
        (None, "row", None, "row"),
        (None, "row", "config", "row"),
        (None, "", "config", "config"),
        ("messages", "row", "config", "messages"),
        ("messages", None, "config", "messages"),
    ]
    for own, row, config, prompt in prompts:
        talk = ([said("system", own)] if own else []) + TALK_ALONE
        made = spoken(talk, system=row, default_system=config)
        nearest = [said("system", prompt)] if prompt else []
        assert made == nearest + TALK_ALONE, (own, row, config)


@pytest.mark.parametrize("nothing", [None, []])
def test_a_system_prompt_that_is_null_or_an_empty_list_is_none(nothing: Any) -> None:
    """Tables give it to rows without one; one that is an empty text overrides a template's."""
    empty = {"role": "system", "content": nothing}
    assert spoken([empty, ANSWER]) == [ANSWER]
    assert spoken([empty, ANSWER], default_system="D") == [said("system", "D"), ANSWER]
    assert spoken([said("system", ""), ANSWER]) == [said("system", ""), ANSWER]
    assert refusal([empty], None) == "the conversation has no assistant message to train on"


def test_reasoning_of_white_space_is_none() -> None:
    assert spoken([said("assistant", "a", reasoning_content="\n\n")]) == [ANSWER]


def test_system_prompts_are_removed_where_the_config_has_false() -> None:
    for talk in (TALK_ALONE, [said("system", "own"), *TALK_ALONE]):
        assert spoken(talk, system="row", default_system=False) == TALK_ALONE


def test_a_system_prompt_of_developers_is_one_too() -> None:
    made = spoken([said("developer", "own"), *TALK_ALONE], default_system="config")
    assert made == [said("system", "own"), *TALK_ALONE]


ASK = said("user", "a")
NOTHING: list[dict[str, Any]] = [
    {},
    {"content": ""},
    {"content": None, "tool_calls": None, "function_call": None},
    {"content": [], "tool_calls": []},
]
DEEP = "[" * 100_000


WRONG: list[tuple[Any, str]] = [
    (None, "got nothing for messages, expected a list"),
    ("", "got nothing for messages, expected a list"),
    ([], "got an empty list for messages, expected a list"),
    ({"role": "user"}, "got dict for messages, expected a list"),
    (5, "got int for messages, expected a list"),
    ('"a"', "got str for messages, expected a list"),
    (
        "[{",
        "invalid JSON in messages (Expecting property name enclosed in double quotes: "
        "line 1 column 3 (char 2))",
    ),
    (
        [ASK, {"content": "a"}],
        "message 2 has no role, expected role and content (or from and value)",
    ),
    (["a"], "message 1 has no role, expected role and content (or from and value)"),
    (
        [ASK, said("bot", "b")],
        "got role 'bot' in message 2, expected one of system, developer, user, human, "
        "assistant, gpt, function_call, tool, function, observation",
    ),
    (
        [{"role": ["user"], "content": "a"}],
        "got role ['user'] in message 1, expected one of system, developer, user, human, "
        "assistant, gpt, function_call, tool, function, observation",
    ),
    ([ASK, said("tool", "b")], "the conversation has no assistant message to train on"),
    (
        [ASK, said("assistant", "b", weight=0), said("assistant", "c", weight=0)],
        "the conversation has no assistant message to train on",
    ),
    *(
        (
            [ASK, {"role": "assistant", **nothing}],
            "message 2, of the assistant, is empty, expected text or a tool call",
        )
        for nothing in (*NOTHING, {"content": " \n"})
    ),
    *(
        (
            [said("assistant", "", tool_calls=[call(arguments)])],
            f"got {kind} for the arguments of a tool call in message 1, expected a mapping",
        )
        for arguments, kind in ((json.dumps('{"a": 1}'), "str"), ("[1]", "list"), (1, "int"))
    ),
    *(
        (
            [said("assistant", "", tool_calls=[call({"at": value})])],
            "got a value that JSON can't represent "
            f"(Object of type {type(value).__name__} is not JSON "
            "serializable)",
        )
        for value in (datetime(2024, 7, 26, tzinfo=UTC), b"a")
    ),
    *(
        (messages, f"invalid JSON in {place} (maximum recursion depth exceeded")
        for place, messages in (
            ("messages", DEEP),
            ("arguments", [said("assistant", "", tool_calls=[call(DEEP)])]),
            ("function_call", [{"from": "function_call", "value": DEEP}]),
        )
    ),
    ([{"role": "assistant", "content": 5}], "got int in message 1, expected text"),
    (
        [ASK, {"role": "assistant", "content": [{"type": "text", "text": 5}]}],
        "got int in a part of type text in message 2, expected text",
    ),
    (
        [
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "image_url"}],
            }
        ],
        "got a part of type image_url in message 1, expected text or reasoning",
    ),
    (
        [{"role": "user", "content": ["a"]}],
        "got a part of type None in message 1, expected text or reasoning",
    ),
    (
        [ASK, {"role": "assistant", "content": [{"type": "text", "body": "a"}]}],
        "got no text or value in a part of type text in message 2, expected text",
    ),
    (
        [ASK, {"role": "assistant", "content": [{"type": "reasoning", "summary": []}]}],
        "got no reasoning or text or value in a part of type reasoning in message 2, expected text",
    ),
    (
        [ASK, {"from": "function_call", "value": "add(1)"}],
        "invalid JSON in function_call (Expecting value: line 1 column 1 (char 0))",
    ),
    (
        [ASK, {"from": "function_call", "value": ""}],
        "a tool call in message 2 has no name, expected name and arguments",
    ),
    (
        [ASK, said("assistant", "", tool_calls=[call("{")])],
        "invalid JSON in arguments (Expecting property name enclosed in double quotes: "
        "line 1 column 2 (char 1))",
    ),
    (
        [said("assistant", "", tool_calls=[{"function": {"arguments": {}}}])],
        "a tool call in message 1 has no name, expected name and arguments",
    ),
    (
        [said("assistant", "", tool_calls=["add"])],
        "a tool call in message 1 has no name, expected name and arguments",
    ),
]


def test_what_is_no_conversation_is_reported() -> None:
    for messages, problem in WRONG:
        reported = refusal(messages, None)
        if "recursion" in problem:
            assert reported.startswith(problem)
            assert "\n" not in reported
        else:
            assert reported == problem


def test_what_are_no_tools_is_reported() -> None:
    wrong: list[tuple[Any, str]] = [
        (
            "add(a)",
            "invalid JSON in tools (Expecting value: line 1 column 1 (char 0))",
        ),
        (ADD, "got dict for tools, expected a list"),
        ('"add"', "got str for tools, expected a list"),
        (["add"], "tool 1 has no name, expected a function"),
        ([WRAPPED, {"description": "é"}], "tool 2 has no name, expected a function"),
    ]
    for tools, problem in wrong:
        assert refusal([ANSWER], tools) == problem
