"""Commands and code in several processes, as `torchrun` starts them."""

from __future__ import annotations

import socket
import textwrap
from typing import Sequence

from processes import Command, Done


def start_job(
    size: int, arguments: Sequence[object], cwd: object = None, code: str = ""
) -> list[Command]:
    """Start a command in `size` processes, with the variables that `torchrun` sets.

    Args:
        size: number of processes.
        arguments: those of the command line.
        cwd: their working directory; None is the current one.
        code: what each of them runs before the command.
    """
    port = free_port()
    return [
        Command(arguments, cwd, f"{_variables(rank, size, port)}\n{textwrap.dedent(code)}")
        for rank in range(size)
    ]


def run_job(
    size: int, arguments: Sequence[object], cwd: object = None, code: str = ""
) -> list[Done]:
    """Run a command in `size` processes and wait for all of them."""
    return [command.wait() for command in start_job(size, arguments, cwd, code)]


def run_code(size: int, code: str, cwd: object = None) -> list[Done]:
    """Run Python code in `size` processes and wait for all of them."""
    return run_job(size, [], cwd, f"{textwrap.dedent(code)}\nraise SystemExit(0)")


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _variables(rank: int, size: int, port: int) -> str:
    found = {
        "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size,
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
    }  # fmt: skip
    texts = {name: str(value) for name, value in found.items()}
    return f"import os; os.environ.update({texts!r})"
