"""Make the pictures of the README, in light and dark: `python docs/pictures.py`.

Needs Graphviz, Chromium, and the report of the default experiment.
"""

import re
import subprocess
from pathlib import Path

PICTURES = Path(__file__).with_suffix("")
REPORT = Path("results/report.html")
# Text, lines, and the stages of data, of training and of results.
COLOURS = {
    "light": ("#1f2328", "#8c959f", "#ddf4ff", "#d2f4d3", "#fff3cd"),
    "dark": ("#e6edf3", "#7d8590", "#0c2d4a", "#12381f", "#453a10"),
}
STAGES = ("download tokenize", "base_model finetune export", "evaluate generate card report")
# Chromium's numbers for `prefers-color-scheme`.
SCHEMES = {"dark": 0, "light": 1}


def workflow(scheme: str) -> str:
    """The jobs of the default experiment as SVG, from the graph that Snakemake prints."""
    command = ["snakemake", "--dag", "--forceall", "report"]
    graph = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    labels = dict(re.findall(r'(\d+)\[label = "(.*?)"', graph))
    needs: dict[str, set[str]] = {job: set() for job in labels}
    for needed, job in re.findall(r"(\d+) -> (\d+)", graph):
        needs[job].add(needed)

    def depth(job: str) -> int:
        return 1 + max(map(depth, needs[job]), default=0)

    def of_what(job: str) -> str:
        """The dataset, model or run. Snakemake leaves it out if a job that is needed has it."""
        own = labels[job].partition(": ")[2].split("-")[0]
        return own or of_what(max(needs[job], key=depth))

    text, line, *fills = COLOURS[scheme]
    lines = [
        "digraph { rankdir=LR; bgcolor=transparent; ranksep=0.35; nodesep=0.15;",
        'node [shape=box, style="rounded,filled", fontname="Helvetica,Arial,sans-serif", '
        f'fontsize=11, height=0.45, margin="0.12,0.05", color="{line}", fontcolor="{text}"];',
        f'edge [color="{line}", arrowsize=0.6];',
    ]
    for job, label in labels.items():
        rule = label.partition("\\n")[0].removesuffix("_run")
        (fill,) = (fill for fill, rules in zip(fills, STAGES, strict=True) if rule in rules.split())
        shown = rule.replace("_", " ") + ("" if rule == "report" else f"\\n{of_what(job)}")
        lines.append(f'{job} [label="{shown}", fillcolor="{fill}"];')
    lines += [f"{needed} -> {job};" for job in labels for needed in sorted(needs[job])]
    drawn = _piped(["dot", "-Tsvg"], _piped(["tred"], "\n".join([*lines, "}"])))
    return re.sub(r"<!--.*?-->\n?", "", drawn, flags=re.DOTALL)


def report(scheme: str, picture: Path) -> None:
    """The upper part of the report, as a browser shows it."""
    command = ["chromium", "--headless", "--no-sandbox", "--hide-scrollbars"]
    command += ["--window-size=1280,880", "--virtual-time-budget=10000"]
    command += [f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}"]
    command += [f"--screenshot={picture}", REPORT.resolve().as_uri()]
    subprocess.run(command, check=True, capture_output=True)


def _piped(command: list[str], text: str) -> str:
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    for scheme in COLOURS:
        (PICTURES / f"workflow-{scheme}.svg").write_text(workflow(scheme))
        report(scheme, PICTURES / f"report-{scheme}.png")
