# SPDX-License-Identifier: Apache-2.0
"""`ustreamer completion bash | zsh | man`: a completion script, or a manual page. The parser in, text out.

The libraries for this, shtab and argparse-manpage, would be two packages on each gateway for these functions.
"""

import argparse
from collections.abc import Iterator

from ustreamer import __version__

_BASH = """\
# Completion of ustreamer for bash: source it, or copy it to /usr/share/bash-completion/completions/ustreamer.
_ustreamer() {{
    local path= word choices= typed="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}"
    if [ "$typed" = = ]; then
        typed=
    elif [ "$before" = = ]; then
        before="${{COMP_WORDS[COMP_CWORD-2]}}"
    fi
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "$path $word" in
            {paths}) path="$path $word" ;;
        esac
    done
    case "$path $before" in
{values}
        *)
            case "$path" in
{cases}
            esac ;;
    esac
    COMPREPLY=($(compgen -W "$choices" -- "$typed"))
}}
complete -o default -F _ustreamer ustreamer
"""

_ZSH = """\
#compdef ustreamer
# Completion of ustreamer for zsh: copy it as _ustreamer to a directory of $fpath, or source it after compinit.
_ustreamer() {{
    local spot= word choices= before="${{words[CURRENT-1]}}"
    if [[ "${{words[CURRENT]}}" == --*=* ]]; then
        before="${{words[CURRENT]%%=*}}"
        compset -P '*='
    fi
    for word in "${{(@)words[2,CURRENT-1]}}"; do
        case "$spot $word" in
            {paths}) spot="$spot $word" ;;
        esac
    done
    case "$spot $before" in
{values}
        *)
            case "$spot" in
{cases}
            esac ;;
    esac
    compadd -- ${{=choices}}
    _files
}}
if [ "$funcstack[1]" = "_ustreamer" ]; then
    _ustreamer "$@"
else
    compdef _ustreamer ustreamer
fi
"""
"""`path` is a special variable of zsh, so it is `spot` here."""


def add_completion_command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
) -> None:
    about = "print a script for completion, or a manual page"
    parser = commands.add_parser("completion", help=about, description=about)
    parser.add_argument(
        "form", choices=("bash", "zsh", "man"), help="a script for bash or zsh, or a manual page"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ustreamer.host.cli.main import parser

    print({"bash": bash_script, "zsh": zsh_script, "man": manual_page}[arguments.form](parser()), end="")
    return 0


def parsers_below(
    parser: argparse.ArgumentParser, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """Each command of `parser` with the words that lead to it, itself first."""
    yield path, parser
    for name, command in _commands_of(parser).items():
        yield from parsers_below(command, (*path, name))


def _commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way to list them
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            return dict(action.choices)
    return {}


def _words_of(parser: argparse.ArgumentParser) -> Iterator[str]:
    """The words that may follow: commands, options, and the choices of arguments without an option."""
    yield from _commands_of(parser)
    for action in parser._actions:  # noqa: SLF001
        yield from (each for each in action.option_strings if each.startswith("--"))
        if not action.option_strings and action.choices and not isinstance(action.choices, dict):
            yield from map(str, action.choices)


def _values_of(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """Each option that has a value, with its choices; "" for any value."""
    for action in parser._actions:  # noqa: SLF001
        if action.nargs != 0:
            for option in action.option_strings:
                yield option, " ".join(map(str, action.choices or ()))


def bash_script(parser: argparse.ArgumentParser) -> str:
    """Completes commands, options, and choices of arguments and options; everything else as file names."""
    return _script(_BASH, parser)


def zsh_script(parser: argparse.ArgumentParser) -> str:
    """As `bash_script`, for zsh."""
    return _script(_ZSH, parser)


def _script(template: str, parser: argparse.ArgumentParser) -> str:
    found = list(parsers_below(parser))
    paths = "|".join(f'" {" ".join(path)}"' for path, _ in found if path)
    spots = [("".join(f" {word}" for word in path), each) for path, each in found]
    cases = [f'                "{spot}") choices="{" ".join(_words_of(each))}" ;;' for spot, each in spots]
    values = [
        f'        "{spot} {option}") choices="{choices}" ;;'
        for spot, each in spots
        for option, choices in _values_of(each)
    ]
    return template.format(paths=paths, values="\n".join(values), cases="\n".join(cases))


def manual_page(parser: argparse.ArgumentParser) -> str:
    """The help of every command, as roff for man(1)."""
    lines = [
        f'.TH USTREAMER 1 "" "uStreamer {__version__}" "User Commands"',
        ".SH NAME",
        r"ustreamer \- uProtocol dispatcher of a vehicle gateway",
    ]
    for path, each in parsers_below(parser):
        lines += [f".SH {' '.join(('ustreamer', *path)).upper()}", ".nf", _roff(each.format_help()), ".fi"]
    return "\n".join(lines) + "\n"


def _roff(text: str) -> str:
    r"""Plain text as roff: a backslash, a hyphen and a dot at the beginning of a line have another meaning there."""
    escaped = text.rstrip().replace("\\", r"\e").replace("-", r"\-")
    return "\n".join(rf"\&{line}" if line.startswith((".", "'")) else line for line in escaped.split("\n"))
