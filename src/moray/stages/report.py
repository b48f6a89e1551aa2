"""Write the page about all runs."""

from pathlib import Path
from typing import Any

from moray.config.schema.report import Report
from moray.console import say
from moray.report.page import write_page
from moray.results import load


def report(results: Path, output: Path, cfg: dict[str, Any]) -> None:
    """Write the page."""
    about = Report.model_validate(cfg.get("report", {}))
    write_page(load(results, runs=cfg["runs"]), output, about)
    count, size = len(cfg["runs"]), output.stat().st_size
    say(f"report: {output}, {count:,} run{'s' * (count != 1)}, {size / 1e6:.1f} MB")
