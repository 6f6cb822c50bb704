"""queuectl's help and exit codes: every command explains itself, and every example in its help is one."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from holdfast import __version__
from holdfast.cli.main import COMMANDS, GROUPS, find_command, load
from tests.surfaces.support import QUEUECTL, Cli, environment, queuectl

CONTRACT = [
    "enqueue",
    "worker start",
    "worker stop",
    "worker list",
    "status",
    "list",
    "show",
    "logs",
    "why",
    "retry",
    "cancel",
    "delete",
    "dlq list",
    "dlq retry",
    "dlq purge",
    "cleanup",
    "pause",
    "resume",
    "rate-limit",
    "config list",
    "config get",
    "config set",
    "config unset",
    "report",
    "reconcile",
    "migrate",
    "backup",
    "move",
    "doctor",
    "completion",
]

FLAGS = {
    "enqueue": "--command --id --priority --max-attempts --timeout --delay --run-at --key --key-for --lane "
    "--type --payload --file --chunk --cwd --env",
    "worker start": "--count --concurrency --app --types --detach --drain --no-reconcile --log-format "
    "--log-level",
    "worker stop": "--timeout --force --all-hosts",
    "status": "--watch",
    "list": "--status --state --type --error --search --since --until --sort --reverse --limit --offset "
    "--cursor --full",
    "dlq list": "--type --error --search --since --until --sort --reverse --limit --offset --cursor --full",
    "logs": "--follow",
    "retry": "--payload",
    "reconcile": "--app --type",
    "doctor": "--app",
    "dlq retry": "--all --type --error --search --since --until",
    "dlq purge": "--older-than",
    "cleanup": "--older-than",
    "pause": "--type",
    "resume": "--type",
    "rate-limit": "--type",
    "config set": "--type",
    "config unset": "--type",
    "move": "--to --timeout",
}

WITHOUT_DATA = ("worker start", "worker stop", "completion", "serve")


def example_lines(name: str) -> list[str]:
    """The examples at the end of a command's help."""
    text = load(name).parser(name).format_help()
    _, found, rest = text.partition("\nexamples:\n")
    assert found, f"{name} has no examples"
    return [line.strip() for line in rest.splitlines() if line.strip()]


def words_of(example: str) -> list[str]:
    """The words after queuectl in an example, with a shell's comments and redirections taken off."""
    inner = re.search(r"\$\((queuectl [^)]*)\)", example)
    words = shlex.split(inner[1] if inner else example, comments=True)
    if ">" in words:
        words = words[: words.index(">")]
    if "|" in words:
        words = words[words.index("queuectl") :]
    assert words[0] == "queuectl", example
    return words[1:]


def test_every_command_of_the_contract_is_there() -> None:
    assert set(CONTRACT) <= set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_every_command_says_what_it_does_with_an_example(bare_cli: Cli, name: str) -> None:
    ran = bare_cli(*name.split(), "--help")
    assert (ran.code, ran.err) == (0, "")
    assert bare_cli(*name.split(), "-h").out == ran.out
    assert ran.lines[0].startswith(f"usage: queuectl {name}")
    assert load(name).summary in " ".join(ran.out.split())
    assert load(name).summary.endswith(".")
    assert "\nexamples:\n" in ran.out
    assert f"queuectl {name}" in ran.out.partition("\nexamples:\n")[2].replace(
        "--database sqlite:///app.db ", ""
    )
    assert "--database" in ran.out
    assert max(len(line) for line in ran.out.partition("\nexamples:\n")[0].splitlines()) <= 80
    if name not in WITHOUT_DATA:
        assert "--json" in ran.out
    for flag in FLAGS.get(name, "").split():
        assert re.search(rf"{flag}\b", ran.out), flag


def test_every_flag_of_the_contract_belongs_to_a_command() -> None:
    assert FLAGS.keys() <= COMMANDS.keys()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_example_parses_as_its_command(name: str) -> None:
    for example in example_lines(name):
        words = words_of(example)
        if words[0] == "--database":
            words = words[2:]
        found, rest = find_command(words)
        assert found == name, example
        load(found).parser(found).parse_intermixed_args(rest)


def test_examples_of_enqueue_really_enqueue(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.jsonl").write_text('{"command": "true"}\n')
    for example in example_lines("enqueue"):
        ran = cli(*words_of(example))
        assert (ran.code, ran.err, len(ran.lines)) == (0, "", 1), (example, ran)


@pytest.mark.parametrize("word", ["--help", "-h", "help"])
def test_overview_names_every_command(cli: Cli, word: str) -> None:
    ran = cli(word)
    assert (ran.code, ran.err) == (0, "")
    for name in COMMANDS:
        assert re.search(rf"^  {name} +\w", ran.out, re.MULTILINE)
        assert load(name).summary in " ".join(ran.out.split())
    assert max(len(line) for line in ran.lines) <= 80


@pytest.mark.parametrize("group", GROUPS)
def test_help_of_a_group_names_its_commands(cli: Cli, group: str) -> None:
    ran = cli(group, "--help")
    assert ran.code == 0
    names = [name for name in COMMANDS if name.startswith(f"{group} ")]
    for name in names:
        assert name in ran.out
    assert cli("help", group).out == ran.out


def test_help_command_shows_the_help_of_a_command(cli: Cli) -> None:
    for words in (("list",), ("config", "set")):
        ran = cli("help", *words)
        assert (ran.code, ran.out) == (0, cli(*words, "--help").out)


def test_no_command_is_wrong_usage(cli: Cli) -> None:
    for words in ((), ("worker",), ("dlq",), ("config",)):
        ran = cli(*words)
        assert ran.code == 2
        assert "usage: queuectl" in ran.out + ran.err


def test_version_is_printed(cli: Cli) -> None:
    ran = cli("--version")
    assert (ran.code, ran.out, ran.err) == (0, f"queuectl {__version__}\n", "")


# Exit codes.


@pytest.mark.parametrize(
    "words",
    [
        ("nope",),
        ("dlq", "nope"),
        ("config", "nope"),
        ("list", "--nope"),
        ("list", "extra"),
        ("show", "a", "b"),
        ("enqueue", "--priority", "high"),
        ("enqueue", "--id"),
        ("completion", "tcsh"),
        ("rate-limit",),
        ("config", "set", "max_attempts"),
        ("--nope",),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_2_with_one_line_on_stderr(cli: Cli, words: tuple[str, ...]) -> None:
    ran = cli(*words)
    assert (ran.code, ran.out, len(ran.errors)) == (2, "", 1), ran
    assert ran.err.startswith("queuectl: ")


def test_wrong_usage_of_a_command_says_where_help_is(cli: Cli) -> None:
    assert "queuectl list --help" in cli("list", "--nope").err


@pytest.mark.parametrize(
    ("given", "meant"), [("enque", "enqueue"), ("lst", "list"), ("dlq retyr", "dlq retry")]
)
def test_misspelt_command_is_told_what_was_meant(cli: Cli, given: str, meant: str) -> None:
    assert f"did you mean {meant}?" in cli(*given.split()).err


def test_abbreviated_flag_is_not_guessed(cli: Cli) -> None:
    assert cli("enqueue", "--comm", "true").code == 2


@pytest.mark.process
def test_exit_codes_of_the_real_program(home: Path, empty_queue: None) -> None:
    assert queuectl(home, "list").code == 0
    failed = queuectl(home, "show", "nope")
    assert (failed.code, failed.out, len(failed.errors)) == (1, "", 1)
    wrong = queuectl(home, "list", "--nope")
    assert (wrong.code, wrong.out, len(wrong.errors)) == (2, "", 1)
    assert queuectl(home).code == 2


@pytest.mark.process
def test_reader_that_leaves_early_is_no_error(home: Path, tmp_path: Path) -> None:
    lines = tmp_path / "jobs.jsonl"
    lines.write_text('{"command": "true"}\n' * 3000)
    assert queuectl(home, "enqueue", "--file", str(lines)).code == 0
    words = f"{shlex.join(QUEUECTL)} list --limit 3000; echo code $? >&2"
    done = subprocess.run(
        ["/bin/sh", "-c", f"({words}) | head -n 1"],
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert (len(done.stdout.splitlines()), done.stderr) == (1, "code 0\n")
