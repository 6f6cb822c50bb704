"""The page about the architecture says what the import rules say, and names only what there is."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from importlib import import_module
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/explanation/architecture.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "src/holdfast"
MOST_MODULES, LONGEST, MOST_HOPS = 12, 400, 12
HOPS = re.findall(r"^\| `([\w.]+):([\w.]+)` \| .* \| (?:`([\w.]+)`|you) \|$", PAGE, re.MULTILINE)


def drawn_layers() -> list[set[str]]:
    """The rooms of the drawing, from the top: those in one line stand beside each other."""
    drawing = PAGE.partition("```text\n")[2].partition("\n```")[0]
    lines = re.findall(r"^ ([a-z_]+(?: · [a-z_]+)*)", drawing, re.MULTILINE)
    return [set(line.split(" · ")) for line in lines]


def enforced_layers() -> list[set[str]]:
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    [layers] = [rule["layers"] for rule in rules["contracts"] if rule["type"] == "layers"]
    return [set(re.findall(r"holdfast\.(\w+)", layer)) for layer in layers]


def called_in(module: str) -> set[str]:
    """The names of the functions and methods that a module calls."""
    source = import_module(module).__file__
    assert source is not None
    calls = (
        node.func for node in ast.walk(ast.parse(Path(source).read_text())) if isinstance(node, ast.Call)
    )
    return {getattr(called, "attr", getattr(called, "id", "")) for called in calls}


@cache
def imports() -> grimp.ImportGraph:
    return grimp.build_graph("holdfast")


def test_drawing_is_the_import_rules() -> None:
    assert drawn_layers() == enforced_layers()


def test_every_room_is_drawn() -> None:
    there = {path.stem for path in PACKAGE.iterdir() if path.is_dir() or path.suffix == ".py"}
    assert {name for name in there if not name.startswith("_")} == set().union(*drawn_layers())


def test_way_of_a_job_is_short() -> None:
    assert 0 < len(HOPS) <= MOST_HOPS


@pytest.mark.parametrize(("module", "name", "caller"), HOPS)
def test_each_step_is_there_and_called_by_the_module_named(module: str, name: str, caller: str) -> None:
    found = import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    assert callable(found)
    if caller:
        chain = imports().find_shortest_chain(importer=caller, imported=module)
        is_protocol = module == "holdfast.store.protocol"
        assert chain is not None
        assert is_protocol or len(chain) <= 4, chain
        assert name.rpartition(".")[2] in called_in(caller)


def test_top_of_the_package_and_its_files_stay_small() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= MOST_MODULES
    long = {
        str(path.relative_to(ROOT)): lines
        for path in PACKAGE.rglob("*.py")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > LONGEST
    }
    assert long == {}
