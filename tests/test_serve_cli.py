"""`nac-openood serve` as a user meets it."""

import json
import os
import re
import signal
import sys
import threading

import pytest
from service_toy import connected
from test_fit_score import MADE, here, project, score, table  # noqa: F401

from nac_openood.cli import main
from nac_openood.serving import app as app_module
from nac_openood.tensor_files import read_tensors

TOKEN = "a-token-of-some-length"


def serve(*arguments):
    return main(["serve", *MADE, "--port", "0", *arguments])


def use(monkeypatch, capsys, work, *arguments, sent=signal.SIGTERM):
    """Serve in this thread, as signals want it, while another thread uses the service."""
    found, opened = [], threading.Event()
    real = app_module.listening_socket

    def listening(host, port):
        made = real(host, port)
        found.append(made.getsockname()[:2])
        opened.set()
        return made

    def client():
        assert opened.wait(60)
        try:
            with connected(("127.0.0.1", found[0][1])) as connection:
                found.append(work(connection))
        finally:
            os.kill(os.getpid(), sent)

    monkeypatch.setattr(app_module, "listening_socket", listening)
    thread = threading.Thread(target=client)
    thread.start()
    code = serve(*arguments)
    thread.join()
    return code, found[1], capsys.readouterr().out


def post(path, headers=None):
    content = path.read_bytes()

    def work(connection):
        sent = {"Content-Type": "image/png", **(headers or {})}
        connection.request("POST", f"/score?path={path}", content, sent)
        response = connection.getresponse()
        return response.status, json.loads(response.read())

    return work


def test_it_says_what_score_says(here, monkeypatch, capsys):  # noqa: F811
    signals = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(sent) for sent in signals]
    for path, sent in zip(("birds/test/parrot/3.png", "stripes/4.png"), signals):
        assert score(path) == 0
        (row,) = table(capsys.readouterr().out)
        file = here / path
        code, (status, answer), out = use(monkeypatch, capsys, post(file), sent=sent)
        assert (code, status) == (0, 200)
        (result,) = answer["results"]
        assert list(result) == list(row)
        assert {**row, "path": str(file)} == {name: str(value) for name, value in result.items()}
        assert re.search(r"serving birds.nac on http://127.0.0.1:\d+ \(Ctrl-C stops\)", out)
        assert "stopped" in out
    assert [signal.getsignal(sent) for sent in signals] == before


def test_the_monitor_continues_from_start_to_start(here, monkeypatch, capsys, tmp_path):  # noqa: F811
    state = tmp_path / "birds.monitor"
    found, asked = [], post(here / "stripes/1.png")
    for _ in range(2):
        _, (status, _), _ = use(monkeypatch, capsys, asked, "--monitor", str(state))
        assert status == 200
        tensors, about = read_tensors(state, "nac_openood monitor", 1)
        found.append((about["n_inputs"], len(tensors["history"])))
    assert found == [(1, 1), (2, 2)]


def test_an_alarm_that_can_never_happen_is_reported(here, monkeypatch):  # noqa: F811
    monkeypatch.setattr(app_module, "run_until_signal", lambda *_, **__: None)
    with pytest.warns(UserWarning, match="at p <= 0.01: it is compared with 60 calibration"):
        assert serve("--alpha", "0.01") == 0


def test_other_machines_need_a_token(here, monkeypatch, capsys, tmp_path):  # noqa: F811
    assert serve("--host", "0.0.0.0") == 1
    assert "--host 0.0.0.0 lets other machines in, which needs a token" in capsys.readouterr().err
    file = tmp_path / "token"
    assert serve("--token-file", str(file)) == 1
    assert f"cannot read --token-file {file}: No such file" in capsys.readouterr().err
    file.write_text("short\n")
    assert serve("--token-file", str(file)) == 1
    assert "at least 16 characters" in capsys.readouterr().err
    file.write_text(TOKEN + "\n")
    image = here / "stripes/1.png"
    asked = ["--host", "0.0.0.0", "--token-file", str(file)]
    _, (status, _), out = use(monkeypatch, capsys, post(image), *asked)
    assert status == 401 and "clients must send the token" in out
    monkeypatch.setenv("NAC_TOKEN", TOKEN)
    headers = {"Authorization": f"Bearer {TOKEN}", "Host": "any.example"}
    _, (status, _), _ = use(monkeypatch, capsys, post(image, headers), "--host", "0.0.0.0")
    assert status == 200


def test_limits_are_options(here, monkeypatch, capsys):  # noqa: F811
    asked = post(here / "stripes/1.png")
    _, (status, answer), _ = use(monkeypatch, capsys, asked, "--max-pixels", "100")
    assert status == 413 and "36 x 36 pixels are more than the 100" in answer["error"]
    _, (status, _), _ = use(monkeypatch, capsys, asked, "--max-bytes", "50")
    assert status == 413
    assert serve("--timeout", "0") == 1
    assert "--timeout must be a positive number, got 0" in capsys.readouterr().err


def test_a_transform_that_does_not_resize_is_warned_about(here, monkeypatch, capsys):  # noqa: F811
    from nac_openood.serving.judge import Judge

    monkeypatch.setattr(Judge, "warm_up", lambda self: "shapes cannot be multiplied")
    monkeypatch.setattr(app_module, "run_until_signal", lambda *_, **__: None)
    assert serve() == 0
    assert "the network fails on a gray image" in capsys.readouterr().err


def test_a_missing_extra_is_reported_before_anything_is_loaded(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "nac_openood.serving.app")
    monkeypatch.delattr("nac_openood.serving.app")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve", "--detector", "missing.nac"]) == 1
    assert "needs uvicorn: pip install 'nac-openood[serve]'" in capsys.readouterr().err


def test_a_port_in_use_is_reported(here, capsys):  # noqa: F811
    with app_module.listening_socket("127.0.0.1", 0) as taken:
        assert serve("--port", str(taken.getsockname()[1])) == 1
    assert "Choose another --port or --host" in capsys.readouterr().err
