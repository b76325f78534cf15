"""A small detector behind the service, images that it tells apart, and a server in a thread."""

import http.client
import io
import socket
import threading
from contextlib import contextmanager

import numpy as np
import torch
from conftest import SmallNet
from PIL import Image
from torchvision import transforms

from nac_openood import NACDetector
from nac_openood.serving.app import listening_socket, server
from nac_openood.serving.judge import Judge
from nac_openood.serving.limits import Access, Limits
from nac_openood.sources.fitted import Pipeline

SIDE = 12
TRANSFORM = transforms.Compose([transforms.Resize((SIDE, SIDE)), transforms.ToTensor()])
CLASSES = ("ant", "bee", "cat", "dog")


def picture(seed, side=SIDE):
    """Noise whose colors depend on the seed."""
    generator = np.random.default_rng(seed)
    base = generator.uniform(0, 255, size=3)
    noise = generator.normal(0, 40, size=(side, side, 3))
    return Image.fromarray((base + noise).clip(0, 255).astype(np.uint8))


def encoded(image, kind="PNG", **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def toy_detector():
    torch.manual_seed(0)
    net = SmallNet().eval()
    images = torch.stack([TRANSFORM(picture(seed)) for seed in range(400)])
    labels = torch.arange(len(images)) % 4
    detector = NACDetector(net, "auto", rule="nac_plus")
    detector.fit([(images[:250], labels[:250])]).calibrate([images[250:]])
    detector.classes_ = CLASSES
    return detector


def toy_judge(**options):
    return Judge(Pipeline(toy_detector(), TRANSFORM), **options)


def with_transform(judge, transform, **options):
    return Judge(Pipeline(judge.pipeline.detector, transform), **options)


@contextmanager
def running(judge, limits=None, access=None):
    """The service on a real socket: (host, port) of it."""
    opened = listening_socket("127.0.0.1", 0)
    serving = server(judge, limits=limits or Limits(), access=access or Access())
    thread = threading.Thread(target=serving.run, kwargs={"sockets": [opened]})
    thread.start()
    try:
        yield opened.getsockname()[:2], serving
    finally:
        serving.should_exit = True
        thread.join(120)
        opened.close()
        assert not thread.is_alive()


@contextmanager
def connected(address):
    """An HTTP client on one connection."""
    connection = http.client.HTTPConnection(*address, timeout=60)
    try:
        yield connection
    finally:
        connection.close()


def exchange(address, *pieces):
    """Send pieces of bytes; everything that comes back until the server closes the connection."""
    found = b""
    with socket.create_connection(address, timeout=60) as connection:
        for piece in pieces:
            connection.sendall(piece)
        while True:
            try:
                more = connection.recv(65536)
            except ConnectionResetError:
                if not found:
                    raise
                more = b""  # it has answered, and not read all that was sent
            if not more:
                return found
            found += more
