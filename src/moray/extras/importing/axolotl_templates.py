"""The counterparts of axolotl's chat templates."""

import re
from pathlib import Path

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


def template(draft: Draft) -> None:
    """The chat template: the tokenizer's own, a prompt of Alpaca, ChatML, or the user's."""
    name, jinja = draft.get("chat_template"), draft.get("chat_template_jinja")
    styles = {entry.get("type") for entry in draft.get("datasets", [])}
    styles = {str(style).partition(":")[2] for style in styles if str(style).startswith("alpaca")}
    if len(styles) > 1:
        draft.refused["datasets.type"] = "several prompts of Alpaca need as many runs"
    elif styles:
        draft.put("data.chat_template", _alpaca(*_ALPACA[styles.pop()]))
        draft.different["datasets.type"] = (
            "axolotl's prompt of Alpaca is data.chat_template; rows with an input get that of rows "
            "without one, and the input follows its instruction after an empty line"
        )
        if name or jinja:
            draft.same["chat_template"] = "axolotl's prompt of Alpaca doesn't use it"
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
    """The text of a file; None if it isn't there, or is no text."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _alpaca(system: str, instruction: str, user: str, response: str) -> str:
    """A chat template; a line's end is written as text, because YAML folds it."""
    task, response = f"{system}{_TASK}{instruction}{user}", f"message.content + {response!r}"
    return (
        "{{ bos_token }}{% for message in messages %}{% if message.role == 'user' %}{{ "
        f"{task!r} + {response} }}}}{{% elif message.role == 'assistant' %}}"
        "{{ message.content + eos_token }}{% endif %}{% endfor %}"
    )
