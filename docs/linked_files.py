"""A hook of MkDocs: reports, and files of the repository that pages link to, are on the site."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_ROOT = Path(__file__).parents[1]
# `make reports` writes them, which takes minutes.
_REPORTS = ("default", "sweep")
_MISSING = "<p>The site was built without this report: <code>make reports</code> makes it.</p>"
# Links out of the folder of the documentation, as they work in the repository.
_LINK = re.compile(r"\[([^\]]*)\]\(\.\./([^)#]+)(#[^)]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the reports, and each file that a page links to, as plain text."""
    for name in _REPORTS:
        made = _ROOT / f"build/reports/{name}.html"
        content = made.read_text() if made.is_file() else _MISSING
        files.append(File.generated(config, f"reports/{name}.html", content=content))
    for page in files.documentation_pages():
        for _, path, _ in _LINK.findall(page.content_string):
            if (_ROOT / path).is_file() and not files.get_file_from_path(_target(path)):
                files.append(File.generated(config, _target(path), abs_src_path=str(_ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to those files.

    Of a link to a folder, only the text stays. A link to a missing file stays as it is, so that a
    strict build refuses it.
    """

    def replaced(link: re.Match[str]) -> str:
        text, path, anchor = link.groups()
        if (_ROOT / path).is_dir():
            return str(text)
        return f"[{text}]({_target(path)}{anchor or ''})"

    return _LINK.sub(replaced, markdown)


def _target(path: str) -> str:
    # The ending keeps browsers from offering a download, and MkDocs from reading a page.
    return f"files/{path}.txt"
