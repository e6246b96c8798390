"""Completion of commands, actions, flags, groups, options and keys.

Owns the scripts of three shells; they all ask `dvi _complete`, which imports next to nothing.
"""

from __future__ import annotations

from dvi.cli.args import UsageError, Words, take_action
from dvi.cli.help import group_options
from dvi.cli.table import BY_NAME, COMMANDS, Command
from dvi.config.home import models_dir
from dvi.config.schema import groups, leaves

# COMP_WORDS splits at `=` and `:`; the line itself does not, and what the shell already has of
# the word up to the last `=` or `:` must not come back.
_BASH = """\
_dvi() {
    local line="${COMP_LINE:0:COMP_POINT}" words cur shown
    read -ra words <<< "$line"
    cur=""
    [[ "$line" == *[![:space:]] ]] && { cur="${words[-1]}"; unset 'words[-1]'; }
    mapfile -t COMPREPLY < <(dvi _complete "${words[@]:1}" "$cur" 2>/dev/null)
    shown=""
    [[ "$COMP_WORDBREAKS" == *=* && "$cur" == *=* ]] && shown="${cur%=*}="
    COMPREPLY=("${COMPREPLY[@]#"$shown"}")
    [[ ${#COMPREPLY[@]} -eq 1 && "${COMPREPLY[0]}" == *[=.] ]] && compopt -o nospace
}
complete -o default -F _dvi dvi
"""
_ZSH = """\
#compdef dvi
_dvi() {
    local -a found
    found=("${(@f)$(dvi _complete "${(@)words[2,CURRENT-1]}" "${words[CURRENT]}" 2>/dev/null)}")
    compadd -Q -S '' -- "${found[@]}"
}
compdef _dvi dvi
"""
_FISH = """\
complete -c dvi -f -a '(dvi _complete (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
"""
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def _fetched_models() -> list[str]:
    folder = models_dir()
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def _values(key: str) -> list[str]:
    """Right-hand sides of `key=`."""
    if key in (*groups(), "experiment"):
        return group_options(key)
    if key == "model.path":
        return _fetched_models()
    for leaf in leaves():
        if leaf.key == key:
            return ["true", "false"] if leaf.kind is bool else list(leaf.choices)
    return []


def _keys(command: Command) -> list[str]:
    presets = [group for group in command.sections if group in groups()]
    keys = [leaf.key for leaf in leaves() if leaf.key.split(".")[0] in command.sections]
    words = [f"{name}=" for name in (*presets, *keys)]
    return [*words, "+experiment="] if command.is_app else words


def candidates(words: list[str]) -> list[str]:
    """What may stand in place of the last word, given the words before it."""
    if not words:
        return [command.name for command in COMMANDS]
    *before, current = words
    if not before:
        names = [command.name for command in COMMANDS] + ["--help", "--version"]
        return [name for name in names if name.startswith(current)]
    command = BY_NAME.get(before[0])
    if command is None:
        return []
    sign = "+" if current.startswith("+") else ""
    key, equals, _ = current.removeprefix("+").partition("=")
    if equals:
        found = [f"{sign}{key}={value}" for value in _values(key)]
    elif current.startswith("-"):
        found = list(command.all_flags)
    elif command.actions and len(before) == 1:
        found = list(command.actions)
    elif before[-1:] == ["fetch"]:
        found = ["smollm2-135m"]
    else:
        found = _keys(command)
    return [word for word in found if word.startswith(current)]


def print_candidates(words: list[str]) -> int:
    """Answer a completion script: one candidate a line."""
    for word in candidates(words):
        print(word)
    return 0


def run(words: Words, command: Command) -> int:
    """Print the script of one shell."""
    shell = take_action(words, command)
    if words.bare or words.overrides:
        raise UsageError(f"usage: {command.usage}")
    print(SCRIPTS[shell], end="")
    return 0
