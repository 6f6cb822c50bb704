"""What mypy and pyright say about code that uses Holdfast: mistakes are errors, right calls are not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import typing
from collections.abc import Callable
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path

import pytest

import holdfast
from holdfast.config import SETTINGS, SettingName, find_setting, parse_setting
from holdfast.enqueueing.options import OPTIONS
from holdfast.errors import ConfigError
from holdfast.fluent import TaskType
from holdfast.handlers import options
from holdfast.queue import Queue
from holdfast.worker import following

TYPED = Path(__file__).parent / "typed"
RIGHT, WRONG = "right_calls.py", "wrong_calls.py"
SOURCE = Path(holdfast.__file__).parents[1]


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env={**os.environ, "MYPYPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout


def mypy(folder: Path) -> list[tuple[str, int, str]]:
    """The errors of mypy --strict: file, line and message."""
    command = "mypy --strict --no-error-summary --config-file= --cache-dir=.cache --no-pretty"
    said = run(folder, *command.split(), RIGHT, WRONG)
    return [
        (file, int(line), text)
        for file, line, text in re.findall(r"^(.+?):(\d+): error: (.*)$", said, re.MULTILINE)
    ]


def pyright(folder: Path) -> list[tuple[str, int, str]]:
    """The same for pyright, as strict as it can be."""
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(SOURCE)]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    said = json.loads(run(folder, "pyright", "--outputjson", f"--pythonpath={sys.executable}", RIGHT, WRONG))
    return [
        (Path(found["file"]).name, found["range"]["start"]["line"] + 1, found["message"])
        for found in said["generalDiagnostics"]
        if found["severity"] == "error"
    ]


@pytest.mark.process
@pytest.mark.skipif(find_spec("mypy") is None, reason="mypy and pyright are installed for one Python only")
@pytest.mark.parametrize("checker", [mypy, pyright], ids=lambda checker: checker.__name__)
def test_every_planted_mistake_is_an_error_and_no_right_call(
    tmp_path: Path, checker: Callable[[Path], list[tuple[str, int, str]]]
) -> None:
    for name in (RIGHT, WRONG):
        (tmp_path / name).write_text((TYPED / name).read_text(encoding="utf-8"), encoding="utf-8")
    found = {(file, line): message for file, line, message in checker(tmp_path)}
    lines = (TYPED / WRONG).read_text(encoding="utf-8").splitlines()
    planted = {(WRONG, n) for n, line in enumerate(lines, 1) if line.endswith("  # error")}
    assert len(planted) >= 50
    wrongly_refused = {place: found[place] for place in found.keys() - planted}
    assert wrongly_refused == {}
    wrongly_accepted = [lines[n - 1] for _, n in sorted(planted - found.keys())]
    assert wrongly_accepted == []


def test_options_of_a_job_are_those_that_are_parsed() -> None:
    assert typing.get_type_hints(options.EnqueueOptions).keys() == set(OPTIONS)
    one_of_a_kind = {"id", "key", "key_for"}  # what no two jobs have in common
    assert options.ManyOptions.__annotations__.keys() == set(OPTIONS) - one_of_a_kind


@pytest.mark.parametrize("function", [Queue.enqueue, TaskType.add], ids=["enqueue", "tq.add"])
def test_docstring_lists_every_option_of_a_job(function: Callable[..., object]) -> None:
    assert f"Options: {', '.join(OPTIONS)}." in (function.__doc__ or "")


def test_options_of_a_worker_are_those_that_it_takes() -> None:
    assert typing.get_type_hints(options.WorkerOptions) == typing.get_type_hints(following.Options)


def test_names_of_settings_are_those_of_the_table() -> None:
    assert typing.get_args(SettingName) == tuple(SETTINGS)


def test_defaults_of_a_queue_are_all_settings() -> None:
    assert typing.get_type_hints(options.Defaults).keys() == set(SETTINGS)


def test_options_of_a_handler_are_settings_of_a_type() -> None:
    assert all(find_setting(name).per_type for name in typing.get_type_hints(options.HandlerOptions))


@pytest.mark.parametrize(
    "given", [options.HandlerOptions, options.Defaults], ids=lambda given: given.__name__
)
def test_settings_given_in_code_are_typed_with_the_values_that_they_take(given: type) -> None:
    for name, hint in typing.get_type_hints(given).items():
        allowed = typing.get_args(hint)
        setting = find_setting(name)
        assert _takes(name, None) == (type(None) in allowed), name
        assert _takes(name, timedelta(minutes=5)) == _takes(name, "5m") == (timedelta in allowed), name
        if typing.get_origin(hint) is typing.Literal:
            assert all(word in setting.allowed and _takes(name, word) for word in allowed)


def _takes(name: str, value: object) -> bool:
    try:
        parse_setting(name, value)
    except ConfigError:
        return False
    return True
