"""The service's answers and refusals, over ASGI without a socket."""

import json
import math
import re
import struct
import threading
import zlib
from functools import partial

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from PIL import Image
from service_toy import CLASSES, TRANSFORM, encoded, picture, with_transform

from nac_openood.errors import NACError
from nac_openood.serving.app import ERRORS, service
from nac_openood.serving.judge import Judge
from nac_openood.serving.limits import Access, Limits, Rates, is_loopback
from nac_openood.sources.images import ImageError, rgb_image

PNG = {"content-type": "image/png"}
TOKEN = "a-token-of-some-length"
FORM = {"content-type": "multipart/form-data; boundary=b"}


def client_of(judge, limits=None, access=None):
    app = service(judge, limits=limits or Limits(), access=access or Access())
    return TestClient(app, base_url="http://localhost")


@pytest.fixture(scope="module")
def client(judge):
    with client_of(judge, Limits(max_bytes=200_000, max_images=8)) as client:
        yield client


def expected(judge, seeds):
    found = judge.pipeline.detector.judge(torch.stack([TRANSFORM(picture(seed)) for seed in seeds]))
    return [
        (CLASSES[k], c, s, p, "out" if out else "in")
        for k, c, s, p, out in zip(*(t.tolist() for t in (*found, found.out())))
    ]


def agrees(result, wanted):
    got = [result[name] for name in ("class", "confidence", "score", "p_value", "decision")]
    return all(
        a == b if isinstance(a, str) else math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-6)
        for a, b in zip(got, wanted)
    )


# -- answers -----------------------------------------------------------------------------------


def test_one_image_as_the_body(client, judge):
    image, named = encoded(picture(1)), {"path": "a/b c.png"}
    response = client.post("/score", content=image, headers=PNG, params=named)
    assert response.status_code == 200
    (result,) = response.json()["results"]
    fields = ["path", "class", "confidence", "score", "p_value", "decision"]
    assert list(result) == fields and result["path"] == "a/b c.png"
    assert agrees(result, expected(judge, [1])[0])


def test_several_images_keep_their_order_and_names(client, judge):
    files = [("x", (f"{seed}.png", encoded(picture(seed)), "image/png")) for seed in range(7)]
    results = client.post("/score", files=files).json()["results"]
    assert [r["path"] for r in results] == [f"{seed}.png" for seed in range(7)]
    assert all(map(agrees, results, expected(judge, range(7))))
    assert len({r["score"] for r in results}) == 7, "the test images must differ"


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF"])
def test_accepted_formats_are_read_as_training_files_are(judge, tmp_path, kind):
    content = encoded(picture(3, 40), kind)
    (tmp_path / "file").write_bytes(content)
    assert torch.equal(judge.tensor(content), TRANSFORM(rgb_image(tmp_path / "file")))


def test_the_first_frame_of_an_animation_counts(judge):
    frames = [picture(seed) for seed in (1, 2)]
    content = encoded(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True)
    assert torch.equal(judge.tensor(content), TRANSFORM(frames[0]))


def test_an_image_without_a_score_is_out_and_null(judge):
    broken = with_transform(judge, lambda image: torch.full((3, 12, 12), float("nan")))
    with client_of(broken) as client:
        response = client.post("/score", content=encoded(picture(1)), headers=PNG)
    (result,) = response.json()["results"]
    assert result["score"] is None and result["p_value"] is None and result["decision"] == "out"


def test_images_of_other_sizes_do_not_share_a_batch(judge):
    plain = with_transform(judge, lambda image: TRANSFORM.transforms[1](image))
    files = [("x", encoded(picture(1, side))) for side in (12, 14, 12, 20)]
    with client_of(plain) as client:
        results = client.post("/score", files=files).json()["results"]
        wanted = expected(judge, [1])[0]
        assert [agrees(result, wanted) for result in results] == [True, False, True, False]
        assert "nac_batch_images_count 3.0" in client.get("/metrics").text


def test_alpha_is_the_callers_and_classes_without_names_are_numbers(judge):
    strict, wanted = with_transform(judge, TRANSFORM, alpha=0.999), expected(judge, [5])[0][0]
    strict.pipeline.detector.classes_ = ()
    answer = strict.answers(TRANSFORM(picture(5))[None])[0]
    strict.pipeline.detector.classes_ = CLASSES
    assert (answer.decision, answer.label) == ("out", str(CLASSES.index(wanted)))
    with pytest.raises(NACError, match="`alpha` must lie between 0 and 1"):
        with_transform(judge, TRANSFORM, alpha=2)


# -- refusals ----------------------------------------------------------------------------------


def png_header(width, height, depth=8, color=2):
    """A PNG that claims a size and holds nothing."""

    def chunk(name, data):
        checksum = struct.pack(">I", zlib.crc32(name + data))
        return struct.pack(">I", len(data)) + name + data + checksum

    head = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def deep():
    values = (np.arange(144, dtype=np.uint16) * 400).reshape(12, 12)
    return encoded(Image.fromarray(values))


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n"
BAD_BODIES = {
    "no image": (b"hello", PNG, 415, "not an image, or not of a format in PNG, JPEG"),
    "empty": (b"", PNG, 400, "the body is empty"),
    "cut off": (encoded(picture(1, 60))[:-900], PNG, 400, "cannot be read: .*truncated"),
    "a bomb": (png_header(30_000, 30_000), PNG, 413, "too large: .*exceeds limit|accepted"),
    "many pixels": (png_header(6_000, 5_000), PNG, 413, "6000 x 5000 pixels are more than"),
    "a thread": (png_header(1, 5_000), PNG, 413, "more than 50 times the other"),
    "16 bits": (deep(), PNG, 400, "more than 8 bits per channel"),
    "EPS": (EPS, {"content-type": "image/x-eps"}, 415, "not an image, or not of a format"),
    "no type": (encoded(picture(1)), {}, 415, "the Content-Type is missing"),
    "wrong type": (b"{}", {"content-type": "application/json"}, 415, "is application/json. Send"),
    "too long": (b"x" * 200_001, PNG, 413, "longer than the 200,000 bytes"),
    "a form of nothing": (b"x", {"content-type": "multipart/form-data"}, 400, "boundary"),
    "a form of noise": (b"noise", FORM, 400, "cannot be read"),
    "an empty form": (b"--b--\r\n", FORM, 400, "holds no file"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD_BODIES)
def test_a_bad_body_gets_a_clear_4xx(client, what):
    content, headers, status, message = BAD_BODIES[what]
    response = client.post("/score", content=content, headers=headers)
    assert response.status_code == status
    assert list(response.json()) == ["error"] and re.search(message, response.json()["error"])


def test_the_pixels_are_checked_before_anything_is_decoded(judge, monkeypatch):
    monkeypatch.setattr(Image.Image, "convert", lambda *_: pytest.fail("decoded"))
    with pytest.raises(ImageError, match="pixels"):
        judge.tensor(png_header(6_000, 5_000))


def test_forms_are_limited_in_number_and_kind(client):
    image = encoded(picture(1))
    many = client.post("/score", files=[("x", image)] * 9)
    assert many.status_code == 413 and "Too many files" in many.json()["error"]
    mixed = client.post("/score", files=[("x", image)], data={"y": "z"})
    assert mixed.status_code == 400 and "Too many fields" in mixed.json()["error"]
    bad = client.post("/score", files=[("x", ("a.png", image)), ("x", ("b.png", b"no"))])
    assert bad.status_code == 415 and bad.json()["error"].startswith("b.png cannot be read")


def test_unknown_paths_and_methods_are_json_too(client):
    assert client.get("/score").json() == {"error": "Method Not Allowed"}
    response = client.post("/elsewhere")
    assert response.status_code == 404 and response.json() == {"error": "Not Found"}


@pytest.mark.parametrize(
    ("transform", "error", "logged"),
    [
        (lambda image: 1 / 0, "the transform failed", "ZeroDivisionError"),
        (
            lambda image: TRANSFORM(image).to(torch.complex64),
            "the network failed on an image of shape (3, 12, 12)",
            "failed on a tensor of shape (3, 12, 12)",
        ),
    ],
)
def test_failures_of_the_network_are_answered_and_logged(judge, caplog, transform, error, logged):
    with client_of(with_transform(judge, transform)) as client:
        response = client.post("/score", content=encoded(picture(1)), headers=PNG)
    assert response.status_code == 500 and error in response.json()["error"]
    assert logged in caplog.text


def test_images_that_the_network_cannot_take_are_named(judge, caplog):
    sizes = {"a.png": (3, 12, 12), "b.png": (1, 12, 12), "c.png": (7, 9, 9)}
    made = iter(sizes.values())
    with client_of(with_transform(judge, lambda image: torch.zeros(next(made)))) as client:
        files = [("x", (name, encoded(picture(1)))) for name in sizes]
        response = client.post("/score", files=files)
    message = response.json()["error"]
    assert response.status_code == 400 and not caplog.records
    assert message.count("fitted on shape 3 x 12 x 12") == 2 and "a.png" not in message
    refused = "cannot be judged: the network cannot take an input of shape"
    assert f"b.png {refused} 1 x 12 x 12" in message and f"c.png {refused} 7 x 9 x 9" in message


def test_a_form_that_is_cut_off_is_refused(client):
    part = b'--b\r\nContent-Disposition: form-data; name="x"; filename="a"\r\n\r\n'
    part += encoded(picture(1))
    whole = part + b"\r\n" + part + b"\r\n--b--\r\n"
    assert len(client.post("/score", content=whole, headers=FORM).json()["results"]) == 2
    cut = client.post("/score", content=whole[:-30], headers=FORM)
    assert cut.status_code == 400
    assert "It is cut off: the last boundary is missing" in cut.json()["error"]


def test_an_origin_that_is_no_address_is_refused(client):
    for origin in ("http://[", "null", "://", "http://localhost@evil.com"):
        assert client.get("/health", headers={"origin": origin}).status_code == 403


def test_head_answers_like_get(client):
    for path in ("/", "/health", "/ready", "/metrics", "/docs", "/openapi.json"):
        head, get = client.head(path), client.get(path)
        assert head.status_code == 200
        assert head.headers["content-type"] == get.headers["content-type"] and not head.content
    assert client.head("/score").status_code == 405
    paths = client.get("/openapi.json").json()["paths"]
    assert not [path for path, methods in paths.items() if "head" in methods]


class Slow(Judge):
    """Waits to be let go, and tells that it waits."""

    def __init__(self, judge):
        super().__init__(judge.pipeline)
        self.entered, self.gate = threading.Event(), threading.Event()

    def answers(self, batch):
        self.entered.set()
        assert self.gate.wait(60)
        return super().answers(batch)


def test_an_answer_that_takes_too_long_is_a_504(judge):
    slow = Slow(judge)
    with client_of(slow, Limits(timeout=0.2)) as client:
        response = client.post("/score", content=encoded(picture(1)), headers=PNG)
        slow.gate.set()
    assert response.status_code == 504 and "no answer within 0.2 s" in response.json()["error"]


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (Limits(max_requests=1), "too many requests at the same time"),
        (Limits(max_images=2, max_queue=2, max_batch=1), "too many images are waiting"),
    ],
)
def test_too_many_at_once_are_reported_to_come_back(judge, limits, message):
    slow, statuses = Slow(judge), []
    files = [("x", encoded(picture(1)))] * 2
    with client_of(slow, limits) as client:
        thread = threading.Thread(
            target=lambda: statuses.append(client.post("/score", files=files).status_code)
        )
        thread.start()
        assert slow.entered.wait(60)  # one image is at work, the other waits
        refused = client.post("/score", files=files)
        slow.gate.set()
        thread.join()
    assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
    assert message in refused.json()["error"]
    assert statuses == [200]


def test_the_rate_of_a_client_is_limited(judge, monkeypatch):
    image = encoded(picture(1))
    monkeypatch.setattr("nac_openood.serving.scoring.Rates", partial(Rates, clock=lambda: 0.0))
    with client_of(judge, Limits(rate=0.01, max_images=2)) as client:
        codes = [client.post("/score", files=[("x", image)] * n).status_code for n in (2, 1)]
        refused = client.post("/score", content=image, headers=PNG)
    assert codes == [200, 429]
    assert int(refused.headers["retry-after"]) == 100
    assert "more than 0.01 images per second" in refused.json()["error"]


def test_rates_refill_and_forget():
    now = [0.0]
    rates = Rates(2.0, 4, clock=lambda: now[0])
    rates.charge("10.0.0.1", 6)  # debt is paid back
    assert rates.wait("10.0.0.1") == 1.5 and rates.wait("10.0.0.2") == 0
    now[0] = 1.5
    assert rates.wait("10.0.0.1") == 0
    for number in range(10_001):
        rates.charge(f"client {number}", 1)
    assert len(rates._due) == 10_000


def test_limits_that_make_no_sense_are_refused():
    for limits, message in (
        ({"max_bytes": 0}, "`max_bytes` must be a positive number, got 0"),
        ({"timeout": math.nan}, "`timeout` must be a positive number, got nan"),
    ):
        with pytest.raises(NACError, match=message):
            Limits(**limits)


# -- who may talk to it ------------------------------------------------------------------------


def test_pages_of_other_origins_are_refused(client):
    names = {"localhost:8000": 200, "[::1]:8000": 200, "127.0.0.1": 200, "evil.example": 421}
    names |= {"localhost.evil.example:8000": 421, "": 421}
    origins = {"http://localhost:8000": 200, "http://localhost:9000": 403, "null": 403}
    requests = [({"host": host}, status) for host, status in names.items()]
    requests += [({"host": "localhost:8000", "origin": o}, status) for o, status in origins.items()]
    for headers, status in requests:
        response = client.post("/score", content=encoded(picture(1)), headers={**PNG, **headers})
        assert response.status_code == status, headers
        assert not [name for name in response.headers if name.startswith("access-control")]


def test_names_of_the_users_own_are_added(judge):
    with client_of(judge, access=Access(hosts=("Ood.example.org",))) as client:
        assert client.get("/health", headers={"host": "ood.example.org:443"}).status_code == 200
        assert client.get("/health", headers={"host": "example.org"}).status_code == 421


def test_a_token_is_needed_where_information_is_given(judge):
    access = Access(token=TOKEN, hosts=None)
    with client_of(judge, access=access) as client:
        client.headers["host"] = "any.example"
        for path in ("/", "/health", "/ready", "/docs", "/openapi.json"):
            assert client.get(path).status_code == 200
        for sent in ("", "Bearer", "Bearer no", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer ü"):
            headers = {b"authorization": sent.encode()}
            refused = client.get("/metrics", headers=headers)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"] == "Bearer"
            assert client.post("/score", headers=headers).status_code == 401
        client.headers["authorization"] = f"bearer {TOKEN}"
        assert client.get("/metrics").status_code == 200


def test_only_addresses_of_this_machine_need_no_token():
    with pytest.raises(NACError, match="needs a `token`"):
        Access(hosts=None)
    assert [is_loopback(h) for h in ("localhost", "127.1.2.3", "::1", "[::1]")] == [True] * 4
    assert [is_loopback(h) for h in ("0.0.0.0", "::", "example.org", "10.0.0.1")] == [False] * 4


# -- what is told about it ---------------------------------------------------------------------


def samples(client):
    lines = client.get("/metrics").text.splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


@pytest.fixture
def new_monitor(judge, monkeypatch):
    monkeypatch.setattr(judge, "monitor", judge.pipeline.detector.monitor())


def test_metrics_count_requests_images_and_drift(judge, new_monitor):
    stripes = np.zeros((12, 12, 3), np.uint8)
    stripes[::2] = 255
    strange, usual = encoded(Image.fromarray(stripes)), encoded(picture(2))
    with client_of(judge) as client:
        assert samples(client)["nac_out_share"] == "NaN"
        client.post("/score", files=[("x", usual)] * 3 + [("x", strange)])
        client.post("/score", content=b"no", headers=PNG)
        client.post("/made-up")
        found, drift = samples(client), client.get("/drift").json()
    assert found["nac_out_share"] == "0.25" and found["nac_out_share_images"] == "4.0"
    assert found["nac_alpha"] == "0.05" and found["nac_queue_images"] == "0.0"
    usual_class = expected(judge, [2])[0][0]
    assert found[f'nac_images_total{{class="{usual_class}",decision="in"}}'] == "3.0"
    assert found['nac_requests_total{path="/score",status="200"}'] == "1.0"
    assert found['nac_requests_total{path="/score",status="415"}'] == "1.0"
    assert found['nac_requests_total{path="other",status="404"}'] == "1.0"
    assert found["nac_batch_images_sum"] == "4.0"
    assert float(found['nac_request_seconds_sum{path="/score"}']) > 0
    assert float(found["process_resident_memory_bytes"]) > 1e7
    evidence = float(found["nac_drift_evidence_log10"])
    assert drift == {
        "images": 4, "evidence_log10": pytest.approx(evidence), "alarm": False, "alarm_at": None,
        "false_alarm_probability": 0.01,
    }  # fmt: skip


def test_drift_of_the_stream_is_an_alarm(judge, new_monitor):
    stripes = np.zeros((12, 12, 3), np.uint8)
    stripes[::2] = 255
    files = [("x", encoded(Image.fromarray(stripes)))] * 20
    with client_of(judge) as client:
        for _ in range(5):
            assert client.post("/score", files=files).status_code == 200
        drift, found = client.get("/drift").json(), samples(client)
    assert drift["alarm"] and 0 < drift["alarm_at"] <= drift["images"] == 100
    assert drift["evidence_log10"] >= 2 and found["nac_drift_alarm"] == "1.0"


def test_the_monitor_is_written_now_and_then(judge, new_monitor, monkeypatch, tmp_path, caplog):
    """A service that is killed loses a minute of evidence, not all of it."""
    monkeypatch.setattr(judge, "monitor_file", tmp_path / "x.monitor")
    monkeypatch.setattr("nac_openood.serving.scoring.SAVE_SECONDS", 0.0)
    with client_of(judge) as client:
        client.post("/score", files=[("x", encoded(picture(2)))] * 3)
        kept = judge.pipeline.detector.monitor().load(tmp_path / "x.monitor")
        assert kept.n_inputs == 3 and kept.history == judge.monitor.history
        judge.monitor_file = tmp_path / "missing" / "x.monitor"
        assert client.post("/score", files=[("x", encoded(picture(2)))]).status_code == 200
    assert "the state of the drift monitor cannot be saved" in caplog.text


def test_state_and_documentation(client, judge):
    assert client.get("/health").json()["status"] == "ok"
    assert client.get("/ready").json() == {"status": "ready"}
    assert TestClient(service(judge), base_url="http://localhost").get("/ready").status_code == 503
    spec = client.get("/openapi.json").json()
    score = spec["paths"]["/score"]["post"]
    assert set(score["requestBody"]["content"]) == {"image/*", "multipart/form-data"}
    assert {"200", *map(str, ERRORS)} <= set(score["responses"])
    fields = spec["components"]["schemas"]["Result"]["properties"]
    assert list(fields) == ["path", "class", "confidence", "score", "p_value", "decision"]
    assert "cdn" not in client.get("/docs").text
    json.dumps(spec)


def test_browsers_are_reported_to_be_careful(client):
    headers = client.get("/").headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"
