"""Completions for bash."""

from __future__ import annotations

from cputrain.launch.completions.table import Row, every_row

HEAD = """\
# Completions of cputrain for bash. To use them in this shell: source <(cputrain completions bash)

_cputrain() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}
    local verb=${COMP_WORDS[1]} options="" with_values="" values="" words="" files=""
    # bash divides --option=value into three words
    if [[ $cur == "=" ]]; then
        cur=""
    elif [[ $prev == "=" ]]; then
        prev=${COMP_WORDS[COMP_CWORD-2]}
    fi
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W "@VERBS@" -- "$cur"))
        return
    fi
    case $verb in
"""

ROW = """\
        @NAME@)
            options="@OPTIONS@"
            with_values=" @WITH_VALUES@ "
            words="@WORDS@"
            files="@FILES@"
            case $prev in
@CASES@
            esac
            ;;
"""

TAIL = """\
        *) return ;;
    esac
    # behind the script's name, words are the script's
    local index=2 word
    while ((index < COMP_CWORD)); do
        word=${COMP_WORDS[index]}
        if [[ $word == "=" ]]; then
            ((index += 1))
        elif [[ $with_values == *" $word "* ]]; then
            ((index += 1))
            if [[ ${COMP_WORDS[index]} == "=" ]]; then ((index += 1)); fi
        elif [[ $word != -* || $word == -- ]]; then
            return
        fi
        ((index += 1))
    done
    if [[ $with_values == *" $prev "* ]]; then
        COMPREPLY=($(compgen -W "$values" -- "$cur"))
    elif [[ $cur == -* ]]; then
        COMPREPLY=($(compgen -W "$options" -- "$cur"))
    else
        compopt -o filenames 2>/dev/null
        COMPREPLY=($(compgen -W "$words" -- "$cur"))
        if [[ -n $files ]]; then
            local IFS=$'\\n'
            COMPREPLY+=($(compgen -f -X "!$files" -- "$cur") $(compgen -d -- "$cur"))
        fi
    fi
}

complete -o bashdefault -o default -F _cputrain cputrain
"""


def script() -> str:
    """Return the completion script."""
    rows = every_row()
    verbs = " ".join(row.name for row in rows)
    return HEAD.replace("@VERBS@", verbs) + "".join(map(_case, rows)) + TAIL


def _case(row: Row) -> str:
    cases = [
        f'                {"|".join(option.names)}) values="{" ".join(option.words)}" ;;'
        for option in row.options
        if option.words
    ]
    return (
        ROW.replace("@NAME@", row.name)
        .replace("@OPTIONS@", " ".join(name for option in row.options for name in option.names))
        .replace(
            "@WITH_VALUES@",
            " ".join(name for option in row.options if option.takes for name in option.names),
        )
        .replace("@WORDS@", " ".join(row.words))
        .replace("@FILES@", row.files)
        .replace("@CASES@", "\n".join(cases) or "                *) ;;")
    )
