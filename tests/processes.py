"""`nac-openood` in a process of its own that starts at once.

Importing torch, pytorch-ood and OpenOOD takes up to ten seconds. This file, run as a script, does
it once and then forks a process for each command: as fresh as a new one, and ready.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import NamedTuple, Optional

MODULES = (
    *("torch", "torchvision", "sklearn.metrics", "matplotlib.pyplot", "pytorch_ood.detector"),
    *("nac_openood.benchmark.api", "nac_openood.demo.embedded", "nac_openood.demo.trained"),
    *("nac_openood.detector.detector", "nac_openood.report.comparison"),
)


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


class Command:
    """A running `nac-openood` command.

    Args:
        arguments: those of the command line.
        cwd: its working directory; None is the current one.
        before: Python code that the process runs first.
    """

    def __init__(self, arguments, cwd=None, before=""):
        self._folder = tempfile.TemporaryDirectory(prefix="nac-command-")
        self.out, self.err = (Path(self._folder.name) / name for name in ("out", "err"))
        self.out.touch()
        self._code: Optional[int] = None
        self.pid = _ask(
            arguments=[str(word) for word in arguments],
            out=str(self.out),
            err=str(self.err),
            cwd=str(cwd or Path.cwd()),
            environ=dict(os.environ),
            before=before,
        )

    def poll(self, *, wait=False):
        """The exit code, as that of `subprocess.Popen`; None while the command runs."""
        if self._code is None:
            self._code = _ask(pid=self.pid, wait=wait)
        return self._code

    def wait(self):
        """Wait until the command has ended."""
        code = self.poll(wait=True)
        assert code is not None
        done = Done(code, self.out.read_text(), self.err.read_text())
        self._folder.cleanup()
        return done


def run(arguments, cwd=None, before=""):
    """Run a command and wait for it."""
    return Command(arguments, cwd, before).wait()


def run_code(code, *arguments):
    """Run Python code that finds `arguments` in `sys.argv[1:]`; another hash seed than here."""
    return run(arguments, before=f"{code}\nraise SystemExit")


def _ask(**request):
    server = _server()
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    return json.loads(server.stdout.readline())


@functools.cache
def _server():
    # one thread: a process with more of them cannot be forked
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    environ["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parents[1]), *filter(None, sys.path)]
    )
    server = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=environ,
    )  # fmt: skip

    @atexit.register
    def end():
        server.communicate()

    return server


# ---- the process that is forked


def _serve():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in MODULES:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        from nac_openood.plugin.source import has_openood

        has_openood()  # imports it
    gc.freeze()  # what is imported by now is shared with all commands
    for line in sys.stdin:
        request = json.loads(line)
        if "pid" in request:
            pid, status = os.waitpid(request["pid"], 0 if request["wait"] else os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork()
            if answer == 0:
                os._exit(_run(**request))
        print(json.dumps(answer), flush=True)
    gc.unfreeze()  # or else libraries complain at exit of objects that were not freed


def _run(arguments, out, err, cwd, environ, before):
    for path, target in ((os.devnull, 0), (out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), target)
    # a test run in the background of a shell ignores Ctrl-C, and hands that down
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(cwd)
    sys.argv = ["nac-openood", *arguments]
    try:
        exec(before, {})
        from nac_openood.cli import main

        return main()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


if __name__ == "__main__":
    _serve()
