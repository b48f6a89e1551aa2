"""Chat templates of folders, and their variables."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from moray.errors import UserError
from moray.model.chat_template import chat_templates, unused_variables, with_defaults

MESSAGES = [{"role": "user", "content": "é"}]


def rendered(template: str, **variables: Any) -> str:
    (text,), _ = render_jinja_template([MESSAGES], chat_template=template, **variables)
    return str(text)


@pytest.mark.parametrize("value", [False, True, 3, 0.25, "low", 'a "quote", \\ and {{ 🐍 }}', ""])
def test_a_variable_has_its_default_unless_the_caller_sets_it(value: Any) -> None:
    template = "\n{{- effort if effort is defined else 'none' }}"
    written = with_defaults(template, {"effort": value})
    assert isinstance(written, str)
    assert rendered(template) == "none"
    assert rendered(written) == rendered(template, effort=value)
    assert rendered(written, effort="high") == "high"


def test_defaults_are_written_once_and_newer_ones_win() -> None:
    template = "{{ a }}{% for m in messages %}{{ b }}{% endfor %}"
    once = with_defaults(template, {"b": 2, "a": 1})
    assert isinstance(once, str)
    assert with_defaults(once, {"a": 1, "b": 2}) == once
    other = with_defaults(once, {"a": 3, "b": 2})
    assert isinstance(other, str)
    assert (rendered(once), rendered(other)) == ("12", "32")
    several = with_defaults({"default": template, "tool_use": "{{ a }}"}, {"a": 1, "b": 2})
    assert isinstance(several, dict)
    assert [rendered(text) for text in several.values()] == ["12", "1"]


def test_variables_are_known_by_whole_names() -> None:
    assert unused_variables(["think", "enable", "enable_thinking"], "{{ enable_thinking }}") == [
        "think",
        "enable",
    ]


def test_all_templates_of_a_folder_are_read(tmp_path: Path) -> None:
    assert chat_templates(tmp_path) == []
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": "A"}))
    assert chat_templates(tmp_path) == ["A"]
    listed = [{"name": "default", "template": "B"}, {"name": "tool_use", "template": "C"}]
    config.write_text(json.dumps({"chat_template": listed}))
    assert chat_templates(tmp_path) == ["B", "C"]
    config.write_text("{}")
    (tmp_path / "chat_template.jinja").write_text("D")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates/tool_use.jinja").write_text("E")
    assert chat_templates(tmp_path) == ["D", "E"]


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_damaged_config_costs_one_line(content: str, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer_config.json"
    file.write_text(content)
    with pytest.raises(UserError, match=r"tokenizer_config\.json: can't be read as a tokenizer's"):
        chat_templates(tmp_path)
