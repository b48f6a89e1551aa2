"""What is measured runs where only little is installed, and its figures are what they say."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from benchmarks.__main__ import commands_of, with_output
from benchmarks.gpu.contestants import CONTESTANTS
from benchmarks.peak import product_peak, product_sizes
from benchmarks.table import shares, table
from benchmarks.turns import alternate
from transformers import LlamaConfig, LlamaForCausalLM

ROOT = Path(__file__).parents[1]

# As if these had never been installed.
_WITHOUT = """
import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        missing = {"ray", "snakemake", "evaluate", "s3fs", "deepspeed", "peft"}
        return None if name in missing else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Without
import benchmarks.gpu.__main__
"""


@pytest.mark.long
def test_the_gpu_benchmark_imports_neither_ray_nor_snakemake_nor_other_extras() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.release
def test_on_a_cpu_contestants_of_a_tiny_model_are_measured_but_for_kernels_of_gpus() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--only", "tiny/*", "--rounds", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("| tiny/")]
    measured = {name: speed for name, speed, *_ in (row.strip("| ").split(" | ") for row in rows)}
    assert measured.keys() == {f"tiny/{name}" for name in CONTESTANTS}
    failed = {name for name, speed in measured.items() if not speed.replace(",", "").isdigit()}
    # A kernel that has no backward pass on CPUs.
    assert failed == {"tiny/training: moray, attention: flex"}


def test_contestants_take_turns_and_one_that_fails_says_why() -> None:
    """The first round doesn't count."""
    code = """
import sys, torch
from benchmarks.turns import Turns
numbers = iter(range(10))
Turns(torch.device("cpu")).repeat(lambda: None, next(numbers)) if sys.argv[1] == "good" else 1 / 0
"""
    commands = {name: [sys.executable, "-c", code, name] for name in ("good", "bad")}
    figures = alternate(commands, rounds=2)
    assert [set(turn) for turn in figures["good"]] == [{"tokens_per_second", "flops"}] * 2
    assert figures["bad"] == [{"failed": "ZeroDivisionError: division by zero"}] * 2


def test_products_are_those_of_the_model_and_its_head() -> None:
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=50,
            hidden_size=8,
            intermediate_size=12,
            num_hidden_layers=1,
            num_attention_heads=2,
            tie_word_embeddings=True,
        )
    )
    assert product_sizes(model, 5) == {(5, 8, 8), (5, 8, 12), (5, 12, 8), (5, 8, 50)}


def test_the_peak_is_the_arithmetic_of_a_product_over_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a clock that goes on by a quarter of a second for each product."""
    calls = 0
    linear = torch.nn.functional.linear

    def counted(*arguments: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return linear(*arguments)

    monkeypatch.setattr("torch.nn.functional.linear", counted)
    monkeypatch.setattr(time, "perf_counter", lambda: calls * 0.25)
    found = product_peak({(2, 3, 5), (4, 8, 16)}, "fp32", torch.device("cpu"))
    assert found == pytest.approx(2 * 4 * 8 * 16 / 0.25)


def test_shares_are_of_the_peak_in_the_same_round() -> None:
    figures = {"ours": [50.0, 60.0, 10.0], "theirs": [25.0, 20.0, 1.0]}
    wholes = {"ours": [100.0, 100.0, 20.0], "theirs": [100.0, 100.0, 10.0]}
    assert shares(figures, wholes) == {"ours": "50% (50%-60%)", "theirs": "20% (10%-25%)"}


def test_a_table_has_ratios_within_a_round_and_further_columns() -> None:
    figures = {"theirs": [100.0, 50.0, 40.0], "ours": [200.0, 200.0, 40.0]}
    more = {"computes in": {"theirs": "fp32", "ours": "bf16"}}
    assert table(figures, "tokens/s", "ours", more).splitlines() == [
        "|  | tokens/s, median | range | speed of ours ÷ this row's | range | computes in |",
        "|---|---|---|---|---|---|",
        "| theirs | 50 | 40-100 | 2.00 | 1.00-4.00 | fp32 |",
        "| ours | 200 | 40-200 | 1.00 | 1.00-1.00 | bf16 |",
    ]


def test_the_output_of_a_command_replaces_the_last_one_in_a_page() -> None:
    page = (
        "# Speed\n\n<!-- begin: python -m benchmarks.a --rounds 2 -->\n\nold\n\n<!-- end -->\n"
        "Text.\n<!-- begin: python -m benchmarks.b -->\n<!-- end -->\nMore.\n"
    )
    first, second = commands_of(page)
    assert [first, second] == ["benchmarks.a --rounds 2", "benchmarks.b"]
    once = with_output(with_output(page, first, "| new |\n"), second, r"\1 other")
    assert once == page.replace("old", "| new |").replace(
        "b -->\n<!-- end", "b -->\n\n\\1 other\n\n<!-- end"
    )
    assert commands_of(once) == [first, second]


def test_pages_have_only_commands_that_there_are() -> None:
    found = [
        name for page in (ROOT / "docs").glob("*.md") for name in commands_of(page.read_text())
    ]
    assert found
    for command in found:
        assert (ROOT / f"{command.split()[0].replace('.', '/')}/__main__.py").exists(), command
