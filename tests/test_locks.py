"""Two commands in one folder: the second is told, and a lock ends with its process."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from compare_toy import Toy, study, write_data

from nac_openood import distributed
from nac_openood.benchmark.run.conduct import conduct
from nac_openood.benchmark.run.results import Results
from nac_openood.errors import FileError
from nac_openood.locks import locked

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs locks of the system")

HOLD = """
import sys, time
sys.path.insert(0, sys.argv[2])
from nac_openood.locks import locked
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


def test_another_process_is_told_until_the_first_is_dead(holder, tmp_path):
    out, data = tmp_path / "out", write_data(tmp_path / "data")
    with pytest.raises(FileError, match="another command is at work in .*out. Wait until it has"):
        conduct(study(data, out, {"toy": Toy}))
    assert not list(out.iterdir())
    with locked(data):  # another folder
        pass
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    conduct(study(data, out, {"toy": Toy}))
    assert Results.load(out).rows[0].status == "ok"


def test_the_other_processes_of_a_job_are_told_why_there_is_no_lock(monkeypatch, tmp_path):
    told = []

    def gathered(payload):
        told.append(payload)
        return [payload, (payload[0], None, None)]

    monkeypatch.setattr(distributed, "_world", distributed.World(0, 2))
    monkeypatch.setattr(distributed, "_gather", gathered)
    with pytest.raises(FileNotFoundError), locked(tmp_path / "removed"):
        pass
    assert told[0][0] == "lock the folder" and "removed" in told[0][2]


def test_a_command_says_it_in_its_own_words(holder, tmp_path, capsys):
    from nac_openood.cli import main

    assert main(["search", "--readings", "nowhere", "--out", str(tmp_path / "out")]) == 1
    told = capsys.readouterr().err
    assert "at work in" in told and "choose another folder with --out." in told


def test_a_process_may_lock_a_folder_again(tmp_path):
    with locked(tmp_path):
        with locked(tmp_path / ".." / tmp_path.name):
            pass
        assert _is_locked(tmp_path)
    assert not _is_locked(tmp_path)
    with pytest.raises(ZeroDivisionError), locked(tmp_path):
        raise ZeroDivisionError
    assert not _is_locked(tmp_path)


def _is_locked(folder):
    """As another process sees it."""
    import fcntl

    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(opened)
    return False


def test_threads_share_the_lock(tmp_path):
    inside, leave = threading.Event(), threading.Event()

    def other():
        with locked(tmp_path):
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait(10)
    with locked(tmp_path):
        leave.set()
        thread.join()
        assert _is_locked(tmp_path)
    assert not _is_locked(tmp_path)


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    def unsupported(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("nac_openood.locks.fcntl.flock", unsupported)
    with locked(tmp_path):
        pass


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
