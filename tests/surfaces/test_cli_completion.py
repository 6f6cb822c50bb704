"""queuectl completion: what a shell offers after a Tab, asked in a real bash."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast import Queue
from holdfast.cli.main import COMMANDS
from holdfast.config import SETTINGS
from tests.surfaces.support import QUEUECTL, Cli, Terminal, environment, plain

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")


@pytest.fixture
def shell_environment(home: Path, tmp_path: Path) -> dict[str, str]:
    """The environment of a shell that finds queuectl by its name."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "queuectl"
    script.write_text(f'#!/bin/sh\nexec {shlex.join(QUEUECTL)} "$@"\n')
    script.chmod(0o755)
    made = environment(home)
    return {**made, "PATH": f"{folder}{os.pathsep}{made['PATH']}"}


def offered(cli: Cli, *words: str) -> list[str]:
    """What the program itself offers for the last of the words."""
    ran = cli("__complete", *words)
    assert (ran.code, ran.err) == (0, "")
    return ran.lines


def in_bash(env: dict[str, str], *words: str) -> list[str]:
    """What bash offers, as its readline would ask; the words are those that readline splits a line into."""
    line = shlex.join(["queuectl", *words[:-1]]) + " " + words[-1]
    script = f"""
        eval "$(queuectl completion bash)"
        COMP_WORDS=({shlex.join(["queuectl", *words])}) COMP_CWORD={len(words)}
        COMP_LINE={shlex.quote(line)} COMP_POINT={len(line)}
        _queuectl
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", script], env=env, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""
    return [line for line in done.stdout.splitlines() if line]


# What is offered.


def test_commands_are_offered(cli: Cli) -> None:
    assert set(offered(cli, "")) >= {name.split()[0] for name in COMMANDS}
    assert offered(cli, "en") == ["enqueue"]
    assert offered(cli, "re") == sorted({n.split()[0] for n in COMMANDS if n.startswith("re")})


@pytest.mark.parametrize("group", ["worker", "dlq", "config"])
def test_commands_of_a_group_are_offered(cli: Cli, group: str) -> None:
    names = [name.split()[1] for name in COMMANDS if name.startswith(f"{group} ")]
    assert offered(cli, group, "") == sorted(names)


def test_options_are_offered(cli: Cli) -> None:
    assert offered(cli, "list", "--") == [
        "--cursor",
        "--database",
        "--error",
        "--full",
        "--group",
        "--help",
        "--json",
        "--limit",
        "--offset",
        "--parent",
        "--parent-id",
        "--reveal",
        "--reverse",
        "--search",
        "--since",
        "--sort",
        "--state",
        "--status",
        "--type",
        "--until",
    ]
    assert offered(cli, "enqueue", "--command", "x", "--pr") == ["--priority"]


def test_states_are_offered(cli: Cli) -> None:
    assert set(offered(cli, "list", "--status", "")) >= {"pending", "failed", "retrying"}
    assert offered(cli, "list", "--state", "comp") == ["completed"]


def test_orders_are_offered(cli: Cli) -> None:
    assert offered(cli, "list", "--sort", "") == ["created", "finished", "priority"]
    assert offered(cli, "dlq", "list", "--sort=f") == ["--sort=finished"]
    assert offered(cli, "list", "--sort", "priority", "--reve") == ["--reveal", "--reverse"]


@pytest.mark.parametrize("option", ["--error", "--search", "--since", "--until"])
def test_nothing_is_offered_where_any_text_may_stand(cli: Cli, queue: Queue, option: str) -> None:
    queue.enqueue("ok", {}, id="job1")
    assert offered(cli, "list", option, "") == []


def test_settings_are_offered(cli: Cli) -> None:
    assert offered(cli, "config", "get", "") == sorted(SETTINGS)
    assert offered(cli, "config", "set", "backoff_b") == ["backoff_base"]


def test_a_setting_is_offered_once(cli: Cli) -> None:
    assert offered(cli, "config", "set", "backoff_base", "") == []


def test_one_id_is_offered_to_a_command_that_takes_one(cli: Cli, queue: Queue) -> None:
    queue.enqueue("t", {}, id="job1")
    assert offered(cli, "show", "job1", "") == []
    assert offered(cli, "show", "--json", "") == ["job1"]


def test_shells_are_offered(cli: Cli) -> None:
    assert offered(cli, "completion", "") == ["bash", "fish", "zsh"]


def test_ids_are_offered(cli: Cli, queue: Queue) -> None:
    for name in ("job1", "job2", "other"):
        queue.enqueue("t", {}, id=name)
    for command in (["show"], ["why"], ["logs"], ["retry"], ["cancel"], ["delete"], ["dlq", "retry"]):
        assert offered(cli, *command, "jo") == ["job1", "job2"], command
    assert offered(cli, "cancel", "job1", "o") == ["other"]


def test_types_are_offered(cli: Cli, queue: Queue) -> None:
    queue.enqueue("crawl", {})
    queue.enqueue("shell:media", {"command": "true"})
    assert offered(cli, "list", "--type", "") == ["crawl", "shell:media"]
    assert offered(cli, "pause", "--type", "sh") == ["shell:media"]
    assert offered(cli, "reconcile", "--type", "c") == ["crawl"]


@pytest.mark.parametrize("place", ["before the command", "after the command"])
def test_ids_come_from_the_database_that_is_named(cli: Cli, tmp_path: Path, place: str) -> None:
    url = f"sqlite:///{tmp_path / 'other.db'}"
    with Queue(url) as other:
        other.enqueue("t", {}, id="elsewhere")
    words = ["--database", url, "show", ""] if "before" in place else ["show", "--database", url, ""]
    assert offered(cli, *words) == ["elsewhere"]


def test_commands_are_offered_after_a_leading_database(cli: Cli, url: str) -> None:
    assert offered(cli, "--database", url, "enq") == ["enqueue"]
    assert offered(cli, f"--database={url}", "dlq", "pu") == ["purge"]


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("nope", ""),
        ("list", "nope"),
        ("dlq", "nope", ""),
        ("show", "--database", "nonsense", ""),
        ("--database", ""),
    ],
    ids=" ".join,
)
def test_nothing_to_offer_is_no_error(cli: Cli, words: tuple[str, ...]) -> None:
    ran = cli("__complete", *words)
    assert (ran.code, ran.err) == (0, "")


def test_completion_makes_no_database(bare_cli: Cli, home: Path) -> None:
    assert offered(bare_cli, "show", "") == []
    assert offered(bare_cli, "list", "--type", "") == []
    assert list(home.iterdir()) == []


# In bash.


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_name_the_program(cli: Cli, shell: str) -> None:
    ran = cli("completion", shell)
    assert (ran.code, ran.err) == (0, "")
    assert "queuectl __complete" in ran.out


@pytest.mark.process
@pytest.mark.parametrize("shell", [shell for shell in ("bash", "zsh", "fish") if shutil.which(shell)])
def test_scripts_are_valid(cli: Cli, shell: str) -> None:
    script = cli("completion", shell).out
    done = subprocess.run(
        [shell, "-n"], input=script, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.process
@needs_bash
def test_bash_completes_commands_options_and_values(shell_environment: dict[str, str], queue: Queue) -> None:
    queue.enqueue("crawl", {}, id="job1")
    env = shell_environment
    assert in_bash(env, "enq") == ["enqueue"]
    assert in_bash(env, "dlq", "") == ["list", "purge", "retry"]
    assert in_bash(env, "list", "--li") == ["--limit"]
    assert in_bash(env, "list", "--status", "f") == ["failed"]
    assert in_bash(env, "show", "") == ["job1"]


@pytest.mark.process
@needs_bash
def test_bash_completes_in_the_middle_of_a_line(shell_environment: dict[str, str]) -> None:
    script = """
        eval "$(queuectl completion bash)"
        COMP_WORDS=(queuectl enq --command x) COMP_CWORD=1 COMP_LINE="queuectl enq --command x" COMP_POINT=12
        _queuectl
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        env=shell_environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("enqueue\n", "")


@pytest.mark.process
@needs_bash
@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("queuectl enq\t", "queuectl enqueue "),
        ("queuectl show jo\t", "queuectl show job1 "),
        ("queuectl show thumbs:4\t", "queuectl show thumbs:42 "),
        ("queuectl list --type shell:\t", "queuectl list --type shell:media "),
        ("queuectl list --status fai\t", "queuectl list --status failed "),
        ("queuectl list --status=fai\t", "queuectl list --status=failed "),
    ],
    ids=lambda text: text.strip(),
)
def test_tab_completes_in_an_interactive_bash(
    shell_environment: dict[str, str], queue: Queue, tmp_path: Path, typed: str, completed: str
) -> None:
    queue.enqueue("ok", {}, id="job1")
    queue.enqueue("shell:media", {"command": "true"}, id="thumbs:42")
    setup = tmp_path / "bashrc"
    # Escapes would stand between what is typed and what is completed.
    setup.write_text(
        'bind "set enable-bracketed-paste off"\neval "$(queuectl completion bash)"\nPS1="ready> "\n'
    )
    bash = Terminal(["bash", "--rcfile", str(setup), "-i"], {**shell_environment, "TERM": "dumb"}, 120, 24)
    try:
        bash.read_until("ready> ")
        bash.type(typed)
        shown = plain(bash.read_until(completed))
        assert completed in shown.partition("ready> ")[2]
    finally:
        bash.close()
