"""Commands and code in several processes, as `torchrun` starts them."""

import contextlib
import itertools
import os
import socket
import textwrap

from processes import Command


def start_job(size, arguments, cwd=None, code=""):
    """Start a command in `size` processes, with the variables that `torchrun` sets.

    Args:
        size: number of processes.
        arguments: those of the command line.
        cwd: their working directory; None is the current one.
        code: what each of them runs before the command.
    """
    port = free_port()
    code = textwrap.dedent(code)
    before = [f"{_variables(rank, size, port)}\n{code}" for rank in range(size)]
    return [Command(arguments, cwd, each) for each in before]


def run_job(size, arguments, cwd=None, code=""):
    """Run a command in `size` processes and wait for all of them."""
    return [command.wait() for command in start_job(size, arguments, cwd, code)]


def run_code(size, code, cwd=None):
    """Run Python code in `size` processes and wait for all of them."""
    return run_job(size, [], cwd, f"{textwrap.dedent(code)}\nraise SystemExit(0)")


_numbers = itertools.count()


def free_port():
    """A port that nobody listens on now, below those that the system hands out."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
    while True:
        port = 20_000 + 1_000 * (worker % 12) + next(_numbers) % 1_000
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


def _variables(rank, size, port):
    found = {
        "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size,
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
    }  # fmt: skip
    texts = {name: str(value) for name, value in found.items()}
    return f"import os; os.environ.update({texts!r})"
