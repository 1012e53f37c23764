"""Completions for zsh."""

from __future__ import annotations

from cputrain.launch.completions.table import Row, every_row

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.launch.options import Option

HEAD = """\
#compdef cputrain
# Completions of cputrain for zsh. To use them in this shell: source <(cputrain completions zsh)

_cputrain() {
    local -a verbs
    verbs=(
@VERBS@
    )
    if ((CURRENT == 2)); then
        _describe command verbs
        return
    fi
    local verb=$words[2]
    shift words
    ((CURRENT -= 1))
    case $verb in
"""

TAIL = """\
    esac
}

if [[ $funcstack[1] == _cputrain ]]; then
    _cputrain "$@"
else
    compdef _cputrain cputrain
fi
"""


def script() -> str:
    """Return the completion script."""
    rows = every_row()
    verbs = "\n".join(f"        {_quoted(f'{row.name}:{_plain(row.summary)}')}" for row in rows)
    return HEAD.replace("@VERBS@", verbs) + "".join(map(_case, rows)) + TAIL


def _case(row: Row) -> str:
    lines = [f"        {row.name})", "            _arguments -A '-*' \\"]
    lines += [f"                {_option(option)} \\" for option in row.options]
    alternatives = []
    if row.words:
        alternatives.append(f"words:word:({' '.join(row.words)})")
    if row.files:
        alternatives.append(f'files:file:_files -g "{row.files}(-.)"')
        alternatives.append("folders:folder:_files -/")
    if alternatives:
        action = f"_alternative {' '.join(map(_quoted, alternatives))}"
        lines += [
            f"                {_quoted(f'1: :{{{action}}}')} \\",
            "                '*: :_files'",
        ]
    else:
        lines[-1] = lines[-1].removesuffix(" \\")
    return "\n".join([*lines, "            ;;", ""])


def _option(option: Option) -> str:
    """Return an option's specification for _arguments."""
    text = f"[{_plain(option.help)}]"
    if option.takes:
        action = f"({' '.join(option.words)})" if option.words else "_files"
        text += f":{_plain(option.takes)}:{action}"
    specifications = [
        f"{name}{'=' if option.takes and len(name) > 2 else ''}{text}" for name in option.names
    ]
    return " ".join(map(_quoted, specifications))


def _plain(text: str) -> str:
    """Return a text without the characters that zsh reads in a specification."""
    text = text.replace("[", "(").replace("]", ")").replace(":", ",")
    return text.replace("\\", "").replace("`", "").replace("$", "")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
