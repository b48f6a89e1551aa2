"""Chat templates of axolotl's configs."""

from pathlib import Path
from typing import Any

import jinja2
import pytest
from extras.importing.foreign_configs import AXOLOTL, at, imported, refusals, written

from moray.extras.importing.convert import convert


def test_axolotl_has_a_prompt_for_each_style_of_alpaca() -> None:
    """The texts are those of axolotl's AlpacaPrompter; its answers end with the stop token."""
    task = (
        "Below is an instruction that describes a task. Write a response that appropriately "
        "completes the request."
    )
    for kind, prompt in (
        ("alpaca", f"{task}\n\n### Instruction:\nAsk.\n\n### Response:\n"),
        ("alpaca:chat", f"SYSTEM: {task}\nUSER: Ask.\nASSISTANT:"),
        ("alpaca:phi", f"<|system|>\n{task}<|end|>\n<|user|>\nAsk.<|end|>\n<|assistant|>\n"),
    ):
        overlay = imported(AXOLOTL | {"datasets": [{"path": "owner/rows", "type": kind}]})
        messages = [{"role": "user", "content": "Ask."}, {"role": "assistant", "content": "Say."}]
        template = jinja2.Template(at(overlay, "data.chat_template"))
        rendered = template.render(messages=messages, bos_token="<s>", eos_token="</s>")
        assert rendered == f"<s>{prompt}Say.</s>"


TEMPLATE = "{% for message in messages %}\n  {{ message.content }} \n\t{% endfor %}\n"


@pytest.mark.parametrize("name", [{}, {"chat_template": "jinja"}])
@pytest.mark.parametrize("jinja", [TEMPLATE, "templates/mine.jinja"])
def test_a_template_of_one_s_own_is_its_text_whether_or_not_it_is_in_a_file(
    name: dict[str, Any], jinja: str
) -> None:
    Path("templates").mkdir()
    Path("templates/mine.jinja").write_text(TEMPLATE)
    overlay = imported(AXOLOTL | name | {"chat_template_jinja": jinja})
    assert at(overlay, "data.chat_template") == TEMPLATE


def test_a_template_whose_file_is_elsewhere_is_said_to_be_missing() -> None:
    config = AXOLOTL | {"chat_template": "jinja", "chat_template_jinja": "templates/mine.jinja"}
    assert "chat_template" not in at(imported(config), "data")
    said = " ".join(convert(written(config)).replace("\n#", "").split())
    assert (
        "chat_template_jinja: there is no file templates/mine.jinja here, so the tokenizer's own "
        "template is used"
    ) in said


def test_a_template_that_axolotl_does_not_use_is_none_here() -> None:
    config = AXOLOTL | {"chat_template": "tokenizer_default", "chat_template_jinja": TEMPLATE}
    assert "chat_template" not in at(imported(config), "data")
    assert "chat_template is tokenizer_default, so it isn't used" in convert(written(config))
    assert "chat_template (jinja needs chat_template_jinja)" in refusals(
        AXOLOTL | {"chat_template": "jinja"}
    )


def rendered(overlay: dict[str, Any], roles: str = "user assistant") -> str:
    template = jinja2.Template(at(overlay, "data.chat_template"))
    messages = [{"role": role, "content": role.title()} for role in roles.split()]
    return str(template.render(messages=messages, bos_token="<s>", eos_token="</s>"))


def test_a_prompt_of_one_s_own_is_a_chat_template() -> None:
    """As axolotl's user-defined prompts are: the system prompt has a format of its own."""
    kind = {
        "field_instruction": "ask",
        "field_output": "say",
        "system_prompt": "Be brief.",
        "system_format": "[{system}] ",
        "no_input_format": "Q: {instruction}\nA: ",
    }
    overlay = imported(AXOLOTL | {"datasets": [{"path": "owner/rows", "type": kind}]})
    section = overlay["datasets"]["theirs-1"]
    assert section["format"] == "instruction"
    assert section["columns"] == {"instruction": "ask", "output": "say"}
    assert section["system"] == "Be brief."
    assert rendered(overlay) == "<s>Q: User\nA: Assistant</s>"
    assert rendered(overlay, "system user") == "<s>[System] Q: User\nA: "
    unknown: dict[str, Any] = {"format": "{input}", "train": True}
    line = refusals(AXOLOTL | {"datasets": [{"path": "owner/rows", "type": unknown}]})
    assert "datasets.0.type (" in line


def test_a_format_for_inputs_alone_is_said_to_be_for_all_rows() -> None:
    kind = {"format": "Q: {instruction} {input}\nA: "}
    config = AXOLOTL | {"datasets": [{"path": "owner/rows", "type": kind}]}
    assert rendered(imported(config)) == "<s>Q: User \nA: Assistant</s>"
    assert "`format` is the prompt of rows without an input too" in convert(written(config))


def test_datasets_have_templates_of_their_own() -> None:
    entries = [
        {"path": f"owner/{n}", "type": "chat_template", "chat_template": "chatml"} for n in (1, 2)
    ]
    overlay = imported(AXOLOTL | {"datasets": entries, "chat_template": "llama3"})
    assert rendered(overlay).startswith("<|im_start|>user\nUser<|im_end|>")
    entries[0]["chat_template"] = "gemma"
    assert "datasets.chat_template (several" in refusals(AXOLOTL | {"datasets": entries})
    pairs = [{"path": "owner/pairs", "type": "chatml.ultra"}]
    assert rendered(imported(AXOLOTL | {"datasets": pairs, "rl": "dpo"})).startswith("<|im_start|>")
