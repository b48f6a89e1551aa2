"""The documentation as a site, built as `make site` does."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built strictly: a link that leads nowhere, or a page that the menu lacks, fails."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    pages = sorted(site.glob("*.html"))
    assert len(pages) > 15
    for page in pages:
        loaded = re.findall(r'<(?:script|img|iframe)[^>]* src="?([^"\s>]+)', page.read_text())
        loaded += re.findall(
            r'<link rel="?(?:stylesheet|icon)"?[^>]* href="?([^"\s>]+)', page.read_text()
        )
        assert loaded, page
        assert not [url for url in loaded if re.match(r"https?:|//", url)], page


def test_the_home_page_begins_with_commands_and_a_result(site: Path) -> None:
    beginning = (site / "index.html").read_text().partition("<table")[0]
    text = re.sub(r"<[^>]*>", "", beginning.partition("<article")[2])
    for shown in ("$ make finetune", "$ snakemake eval", "before, 1.811 [1.650, 1.984] after"):
        assert shown in text


def test_files_that_pages_link_to_are_part_of_the_site(site: Path) -> None:
    copy = site / "files/config/chat.yaml.txt"
    assert copy.read_bytes() == (ROOT / "config/chat.yaml").read_bytes()
    assert 'href="files/config/chat.yaml.txt"' in (site / "data.html").read_text()
