"""The repository speaks of the product only: no paths of somebody's machine, no hosts of their network."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOT_OURS = {".git", ".venv", "__pycache__", "build", "dist", "results", "htmlcov"}

FOREIGN = {
    "a path of somebody's machine": r"(?<![\w.~-])/(?:root|home|Users|work|workspace|mnt|builds)/\w",
    "a registry or a mirror": r"(?i)\b(?:artifactory|nexus|jfrog|devpi|index-url|pythonhosted|npmjs)\b",
    "a host of a private network": r"\b(?:10\.\d+|192\.168)\.\d+\.\d+\b|\w\.(?:internal|corp|lan)\b",
    "a note to be done": r"\b(?:TODO|FIXME|XXX)\b",
    "a conflict that was not resolved": r"^(?:<{7}|>{7})(?: |$)",
}


def ours() -> list[Path]:
    """Every text file of the repository, without what tools make."""
    found = []
    for folder, names, files in os.walk(ROOT):
        names[:] = [n for n in names if n not in NOT_OURS and not n.endswith(("_cache", ".egg-info"))]
        names[:] = [n for n in names if n != ".hypothesis" and not n.startswith(".venv-")]
        # In a linked worktree .git is a file.
        found += [
            Path(folder, file) for file in files if not re.search(r"\.(?:git$|(?:db|pyc|png|ico)\b)", file)
        ]
    return sorted(found)


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def test_there_are_files_to_look_at() -> None:
    assert ROOT / "pyproject.toml" in ours()
    assert Path(__file__) in ours()


@pytest.mark.slow
def test_no_file_holds_what_is_foreign() -> None:
    patterns = {what: re.compile(pattern, re.MULTILINE) for what, pattern in FOREIGN.items()}
    found = [
        f"{path.relative_to(ROOT)}: {what}: {match[0]}"
        for path in ours()
        if path != Path(__file__)
        for content in [text(path)]
        for what, pattern in patterns.items()
        for match in pattern.finditer(content)
    ]
    assert found == []


def test_every_page_that_a_file_speaks_of_is_there() -> None:
    names = {path.name for path in ours()}
    missing = {
        f"{path.relative_to(ROOT)}: {page}"
        for path in ours()
        for page in re.findall(r"\b[A-Z]{4,}\.md\b", text(path))
        if page not in names
    }
    assert missing == set()
