"""What bash is told to do for one command of a shell: take up the state, run the command, leave the state behind.

Each command has a process of its own, so its status is the kernel's word and nothing that it prints can stand for its
end. What makes one shell of them is a file in which a command leaves its folder, variables, functions, aliases and
options, as bash's own builtins print them, and which the next one reads. Only these shells ever read it.

Not kept: traps (one on EXIT runs at the end of its command), open descriptors, jobs, positional parameters, and
the options errexit and noexec, under which a later command would end without a word, nor xtrace and verbose.
"""

from __future__ import annotations

import shlex

COMMAND_FD = 3
"""Where bash finds the command."""

# In braces, so that all of it is parsed before a command can define an alias. Builtins by name: functions that a
# command defines cannot take their place, but for a function `builtin`, which spoils its own shell only.
_SCRIPT = """{{
builtin shopt -s expand_aliases
builtin source {state} >/dev/null 2>&1
IFS= builtin read -r -d '' -u {fd} REPLY
builtin exec {fd}<&-
builtin eval "$REPLY"
{{
  builtin set -- "$?"; builtin set +xv; builtin trap - DEBUG ERR RETURN
  builtin shopt -p; builtin declare -p; builtin declare -f; builtin declare -Fx; builtin alias -p
  builtin umask -p; builtin set +o; builtin printf 'builtin cd -- %q\\nset +env\\n' "${{PWD-.}}"
}} 2>/dev/null >| {new} && builtin : >| {kept}
builtin exit "$1"
}}"""


def script(state: str, new: str, kept: str) -> str:
    """The text for `bash -c`. state: the file to take up. new: the one to leave. kept: made once that is complete."""
    quoted = {name: shlex.quote(path) for name, path in
              (("state", state), ("new", new), ("kept", kept))}  # fmt: skip
    return _SCRIPT.format(fd=COMMAND_FD, **quoted)
