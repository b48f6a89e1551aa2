"""The counterparts of axolotl's chat templates."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moray.extras.importing.table import Draft

# axolotl's prompts for rows of Alpaca, by what follows the colon in `alpaca:phi`: what is before
# and behind the system prompt, and the instruction. A chat template gets instruction and input as
# one message.
_ALPACA = {
    "": ("", "\n\n", "### Instruction:\n", "\n\n### Response:\n"),
    "chat": ("SYSTEM: ", "\n", "USER: ", "\nASSISTANT:"),
    "chatml": (
        "<|im_start|>system\n",
        "<|im_end|>\n",
        "<|im_start|>user\n",
        "<|im_end|>\n<|im_start|>assistant\n",
    ),
    "phi": ("<|system|>\n", "<|end|>\n", "<|user|>\n", "<|end|>\n<|assistant|>\n"),
}
_TASK = (
    "Below is an instruction that describes a task. Write a response that appropriately completes "
    "the request."
)
_CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + "
    "'<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_SCALARS = (bool, int, float, str)
# `data.chat_template` also tells a template from a path by this.
_JINJA = re.compile(r"\{[{%]")


# What a prompt of one's own has.
PROMPT_FIELDS = {
    *("system_prompt", "system_format", "field_system", "field_instruction", "field_input"),
    *("field_output", "format", "no_input_format"),
}


def template(draft: Draft) -> None:
    """The chat template: the tokenizer's own, a prompt of Alpaca, ChatML, or the user's."""
    entries = [entry for entry in draft.get("datasets", []) if isinstance(entry, Mapping)]
    name, jinja = _chosen(draft, entries)
    # A type of one's own has another meaning for KTO.
    instructed = [] if draft.config.get("rl") == "kto" else entries
    prompts = {prompt for entry in instructed if (prompt := _prompt_of(entry.get("type")))}
    if len(prompts) > 1:
        draft.refused["datasets.type"] = "several prompts need as many runs"
    elif prompts:
        draft.put("data.chat_template", prompts.pop())
        draft.different["datasets.type"] = (
            "axolotl's prompt is data.chat_template; rows with an input get that of rows without "
            "one, and the input follows its instruction after an empty line"
        )
        if name or jinja:
            draft.same["chat_template"] = "instructions have a prompt, and don't use it"
    elif name in (None, "jinja"):
        _jinja(draft, name, jinja)
    else:
        if jinja:
            draft.same["chat_template_jinja"] = f"chat_template is {name}, so it isn't used"
        if name == "chatml":
            draft.put("data.chat_template", _CHATML)
        elif name != "tokenizer_default":
            draft.different["chat_template"] = (
                f"the tokenizer's own template is used, not axolotl's {name}; set "
                "data.chat_template if it has none"
            )


def variables(draft: Draft) -> None:
    """The variables of the chat template."""
    given = draft.get("chat_template_kwargs", {})
    if isinstance(given, dict) and all(isinstance(one, _SCALARS) for one in given.values()):
        if given:
            draft.put("data.template_variables", given)
    else:
        draft.refused["chat_template_kwargs"] = "only variables that are text, numbers or true"


def _chosen(draft: Draft, entries: list[Mapping[str, Any]]) -> tuple[Any, Any]:
    """The template of the config, or of its datasets."""
    whole = (draft.get("chat_template"), draft.get("chat_template_jinja"))
    own = set()
    for entry in entries:
        name, jinja = entry.get("chat_template"), entry.get("chat_template_jinja")
        kind = str(entry.get("type"))
        if kind.startswith(("chatml.", "llama3.")):
            name, jinja = kind.partition(".")[0], None
        elif kind == "sharegpt":
            name = name or entry.get("conversation")
        own.add((name, jinja) if name or jinja else whole)
    if len(own) > 1:
        draft.refused["datasets.chat_template"] = "several templates need as many runs"
    return own.pop() if own else whole


def _prompt_of(kind: Any) -> str | None:
    """A template for rows of instructions; None for others."""
    if isinstance(kind, Mapping):
        return _own(kind)
    style, _, form = str(kind).partition(":")
    return _alpaca(*_ALPACA[form]) if style == "alpaca" and form in _ALPACA else None


def _own(kind: Mapping[str, Any]) -> str:
    """A chat template with a prompt of one's own; its `{instruction}` is the message."""
    form = kind.get("no_input_format") or kind.get("format") or "{instruction} "
    # Without an input, axolotl leaves the braces' text out.
    before, _, after = str(form).replace("{input}", "").partition("{instruction}")
    begin, _, end = str(kind.get("system_format") or "{system}").partition("{system}")
    return _turns(
        f"{before!r} + message.content + {after!r}", f"{begin!r} + message.content + {end!r}"
    )


def _jinja(draft: Draft, name: str | None, jinja: str | None) -> None:
    """A template of one's own: its text, or the path of its file."""
    if jinja is None:
        if name:
            draft.refused["chat_template"] = "jinja needs chat_template_jinja"
    elif _JINJA.search(jinja):
        draft.put("data.chat_template", jinja)
    elif (text := _text_of(jinja)) is not None:
        draft.put("data.chat_template", text)
    else:
        draft.different["chat_template_jinja"] = (
            f"there is no file {jinja} here, so the tokenizer's own template is used; import in "
            "its folder, or set data.chat_template to its text"
        )


def _text_of(path: str) -> str | None:
    """The text of a file; None if it doesn't exist, or is no text."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _alpaca(system: str, instruction: str, user: str, response: str) -> str:
    """A chat template; a line's end is written as text, because YAML folds it."""
    return _turns(f"{f'{system}{_TASK}{instruction}{user}'!r} + message.content + {response!r}")


def _turns(user: str, system: str | None = None) -> str:
    """A chat template with an expression for questions, and one for system messages."""
    first = f"{{% if message.role == 'system' %}}{{{{ {system} }}}}{{% el" if system else "{% "
    return (
        "{{ bos_token }}{% for message in messages %}"
        f"{first}if message.role == 'user' %}}{{{{ {user} }}}}"
        "{% elif message.role == 'assistant' %}{{ message.content + eos_token }}{% endif %}"
        "{% endfor %}"
    )
