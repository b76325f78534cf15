"""The service under load, against the same network served without NAC+, and under attack.

    python benchmarks/service.py [--save]

(a) load: 10,000 requests with one image each, from 8 clients on kept connections over loopback.
    The right answer to each is known in advance, and every request has a name of its own, which
    must come back: nothing may be lost or mixed up. Both services run in processes of their own
    and take turns.
(b) hostile requests: what the NAC+ service answers to oversized, truncated, slow and malicious
    requests, and the most memory that its process takes meanwhile.

Takes about two minutes on two cores. `--save` writes the figures to benchmarks/service.json
and into benchmarks/notes/service.md.
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Iterator, NamedTuple, Sequence

import numpy as np
import service_page
import torch
from service_hostile import attack
from torch import Tensor, nn
from torch.utils.data import DataLoader

from nac_openood import NACDetector
from nac_openood.demo.embedded import N_CLASSES, embedded_sets
from nac_openood.demo.trained import EPOCHS, trained
from nac_openood.files import write_json
from nac_openood.serving.app import listening_socket, run_until_signal, server
from nac_openood.serving.judge import Judge
from nac_openood.serving.limits import Limits
from nac_openood.sources.fitted import Pipeline, Prediction
from nac_openood.sources.networks import build
from nac_openood.sources.sets import BENCHMARKS

#: Scores depend a little on the batch that an image is in; on the image far more.
TOLERANCE = 1e-3
ROUNDS = 4
Address = tuple[str, int]


class PlainJudge(Judge):
    """The network alone: class and confidence."""

    def answers(self, batch: Tensor) -> list[Prediction]:
        with torch.inference_mode():
            best = self.pipeline.detector.net(batch).double().softmax(dim=1).max(dim=1)
        pairs = zip(best.indices.tolist(), best.values.tolist())
        return [Prediction("", str(k), c, c, 1.0) for k, c in pairs]


def network(arch: str) -> nn.Module:
    torch.manual_seed(0)
    return trained(arch) if arch in EPOCHS else build(arch, N_CLASSES)


def fit(arch: str, file: Path) -> None:
    """Fit a detector on the embedded digits and save it."""
    sets = embedded_sets()
    detector = NACDetector(network(arch), "auto", rule="nac_plus")
    detector.fit(DataLoader(sets.train, 100), progress=False)
    detector.calibrate(DataLoader(sets.id_val, 100), progress=False).save(file)


def make_judge(kind: str, arch: str, file: Path) -> Judge:
    """The judge of a service: the detector, or its network alone."""
    detector = NACDetector.load(file, network(arch))
    pipeline = Pipeline(detector, BENCHMARKS["embedded"].transform())
    return {"nac": Judge, "plain": PlainJudge}[kind](pipeline)


def images() -> list[bytes]:
    """PNG files: digits that the network knows, digits that it does not, and photographs."""
    sets = embedded_sets()
    found = []
    for images in (sets.test, sets.near["digits_8_9"], sets.far["photos"]):
        for index in range(min(100, len(images))):
            out = io.BytesIO()
            images.picture(index).save(out, "PNG")
            found.append(out.getvalue())
    return found


def serve(kind: str, arch: str, file: Path) -> None:
    """Serve until a signal, in this process; the address is the first line of stdout."""
    torch.set_num_threads(1)
    opened = listening_socket("127.0.0.1", 0)
    serving = server(make_judge(kind, arch, file), limits=Limits(timeout=5.0))
    print(json.dumps(opened.getsockname()), flush=True)
    run_until_signal(serving, opened)


@contextmanager
def service(kind: str, arch: str, file: Path) -> Iterator[tuple[Address, int]]:
    """A service in a process of its own: its address and process id."""
    command = [sys.executable, __file__, "--serve", kind, "--arch", arch, "--file", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            host, port = json.loads(child.stdout.readline())
            yield (host, port), child.pid
        finally:
            child.terminate()


class Load(NamedTuple):
    """What clients saw.

    Args:
        seconds: of each answered request.
        lost: requests without an answer.
        mixed: requests with the answer to another.
        wall: seconds from the first to the last.
    """

    seconds: list[float]
    lost: int
    mixed: int
    wall: float


def drive(
    address: Address,
    bodies: Sequence[bytes],
    wanted: Sequence[Prediction],
    requests: int,
    clients: int,
) -> Load:
    """Send requests from several clients at once, and check every answer."""
    order = np.random.default_rng(0).integers(0, len(bodies), requests)
    parts = [range(n, requests, clients) for n in range(clients)]
    seconds: list[float] = []
    bad: dict[str, list[int]] = {"lost": [], "mixed": []}

    def client(numbers: range) -> None:
        connection = http.client.HTTPConnection(*address, timeout=60)
        for number in numbers:
            which, start = order[number], time.perf_counter()
            try:
                connection.request(
                    "POST", f"/score?path={number}", bodies[which], {"Content-Type": "image/png"}
                )
                response = connection.getresponse()
                (found,) = json.loads(response.read())["results"]
            except (OSError, http.client.HTTPException, ValueError, KeyError):
                bad["lost"].append(number)
                connection.close()
                continue
            seconds.append(time.perf_counter() - start)
            if not is_right(found, str(number), wanted[which]):
                bad["mixed"].append(number)
        connection.close()

    start = time.perf_counter()
    threads = [threading.Thread(target=client, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall = time.perf_counter() - start
    return Load(seconds, len(bad["lost"]), len(bad["mixed"]), wall)


def is_right(found: dict[str, Any], name: str, wanted: Prediction) -> bool:
    """Whether an answer is the one to this request."""
    close = abs(found["score"] - wanted.score) <= TOLERANCE * max(1, abs(wanted.score))
    return found["path"] == name and found["class"] == wanted.label and close


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def batch_sizes(address: Address) -> tuple[float, float]:
    """Images and passes over the network so far."""
    connection = http.client.HTTPConnection(*address, timeout=60)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    found = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return float(found["nac_batch_images_sum"]), float(found["nac_batch_images_count"])


def load(
    arch: str, file: Path, requests: int, clients: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(a) and (b)."""
    fit(arch, file)
    bodies = images()
    judges = {kind: make_judge(kind, arch, file) for kind in ("plain", "nac")}
    wanted = {
        kind: [judge.answers(judge.tensor(body)[None])[0] for body in bodies]
        for kind, judge in judges.items()
    }
    runs: dict[str, list[Load]] = {kind: [] for kind in judges}
    cpu = dict.fromkeys(judges, 0.0)
    sizes: dict[str, float] = {}
    with service("plain", arch, file) as plain, service("nac", arch, file) as nac:
        services = {"plain": plain, "nac": nac}
        for kind, (address, _) in services.items():
            drive(address, bodies, wanted[kind], 100, clients)  # warms up
        for _ in range(ROUNDS):
            for kind, (address, pid) in services.items():
                before = cpu_seconds(pid)
                runs[kind].append(drive(address, bodies, wanted[kind], requests // ROUNDS, clients))
                cpu[kind] += cpu_seconds(pid) - before
        for kind, (address, _) in services.items():
            count, passes = batch_sizes(address)
            sizes[kind] = count / passes
        hostile = attack(nac[0], nac[1])
    scores = sorted(answer.score for answer in wanted["nac"])
    gaps = np.diff(scores)
    print(f"  {len(bodies)} images; the scores of {np.mean(gaps > TOLERANCE):.0%} differ clearly")
    return {kind: summary(runs[kind], cpu[kind], sizes[kind]) for kind in runs}, hostile


def summary(runs: Sequence[Load], cpu: float, size: float) -> dict[str, float]:
    seconds = [s for run in runs for s in run.seconds]
    return {
        "requests": len(seconds) + sum(run.lost for run in runs),
        "lost": sum(run.lost for run in runs),
        "mixed_up": sum(run.mixed for run in runs),
        "p50_ms": 1e3 * float(np.percentile(seconds, 50)),
        "p99_ms": 1e3 * float(np.percentile(seconds, 99)),
        "images_per_s": len(seconds) / sum(run.wall for run in runs),
        "best_images_per_s": max(len(run.seconds) / run.wall for run in runs),
        "cpu_ms_per_image": 1e3 * cpu / len(seconds),
        "images_per_batch": size,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--arch", default="resnet_embedded")
    parser.add_argument("--serve", choices=["nac", "plain"], help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--save", action="store_true")
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, args.arch, args.file)
        return
    torch.set_num_threads(1)
    busy = os.getloadavg()[0]
    print(f"(a) {args.requests} requests from {args.clients} clients, {args.arch}")
    with TemporaryDirectory() as folder:
        found, hostile = load(args.arch, Path(folder) / "x.nac", args.requests, args.clients)
    for kind, row in found.items():
        print(f"  {kind:6}", "  ".join(f"{name} {value:.4g}" for name, value in row.items()))
    print("(b) hostile requests")
    for kind, row in hostile.items():
        print(f"  {kind:40} {row['requests']:4} x {row['statuses']}  {row['peak_mb']:+.0f} MB")
    bad = sum(row["lost"] + row["mixed_up"] for row in found.values())
    wrong = [kind for kind, row in hostile.items() if not row["as_expected"]]
    if bad or wrong:
        sys.exit(f"{bad} requests lost or mixed up; not as expected: {wrong}")
    if args.save:
        path = Path(__file__).with_suffix(".json")
        about = {
            "arch": args.arch, "clients": args.clients, "cores": os.cpu_count(),
            "load_average_before": busy,
        }  # fmt: skip
        content = rounded({"about": about, "load": found, "hostile": hostile})
        write_json(path, content)
        service_page.PAGE.write_text(service_page.page(content), encoding="utf-8")


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    return round(value, 3) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
