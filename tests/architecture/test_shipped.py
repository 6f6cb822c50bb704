"""What the documentation and the examples tell people to install: units, images and releases."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
BLOCK = re.compile(r"^```(ini|dockerfile)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def recipes() -> list[str]:
    """Every systemd unit and Dockerfile that starts workers."""
    blocks = [text for page in PAGES for _, text in BLOCK.findall(page.read_text("utf-8"))]
    blocks.append((ROOT / "examples/compose/Dockerfile").read_text("utf-8"))
    return [text for text in blocks if "queuectl" in text]


def test_units_and_images_are_found() -> None:
    assert len(recipes()) >= 5


@pytest.mark.parametrize("recipe", recipes())
def test_file_jobs_have_a_root_that_holds_no_code(recipe: str) -> None:
    [root] = map(PurePosixPath, re.findall(r"QUEUECTL_FILE_ROOTS=(\S+)", recipe))
    [code] = map(PurePosixPath, re.findall(r"^(?:WorkingDirectory=|WORKDIR )(\S+)", recipe, re.MULTILINE))
    assert not root.is_relative_to(code)
    assert not code.is_relative_to(root)


def test_releases_with_known_vulnerabilities_are_excluded() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    oldest = {
        extra: {name: tuple(map(int, version.split("."))) for name, version in re.findall(BOUND, text)}
        for extra, text in ((extra, "\n".join(extras[extra])) for extra in ("web", "webhook"))
    }
    assert oldest["web"]["starlette"] >= (1, 3, 1)
    assert oldest["web"]["jinja2"] >= (3, 1, 6)
    assert oldest["web"]["h11"] >= (0, 16)
    assert oldest["webhook"]["h11"] >= (0, 16)


BOUND = re.compile(r"^([a-z0-9-]+)>=([0-9.]+)$", re.MULTILINE)
