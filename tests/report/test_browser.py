"""The page in a real browser, without a screen."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from browser import CHROMIUM, Page, opened
from made_up_results import STEPS, write_run, write_state

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
TRACES = "document.querySelectorAll('#curves .scatterlayer .trace').length"


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


def test_the_result_is_visible_on_a_phone_while_the_rest_is_scrolled(
    page: Path, tmp_path: Path
) -> None:
    async def look() -> None:
        async with opened(tmp_path) as shown:
            await shown.show(page, PHONE, dark=False)
            table = "document.querySelector('#overview .scroll')"
            for scrolled in (0, 300):
                await shown.evaluate(f"{table}.scrollLeft = {scrolled}")
                for cell in (".result", ".name"):
                    box = f"{table}.querySelector('{cell}').getBoundingClientRect()"
                    assert await shown.evaluate(f"{box}.left") >= 0
                    assert await shown.evaluate(f"{box}.right") <= PHONE

    asyncio.run(look())


def test_it_is_printed_on_white_without_what_only_a_screen_needs(
    page: Path, tmp_path: Path
) -> None:
    async def look() -> None:
        async with opened(tmp_path) as shown:
            await shown.show(page, DESKTOP, dark=True)
            dark = {"name": "prefers-color-scheme", "value": "dark"}
            await shown.call("Emulation.setEmulatedMedia", media="print", features=[dark])
            background = await shown.evaluate("getComputedStyle(document.body).backgroundColor")
            assert background == "rgb(255, 255, 255)"
            for selector in ("nav", "#overview .plain", "#overview input", ".view", "#runs"):
                hidden = f"!document.querySelector('{selector}').checkVisibility()"
                assert await shown.evaluate(hidden), selector

    asyncio.run(look())


def test_seeds_are_one_curve_in_a_band(tmp_path: Path) -> None:
    for seed in range(6):
        write_run(tmp_path, f"tuned-seed={seed}", train={"seed": seed})
    output = tmp_path / "report.html"
    write_page(load(tmp_path / "results"), output)
    labels = "[...document.querySelectorAll('.legend button')].map(button => button.textContent)"
    data = "document.querySelector('#curves .chart').data"

    async def look() -> None:
        async with opened(tmp_path / "browser") as shown:
            await shown.show(output, DESKTOP, dark=False)
            assert await shown.evaluate(labels) == ["tuned (6 seeds)"]
            # Its ends and its mean, in each of five charts.
            assert await shown.evaluate(TRACES) == 15
            mean = await shown.evaluate(f"{data}[2].y")
            assert mean == pytest.approx([5 / step**0.5 for step in range(1, STEPS + 1)], rel=1e-4)
            # Two are left of the setting, then one.
            for left, label, traces in ((2, "tuned (2 seeds)", 15), (1, "tuned, seed 0", 5)):
                boxes = f"[...document.querySelectorAll('#overview input')].slice({left})"
                change = "box.checked = false; box.dispatchEvent(new Event('change'))"
                await shown.evaluate(f"{boxes}.forEach(box => {{ {change} }})")
                assert await shown.evaluate(labels) == [label]
                assert await shown.evaluate(TRACES) == traces
            assert shown.complaints == []

    asyncio.run(look())


def test_curves_are_smoothed_and_drawn_by_time_and_by_logarithm(tmp_path: Path) -> None:
    for run in ("a", "b"):
        write_run(tmp_path, run)
    output = tmp_path / "report.html"
    write_page(load(tmp_path / "results"), output)
    chart = "document.querySelector('#curves .chart')"

    async def look() -> None:
        async with opened(tmp_path / "browser") as shown:
            await shown.show(output, DESKTOP, dark=False)
            assert await shown.evaluate(f"{chart}.data[0].x.at(-1)") == STEPS
            await shown.evaluate(
                "document.querySelectorAll('#curves .view input').forEach(box => box.click())"
            )
            # Each step takes 0.1 s.
            assert await shown.evaluate(f"{chart}.data[0].x") == pytest.approx(
                [0.1 * step for step in range(1, STEPS + 1)]
            )
            assert await shown.evaluate(f"{chart}.layout.yaxis.type") == "log"
            losses = pd.Series([5 / step**0.5 for step in range(1, STEPS + 1)])
            expected = losses.ewm(alpha=0.1, adjust=True).mean().tolist()
            assert await shown.evaluate(f"{chart}.data[0].y") == pytest.approx(expected, rel=1e-4)
            assert shown.complaints == []

    asyncio.run(look())


def test_a_single_run_has_its_curves_once_and_a_point_is_no_curve(tmp_path: Path) -> None:
    for name, steps in (("long", STEPS), ("short", 1)):
        write_run(tmp_path / name, name, steps=steps)
        write_page(load(tmp_path / name / "results"), tmp_path / f"{name}.html")

    async def look() -> None:
        async with opened(tmp_path / "browser") as shown:
            await shown.show(tmp_path / "long.html", DESKTOP, dark=False)
            # Five curves, and the scores of two metrics.
            assert await shown.evaluate("document.querySelectorAll('.chart').length") == 7
            await shown.show(tmp_path / "short.html", DESKTOP, dark=False)
            assert await shown.evaluate("document.querySelectorAll('.chart').length") == 2
            text = await shown.evaluate("document.querySelector('.training').innerText")
            assert "Training loss\n5 at step 1" in text.replace("\n\n", "\n")
            assert shown.complaints == []

    asyncio.run(look())


def test_tables_are_sorted_and_curves_hidden_by_keyboard(page: Path, tmp_path: Path) -> None:
    async def use() -> None:
        async with opened(tmp_path) as shown:
            await shown.show(page, DESKTOP, dark=False)
            runs = "[...document.querySelectorAll('#overview tbody th')].map(x => x.innerText)"
            header = "document.querySelector('#overview thead .result button')"
            for expected in ([LONG, "tuned", "killed"], ["tuned", LONG, "killed"]):
                await shown.evaluate(f"{header}.focus()")
                await shown.press("Enter")
                # Without a score last, in both orders.
                assert await shown.evaluate(runs) == expected
            # Those of other tasks aren't ticked at first.
            others = "document.querySelectorAll('#overview input:not(:checked)')"
            await shown.evaluate(f"{others}.forEach(box => box.click())")
            before = await shown.evaluate(TRACES)
            await shown.evaluate("document.querySelector('.legend button').focus()")
            await shown.press("Enter")
            assert 0 < await shown.evaluate(TRACES) < before
            await shown.evaluate("document.querySelector('a[href=\"#run-tuned\"]').focus()")
            await shown.press("Enter")
            await shown.until("document.getElementById('run-tuned').open")
            assert shown.complaints == []

    asyncio.run(use())
