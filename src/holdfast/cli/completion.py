"""queuectl completion: shell scripts that ask queuectl itself for completions."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable

from holdfast.cli.command import Call, Command, Parser, argument

_SCRIPTS = {
    "bash": """\
_queuectl() {
    # Not COMP_WORDS: bash splits those at colons and equals signs, and completes only what comes after them.
    local line=${COMP_LINE:0:COMP_POINT} last done
    local -a words
    IFS=$' \\t' read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    last=${words[${#words[@]}-1]}
    done=${last%"${last##*[:=]}"}
    local IFS=$'\\n'
    COMPREPLY=($(queuectl __complete "${words[@]:1}" 2>/dev/null))
    COMPREPLY=("${COMPREPLY[@]#"$done"}")
}
complete -o default -F _queuectl queuectl
""",
    "zsh": """\
#compdef queuectl
_queuectl() {
    local -a found
    found=("${(@f)$(queuectl __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    [[ -n "$found" ]] && compadd -a found || _files
}
compdef _queuectl queuectl
""",
    "fish": """\
function __queuectl_complete
    set -l words (commandline -opc) (commandline -ct)
    queuectl __complete $words[2..] 2>/dev/null
end
complete -c queuectl -a '(__queuectl_complete)'
""",
}

_MOST = 50


@Command(
    'eval "$(queuectl completion bash)"    # in ~/.bashrc',
    'eval "$(queuectl completion zsh)"     # in ~/.zshrc, after compinit',
    "queuectl completion fish > ~/.config/fish/completions/queuectl.fish",
    arguments=(argument("shell", "your shell", choices=tuple(_SCRIPTS)),),
    prints_data=False,
)
def completion(call: Call) -> None:
    """Print a shell completion script for commands, options and ids."""
    sys.stdout.write(_SCRIPTS[call.arguments.shell])


def complete(words: list[str]) -> None:
    """Print the completions of the last word, one per line. Never fails: prints nothing instead."""
    *before, last = words or [""]
    try:
        found = sorted({word for word in _candidates(before, last) if word.startswith(last)})
    except Exception:
        found = []
    sys.stdout.write("".join(f"{word}\n" for word in found))


def _candidates(before: list[str], last: str) -> Iterable[str]:
    from holdfast.cli.main import COMMANDS, GROUPS, find_command, leading_options, load

    before, database = leading_options(before)
    if not before:
        return [*{name.split()[0] for name in COMMANDS}, "--database", "--help", "--version"]
    if before[0] in GROUPS and len(before) == 1:
        return [name.split()[1] for name in COMMANDS if name.startswith(f"{before[0]} ")]
    name, rest = find_command(before)
    parser = load(name).parser(name)
    if "--database" in rest[:-1]:
        database = rest[rest.index("--database") + 1]
    flag, equals, _ = last.partition("=")
    asked = flag if equals else rest[-1] if rest else ""
    option = next((a for a in _actions(parser) if asked in a.option_strings), None)
    if option is not None and option.nargs != 0:
        prefix = f"{flag}=" if equals else ""
        return [prefix + value for value in _values(option, database)]
    if last.startswith("-"):
        return [s for a in _actions(parser) if a.help != argparse.SUPPRESS for s in a.option_strings]
    positional = _positional(parser, rest)
    return [] if positional is None else _values(positional, database)


def _actions(parser: Parser) -> list[argparse.Action]:
    return parser._actions  # noqa: SLF001 -- argparse has no public list of them


def _positional(parser: Parser, words: list[str]) -> argparse.Action | None:
    """The argument that comes after these words, if there is one more."""
    positionals = [action for action in _actions(parser) if not action.option_strings]
    takes_value = {s for a in _actions(parser) if a.nargs != 0 for s in a.option_strings}
    given = 0
    for before, word in zip(["", *words], words, strict=False):
        if not word.startswith("-") and before not in takes_value:
            given += 1
    if given < len(positionals):
        return positionals[given]
    last = positionals[-1] if positionals else None
    return last if last is not None and last.nargs in ("+", "*") else None


def _values(action: argparse.Action, database: str | None) -> Iterable[str]:
    """What an option or an argument may be."""
    if action.choices is not None:
        return [str(choice) for choice in action.choices]
    if action.dest == "status":
        from holdfast.core.job import RETRYING, Status

        return [*Status, RETRYING]
    if action.dest == "key" and not action.option_strings:
        from holdfast.config import SETTINGS

        return SETTINGS
    if action.dest in ("type", "id", "ids", "workers"):
        return _known(action.dest, database)
    return []


def _known(what: str, database: str | None) -> Iterable[str]:
    """The types, workers or newest jobs of the queue, if there is one; completing must not create it."""
    from holdfast.queue import Queue

    with Queue(database, create=False) as queue:
        if what == "type":
            return list(queue.stats()["by_type"])
        return [found.id for found in (queue.workers() if what == "workers" else queue.jobs(limit=_MOST))]
