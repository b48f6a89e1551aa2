"""The Dockerfile, by what can be checked without building it."""

import re
from fnmatch import fnmatch

from project import ROOT

TEXT = (ROOT / "Dockerfile").read_text()
# Continued lines in one, without comments.
INSTRUCTIONS = [
    line for line in re.sub(r"\\\n\s*", "", TEXT).splitlines() if line and not line.startswith("#")
]
IGNORED = [
    line
    for line in (ROOT / ".dockerignore").read_text().splitlines()
    if line and not line.startswith("#")
]


def arguments(instruction: str) -> list[str]:
    """What follows an instruction, each time that it stands there."""
    return [
        line.partition(" ")[2] for line in INSTRUCTIONS if line.partition(" ")[0] == instruction
    ]


def test_the_base_image_is_pinned_to_a_version_and_a_system() -> None:
    (image,) = arguments("FROM")
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-[a-z]+", image)


def test_it_does_not_run_as_root() -> None:
    (user,) = arguments("USER")
    assert int(user) > 0
    assert f"--uid {user} " in TEXT


def test_what_is_copied_is_there_and_not_ignored() -> None:
    sources = [
        word
        for line in arguments("COPY")
        for word in line.split()[:-1]
        if not word.startswith("--")
    ]
    assert {"envs/requirements.txt", "."} <= set(sources)
    for source in sources:
        assert (ROOT / source).exists()
        assert not any(fnmatch(source, pattern) for pattern in IGNORED)


def test_what_the_workflow_and_its_installation_need_is_not_ignored() -> None:
    for name in ("Snakefile", "config", "deploy", "docs", "envs", "profiles", "src", "workflow"):
        assert not any(fnmatch(name, pattern) for pattern in IGNORED)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        assert not any(fnmatch(name, pattern) for pattern in IGNORED)


def test_the_locked_versions_are_installed() -> None:
    (libraries,) = [line for line in arguments("RUN") if "--requirement" in line]
    for file in ("requirements.txt", "requirements-cuda.txt", "requirements-dev.txt"):
        assert f"/tmp/envs/{file}" in libraries
        assert (ROOT / "envs" / file).exists()
