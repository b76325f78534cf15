"""Two commands in one folder: the second is told, and a lock ends with its process."""

import os
import signal
import subprocess
import sys
import threading
import time

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


@pytest.fixture
def holder(tmp_path):
    """A process that has locked `tmp_path / "out"`."""
    (tmp_path / "out").mkdir()
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path / "out", root], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "locked\n"
    yield process
    process.kill()
    process.communicate()


def test_another_process_waits_until_the_first_is_dead(holder, tmp_path, capsys):
    out = tmp_path / "out"
    with (
        pytest.raises(FileError, match="another command is running in .*out. Wait until"),
        locked(out),
    ):
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
            leave.wait(10)

    with pytest.raises(ZeroDivisionError), locked(tmp_path):
        raise ZeroDivisionError
    assert not _is_locked(tmp_path)
    thread = threading.Thread(target=other)
    thread.start()
    inside.wait(10)
    with locked(tmp_path):
        leave.set()
        thread.join()
        assert _is_locked(tmp_path)
    assert not _is_locked(tmp_path)


def _is_locked(folder):
    """As another process sees it."""
    import fcntl

    if not (folder / ".lock").exists():
        return False
    with (folder / ".lock").open() as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_two_fits_into_one_file_leave_one_of_them(tmp_path):
    """Writing is atomic: whoever comes last is what is there, whole."""
    from nac_openood import files

    stop = time.monotonic() + 1.0
    problems = []

    def write(number):
        while time.monotonic() < stop:
            files.write_document(tmp_path / "x", 1, {"all": [number] * 5000})

    writers = [threading.Thread(target=write, args=(n,)) for n in (1, 2)]
    for thread in writers:
        thread.start()
    while time.monotonic() < stop:
        if (tmp_path / "x").exists():
            found = files.read_document(tmp_path / "x", 1, dict, missing="", again="")["all"]
            if len(set(found)) != 1 or len(found) != 5000:
                problems.append(found[:3])
    for thread in writers:
        thread.join()
    assert not problems
    assert [p.name for p in tmp_path.iterdir()] == ["x"]
