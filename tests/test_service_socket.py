"""The service on a real socket: slow and leaving clients, many at once, an orderly end."""

import json
import socket
import threading
import time

import pytest
from service_toy import connected, encoded, exchange, picture, running
from test_service import Slow

from nac_openood.serving.app import listening_socket
from nac_openood.serving.limits import Limits

PNG = {"Content-Type": "image/png"}
HEAD = b"POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
#: Short enough for a test; a busy machine may be a few times slower than this without harm.
SHORT = 1.0


@pytest.fixture(scope="module")
def address(judge):
    limits = Limits(max_bytes=50_000, timeout=SHORT)
    with running(judge, limits) as (address, _):
        yield address


def posted(image):
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(image) + image


def test_a_body_that_does_not_arrive_is_a_408(address):
    start = time.monotonic()
    response = exchange(address, HEAD + b"Content-Length: 900\r\n\r\n", b"x" * 10)
    assert response.startswith(b"HTTP/1.1 408") and b"did not arrive within 1 s" in response
    assert time.monotonic() - start > SHORT


def test_a_client_that_sends_all_the_same_can_read_why(address):
    big = b"x" * 5_000_000
    for body in (big, iter([big])):  # the second is sent in chunks, without its length
        with connected(address) as connection:
            connection.request("POST", "/score", body, PNG)
            response = connection.getresponse()
            assert response.status == 413 and b"longer than" in response.read()


def test_too_many_connections_are_refused_and_counted_but_probes_are_answered(judge):
    with running(judge, Limits(max_connections=3)) as (address, _):
        idle = [socket.create_connection(address, timeout=60) for _ in range(700)]
        for path, status in (("/ready", 200), ("/health", 200), ("/score", 503), ("/", 503)):
            with connected(address) as connection:
                connection.request("POST" if path == "/score" else "GET", path)
                response = connection.getresponse()
                assert response.status == status
                content = response.read()
                assert status == 200 or b"too many" in content
                assert status == 200 or response.getheader("retry-after") == "1"
        wait_for(address, 'nac_requests_total{path="/score",status="503"} 1.0')
        for each in idle:
            each.close()
        while True:  # the service accepts others again
            with connected(address) as connection:
                connection.request("GET", "/")
                if connection.getresponse().status == 200:
                    break


def test_what_is_not_http_is_counted(judge):
    with running(judge) as (address, _):
        assert exchange(address, b"hello\r\n\r\n").startswith(b"HTTP/1.1 400")
        wait_for(address, 'nac_requests_total{path="other",status="400"} 1.0')


def test_answers_go_to_their_callers(judge):
    """Eight clients over kept connections, while others leave without waiting for an answer."""
    bodies = [encoded(picture(seed)) for seed in range(40)]
    wanted = [judge.answers(judge.tensor(body)[None])[0] for body in bodies]
    done, wrong = [], []

    def client(number, address):
        with connected(address) as connection:
            for seed in range(number % 4, 40, 4):
                if (number + seed) % 5 == 0:
                    with socket.create_connection(address) as leaving:
                        leaving.sendall(posted(bodies[seed - 1]))
                connection.request("POST", f"/score?path={seed}", bodies[seed], PNG)
                (found,) = json.loads(connection.getresponse().read())["results"]
                done.append(seed)
                # rounding depends on the batch, but far less than the confidence on the image
                apart = [abs(each.confidence - found["confidence"]) for each in wanted]
                nearest = apart.index(min(apart))
                right = str(seed), wanted[seed].label, seed
                if (found["path"], found["class"], nearest) != right:
                    wrong.append((seed, found, wanted[seed]))

    with running(judge, Limits(max_batch=4)) as (address, _):
        threads = [threading.Thread(target=client, args=(n, address)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong and sorted(done) == sorted([*range(40), *range(40)])


def test_a_client_that_leaves_is_taken_off_the_queue(judge):
    slow = Slow(judge)
    seen, answers = [], slow.answers
    slow.answers = lambda batch: seen.append(len(batch)) or answers(batch)
    with running(slow, Limits(max_batch=1)) as (address, _), connected(address) as first:
        try:
            first.request("POST", "/score", encoded(picture(1)), PNG)
            assert slow.entered.wait(30)
            leaving = [socket.create_connection(address) for _ in range(3)]
            for connection in leaving:
                connection.sendall(posted(encoded(picture(1))))
            wait_for(address, "nac_queue_images 3.0")
            for connection in leaving:
                connection.close()
            wait_for(address, "nac_queue_images 0.0")
            wait_for(address, 'nac_requests_total{path="/score",status="499"} 3.0')
        finally:
            slow.gate.set()
        assert first.getresponse().status == 200
    assert seen == [1]


def wait_for(address, line):
    end = time.monotonic() + 120  # a busy machine is not a failure
    while time.monotonic() < end:
        with connected(address) as connection:
            connection.request("GET", "/metrics")
            found = connection.getresponse().read().decode()
        if line in found:
            return
        time.sleep(0.05)
    pytest.fail(f"never: {line}")


def test_requests_under_way_are_answered_at_the_end_and_new_ones_refused(judge):
    slow = Slow(judge)
    with running(slow) as (address, serving), connected(address) as idle:
        idle.request("GET", "/ready")
        assert idle.getresponse().read() == b'{"status":"ready"}'
        with connected(address) as under_way:
            under_way.request("POST", "/score", encoded(picture(1)), PNG)
            assert slow.entered.wait(30)
            serving.should_exit = True
            assert idle.sock.recv(1) == b"", "idle connections are closed"
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(address).close()
            slow.gate.set()
            response = under_way.getresponse()
            assert response.status == 200 and b"decision" in response.read()


def test_answers_do_not_wait_for_acknowledgments():
    opened = listening_socket("127.0.0.1", 0)
    with opened, socket.create_connection(opened.getsockname()), opened.accept()[0] as accepted:
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
