"""The page in a real browser, without a screen."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, Page, opened
from made_up_results import write_run, write_state

from moray.config.schema.base import result_keys
from moray.config.schema.sections import Augmentation
from moray.report.page import write_page
from moray.results import load

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; install chromium"),
]

HOSTILE = "</script></pre><script>window.hurt = 1</script><img src=x onerror='window.hurt = 1'>"
# As long as a run's name can be, for a file system.
LONG = "a" * 200
PHONE, DESKTOP = 390, 1280


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with runs of each kind, one of which tries to run a script."""
    project = tmp_path_factory.mktemp("project")
    sample = dict.fromkeys(("prompt", "reference", "base", "tuned"), HOSTILE + "x" * 500)
    prediction: dict[str, Any] = {"image": 0, "base_probability": 0.5, "tuned_probability": 0.5}
    prediction |= dict.fromkeys(("label", "base", "tuned"), HOSTILE + "x" * 500)
    folder = write_run(
        project,
        LONG,
        samples=[prediction],
        start="results/models/<img src=x>",
        sections={"augmentation": result_keys(Augmentation())},
    )
    scores = json.loads((folder / "eval.json").read_text())
    matrix = [[number % 7 for number in range(30)]] * 30
    names = [f"class {number} {HOSTILE}" for number in range(30)]
    by_class = {"label_names": names, "by_class": {"tuned": {"confusion": matrix}}}
    (folder / "eval.json").write_text(json.dumps(scores | by_class))
    write_run(project, "tuned", samples=[sample], shift=0.1, train={"learning_rate": 1e-3})
    write_state(project, "killed", until=12)
    output = project / "report.html"
    write_page(load(project / "results"), output)
    return output


async def open_runs(page: Page) -> None:
    """Open the details of every run, and wait until they are drawn."""
    runs = "[...document.querySelectorAll('.run')]"
    await page.evaluate(f"{runs}.forEach(run => {{ run.open = true; }})")
    await page.until(f"{runs}.every(run => run.querySelector('.chart svg'))")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_the_page_fits_and_asks_for_nothing(
    page: Path, width: int, dark: bool, tmp_path: Path
) -> None:
    async def look() -> None:
        async with opened(tmp_path) as shown:
            await shown.show(page, width, dark)
            await open_runs(shown)
            # Five charts of the curves above, and of each of three runs.
            assert await shown.evaluate("document.querySelectorAll('.chart svg').length") >= 20
            assert await shown.evaluate("document.documentElement.scrollWidth") == width
            assert await shown.evaluate("window.hurt") is None
            assert await shown.evaluate("document.querySelectorAll('img').length") == 0
            background = await shown.evaluate("getComputedStyle(document.body).backgroundColor")
            assert background == ("rgb(20, 23, 26)" if dark else "rgb(255, 255, 255)")
            assert shown.complaints == []
            assert shown.requests == []

    asyncio.run(look())


def test_tables_are_sorted_and_curves_hidden_by_keyboard(page: Path, tmp_path: Path) -> None:
    async def use() -> None:
        async with opened(tmp_path) as shown:
            await shown.show(page, DESKTOP, dark=False)
            runs = "[...document.querySelectorAll('#overview tbody th')].map(x => x.innerText)"
            header = "document.querySelectorAll('#overview thead button')[3]"
            for expected in ([LONG, "tuned", "killed"], ["tuned", LONG, "killed"]):
                await shown.evaluate(f"{header}.focus()")
                await shown.press("Enter")
                # Without a score last, in both orders.
                assert await shown.evaluate(runs) == expected
            lines = "document.querySelectorAll('#curves .scatterlayer .trace').length"
            before = await shown.evaluate(lines)
            await shown.evaluate("document.querySelector('.legend button').focus()")
            await shown.press("Enter")
            assert 0 < await shown.evaluate(lines) < before
            await shown.evaluate("document.querySelector('a[href=\"#run-tuned\"]').focus()")
            await shown.press("Enter")
            await shown.until("document.getElementById('run-tuned').open")
            assert shown.complaints == []

    asyncio.run(use())
