"""What is wrong with a config as a file costs one line, with its number."""

from pathlib import Path

import pytest
from small_config import check_faults
from snakemake.common.configfile import load_configfile

from moray.config.config_files import check_config_file, check_option, read_config
from moray.errors import UserError

SOUND = """\
anchors: &anchor {a: 1, b: {a: 1}}
runs:
  a: {model: tiny, "no": 1}
  b: {<<: *anchor, a: 2}
list: [{a: 1}, {a: 1}, *anchor]
numbers: [0, 0.5, 00.5, 1_000, 0x10, 08, "010", '1:30', 1e2, 1:a]
1: yes
"""


def refused(text: str, folder: Path) -> str:
    file = folder / "mine.yaml"
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        check_config_file(file)
    return str(caught.value).removeprefix(str(folder))


@pytest.mark.parametrize("text", [SOUND, "", "# nothing\n", '{"a": {"b": 1},\t"c": 2}'])
def test_a_sound_file_passes(text: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    check_config_file(tmp_path / "mine.yaml")


@pytest.mark.parametrize(
    ("text", "line", "first", "key"),
    [
        ("runs: {}\nmodels: {}\nruns: {}\n", 3, 1, "runs"),
        ("runs:\n  a: {}\n  b: {}\n  a: {}\n", 4, 2, "a"),
        ('list:\n- {a: 1, "a": 2}\n', 2, 2, "a"),
        ('{"runs": 1,\n"runs": 2}', 2, 1, "runs"),
    ],
)
def test_a_key_that_is_there_twice_is_refused(
    text: str, line: int, first: int, key: str, tmp_path: Path
) -> None:
    assert refused(text, tmp_path) == (
        f"/mine.yaml, line {line}: the key {key} is in line {first} already, and only the last "
        "one would count; remove one of them"
    )


@pytest.mark.parametrize("word", ["no", "on", "Yes", "OFF", "true"])
def test_a_name_that_yaml_reads_as_something_else_is_refused(word: str, tmp_path: Path) -> None:
    assert refused(f"runs:\n  {word}: {{}}\n", tmp_path) == (
        f"/mine.yaml, line 2: YAML reads the key {word} as true or false; put quotes around {word}"
    )


@pytest.mark.parametrize(
    ("number", "read"), [("010", "8"), ("-0_17", "-15"), ("1:30", "90"), ("1:30.5", "90.5")]
)
def test_a_number_to_another_base_is_refused(number: str, read: str, tmp_path: Path) -> None:
    assert refused(f"runs:\n  a: {{seed: {number}}}\n", tmp_path) == (
        f"/mine.yaml, line 2: YAML reads {number} as {read}; write the number without a 0 or "
        "colons, or put quotes around it"
    )


def test_a_name_that_yaml_reads_as_something_else_is_explained_where_it_is_used() -> None:
    check_faults(
        {"runs.base.model": False, "datasets.no": {"source": "python-stdlib"}},
        "runs.base.model: got False, expected text or a mapping; put quotes around words that "
        "YAML reads as true or false: on, yes, off, no",
    )


def test_what_is_not_yaml_is_refused_with_its_line(tmp_path: Path) -> None:
    assert refused("runs:\n  a: {\nmodels: [\n", tmp_path).startswith(
        "/mine.yaml, line 4: isn't YAML: "
    )


def test_a_config_is_not_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the package; Snakemake does so with overlays before it reads the workflow."""
    monkeypatch.chdir(tmp_path)
    made = tmp_path / "made"
    text = f"__use_yte__: true\n__definitions__:\n- open({str(made)!r}, 'w')\nruns: {{}}\n"
    assert refused(text, tmp_path) == (
        "/mine.yaml, line 1: __use_yte__ runs code that is in the config; write the values"
    )
    Path("config").mkdir()
    Path("config/config.yaml").write_text("runs: {}\n")
    with pytest.raises(UserError, match="__use_yte__"):
        read_config([Path("mine.yaml")])
    assert not made.exists()
    load_configfile(tmp_path / "mine.yaml")
    assert made.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        "eval --configfile a.yaml --configfile b.yaml",
        "--configfile=a.yaml eval --configfile b.yaml -n",
        "--configfile=a.yaml --configfile=b.yaml",
        "eval --configfiles a.yaml --cores 2 --configf b.yaml",
    ],
)
def test_an_option_of_which_snakemake_keeps_the_last_is_refused(arguments: str) -> None:
    with pytest.raises(UserError) as caught:
        check_option(["snakemake", *arguments.split()])
    assert str(caught.value) == (
        "--configfile: is given 2 times, and Snakemake keeps only the last; write --configfile "
        "a.yaml b.yaml"
    )


@pytest.mark.parametrize(
    "arguments", ["eval --configfile a.yaml b.yaml --config a=1", "--config a=1 --config b=2", ""]
)
def test_other_options_pass(arguments: str) -> None:
    check_option(["snakemake", *arguments.split()])
