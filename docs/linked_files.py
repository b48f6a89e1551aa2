"""A hook of MkDocs: files of the repository that pages link to are part of the site."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_ROOT = Path(__file__).parents[1]
# Links out of the folder of the documentation, as they work in the repository.
_LINK = re.compile(r"\[([^\]]*)\]\(\.\./([^)#]+)(#[^)]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add each file that a page links to, as plain text."""
    for page in files.documentation_pages():
        for _, path, _ in _LINK.findall(page.content_string):
            if (_ROOT / path).is_file() and not files.get_file_from_path(_target(path)):
                files.append(File.generated(config, _target(path), abs_src_path=str(_ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to those files. A folder keeps its name alone; a file that isn't there, its
    link, which a strict build refuses.
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
