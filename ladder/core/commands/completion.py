"""Completion in a shell, by shtab: commands, flags, ops, and the rungs of the op that is typed."""

import argparse
from typing import Any

from ladder.core.contract.ladder import ladders

# Bash and zsh hold the words of the line in COMP_WORDS and in words.
_RUNGS = """
_kernel_ladder_rungs() {{
  local word ids=
  for word in "${{COMP_WORDS[@]}}" "${{words[@]}}"; do case "$word" in {cases} esac; done
  {reply}
}}"""
_REPLY = {  # the ids, and .cu files
    "bash": """compgen -W "$ids" -- "$1"; compgen -f -X '!*.cu' -- "$1" """,
    "zsh": "compadd -- ${=ids}; _files -g '*.cu'",
}


class PrintCompletion(argparse.Action):
    """Prints what a shell reads to complete `kernel-ladder`, and ends the program."""

    def __call__(self, parser: argparse.ArgumentParser, _: Any, shell: Any, *__: Any) -> None:
        import shtab  # only here: it is an extra

        cases = "\n".join(
            f'{name}) ids="{" ".join(rung.id for rung in ladder.rungs)}" ;;'
            for name, ladder in ladders().items()
        )
        rungs: dict[str, Any] = dict.fromkeys(_REPLY, "_kernel_ladder_rungs")
        rungs["preamble"] = {s: _RUNGS.format(cases=cases, reply=r) for s, r in _REPLY.items()}
        (commands,) = (a.choices for a in parser._actions if a.dest == "command")
        for command in dict(commands or {}).values():
            for action in command._actions:
                if action.dest == "op":
                    action.choices = list(ladders())
                elif action.dest in ("rung", "other"):
                    action.complete = rungs
                elif action.dest in ("file", "files", "output", "picture", "timeline", "save"):
                    action.complete = shtab.FILE
        parser.prog = "kernel-ladder"
        print(shtab.complete(parser, shell))
        parser.exit()
