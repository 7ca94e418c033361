"""Slurm's answers from a table: a `run_command` for tests of those who ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hpcsched.errors import CommandError

Answer = str | CommandError | Callable[[tuple[str, ...]], str]


@dataclass
class SlurmSays:
    """Answers the first entry whose words are all in the command line, in order of the table; records what was asked."""

    table: dict[str, Answer]
    asked: list[tuple[tuple[str, ...], dict[str, str]]] = field(default_factory=list)

    def __call__(self, argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str]) -> str:
        command = tuple(argv)
        self.asked.append((command, dict(env)))
        for words, answer in self.table.items():
            if all(word in command for word in words.split()):
                if isinstance(answer, CommandError):
                    raise answer
                return answer if isinstance(answer, str) else answer(command)
        raise CommandError(command, 127, "", f"{command[0]}: No such file or directory")

    def argvs(self, program: str) -> list[tuple[str, ...]]:
        return [argv for argv, _ in self.asked if argv[0] == program]
