"""Two commands in one folder: the second is refused, and a lock ends with its process."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from nac_openood.cli import main
from nac_openood.errors import FileError
from nac_openood.files import locked

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs locks of the system")

HOLD = """
import sys, time
sys.path.insert(0, sys.argv[2])
from nac_openood.files import locked
with locked(sys.argv[1]):
    print("locked", flush=True)
    time.sleep(100)
"""


@contextmanager
def holding(path):
    """A process that has locked a folder or a file."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    words = [sys.executable, "-c", HOLD, path, root]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "locked\n"
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def holder(tmp_path):
    (tmp_path / "out").mkdir()
    with holding(tmp_path / "out") as process:
        yield process


def test_another_process_waits_until_the_first_is_dead(holder, tmp_path, capsys):
    out = tmp_path / "out"
    with pytest.raises(FileError, match="another command is using .*out. Wait until"), locked(out):
        pass
    assert main(["search", "--readings", "nowhere", "--out", str(out)]) == 1
    assert "choose another folder with --out." in capsys.readouterr().err
    with locked(tmp_path):  # another folder
        pass
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with locked(out):
        pass


def test_a_process_may_lock_a_folder_again_also_in_another_thread(tmp_path):
    inside, leave = threading.Event(), threading.Event()

    def other():
        with locked(tmp_path / ".." / tmp_path.name):
            inside.set()
            leave.wait(60)

    with pytest.raises(ZeroDivisionError), locked(tmp_path):
        raise ZeroDivisionError
    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(60)
    with locked(tmp_path):
        leave.set()
        thread.join()
