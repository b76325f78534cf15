"""Hostile requests, what a service answers to them, and how much memory that costs it."""

from __future__ import annotations

import io
import json
import socket
import struct
import threading
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any, Callable, Iterable, NamedTuple

from measured_process import memory_mb
from PIL import Image

Address = tuple[str, int]
_HEAD = "POST /score HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
_FORM = "multipart/form-data; boundary=b"


class Attack(NamedTuple):
    """Requests of one kind.

    Args:
        pieces: bytes of a request, and pauses in seconds between them.
        statuses: what is accepted as an answer.
        times: how often.
    """

    pieces: Callable[[], Iterable[Any]]
    statuses: tuple[int, ...]
    times: int = 20


def _post(body: bytes, kind: str = "image/png") -> list[bytes]:
    return [f"{_HEAD.format(kind=kind)}Content-Length: {len(body)}\r\n\r\n".encode(), body]


def _png(width: int, height: int, *chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG with any chunks between its header and its end."""
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    every = [(b"IHDR", head), *chunks, (b"IEND", b"")]
    packed = [
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in every
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def png_bomb(side: int) -> bytes:
    """A gray image of `side` x `side` zeros."""
    packer = zlib.compressobj(9)
    row = bytes(side + 1)
    data = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    return _png(side, side, (b"IDAT", data))


def text_bomb() -> bytes:
    """A tiny image with 200 MB of text, compressed."""
    text = b"note\0\0" + zlib.compress(bytes(200 * 2**20), 9)
    return _png(1, 1, (b"zTXt", text), (b"IDAT", zlib.compress(b"\0\0")))


def saved(size: tuple[int, int], kind: str, **options: Any) -> bytes:
    """An image of one color."""
    out = io.BytesIO()
    Image.new("L", size).save(out, kind, **options)
    return out.getvalue()


def tall_tiff() -> bytes:
    """A TIFF whose header claims 4,000,000,000 x 1 pixels."""
    sizes = [(256, 4, 1, 4_000_000_000), (257, 4, 1, 1), (278, 4, 1, 1), (279, 4, 1, 8)]
    kinds = [(258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1), (273, 4, 1, 8), (277, 3, 1, 1)]
    entries = sorted(sizes + kinds)
    packed = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return b"II*\0" + struct.pack("<IH", 8, len(entries)) + packed + bytes(4)


def _parts(count: int, disposition: str) -> bytes:
    part = f"--b\r\nContent-Disposition: form-data; {disposition}\r\n\r\nx\r\n"
    return (part * count + "--b--\r\n").encode()


def _drip() -> Iterable[Any]:
    """A body of which a byte arrives every half second."""
    yield f"{_HEAD.format(kind='image/png')}Content-Length: 1000\r\n\r\n".encode()
    for _ in range(30):
        yield b"x"
        yield 0.5


def _chunked(total: int) -> Iterable[Any]:
    """A body that does not say how long it is."""
    yield f"{_HEAD.format(kind='image/png')}Transfer-Encoding: chunked\r\n\r\n".encode()
    piece = bytes(2**20)
    for _ in range(total // len(piece)):
        yield f"{len(piece):x}\r\n".encode() + piece + b"\r\n"
    yield b"0\r\n\r\n"


def attacks() -> dict[str, Attack]:
    """All kinds; bodies are made once."""
    huge, large, text = png_bomb(30_000), png_bomb(12_000), text_bomb()
    gif = saved((30_000, 3_000), "GIF")
    webp = saved((16_000, 16_000), "WEBP", lossless=True, quality=0, method=0)
    tiff, photo = tall_tiff(), saved((400, 400), "JPEG")
    thread, noise = _png(1, 1_000_000, (b"IDAT", b"")), bytes(range(256)) * 4_000
    names = 'name="x"; filename="x"'
    length = f"{_HEAD.format(kind='image/png')}Content-Length: 100000000000\r\n\r\n".encode()
    cut = f"{_HEAD.format(kind='image/png')}Content-Length: 5000\r\n\r\n".encode() + photo[:500]
    legal = png_bomb(4_900)
    return {
        "for comparison: a legal image of 24 MP": Attack(lambda: _post(legal), (200,), 2),
        "length of 100 GB": Attack(lambda: [length], (413,)),
        "50 MB, sent all the same": Attack(lambda: _post(bytes(50 * 2**20)), (413,), 5),
        "50 MB without a length": Attack(lambda: _chunked(50 * 2**20), (413,), 5),
        "PNG of 900 million pixels": Attack(lambda: _post(huge), (413,)),
        "PNG of 144 million pixels": Attack(lambda: _post(large), (413,)),
        "GIF of 90 million pixels": Attack(lambda: _post(gif, "image/gif"), (413,)),
        "WebP of 256 million pixels": Attack(lambda: _post(webp, "image/webp"), (413,)),
        "TIFF of 4,000,000,000 x 1 pixels": Attack(lambda: _post(tiff, "image/tiff"), (400, 413)),
        "PNG of 1 x 1,000,000 pixels": Attack(lambda: _post(thread), (413,)),
        "PNG with 200 MB of packed text": Attack(lambda: _post(text), (400, 413)),
        "JPEG cut off in the file": Attack(lambda: _post(photo[:-300], "image/jpeg"), (400,)),
        "no image": Attack(lambda: _post(noise), (415,)),
        "JSON": Attack(lambda: _post(b"{}", "application/json"), (415,)),
        "empty": Attack(lambda: _post(b""), (400,)),
        "form of 50,000 fields": Attack(lambda: _post(_parts(50_000, 'name="x"'), _FORM), (400,)),
        "form of 50,000 files": Attack(lambda: _post(_parts(50_000, names), _FORM), (413,)),
        "head of 1 MB": Attack(lambda: [b"GET / HTTP/1.1\r\nX: " + bytes(2**20)], (0, 400)),
        "body that stops": Attack(lambda: [cut], (408,)),
        "a byte every half second": Attack(_drip, (408,), 40),
    }


def send(address: Address, pieces: Iterable[Any]) -> int:
    """Send a request in pieces; the status of the answer, 0 if there is none."""
    found = b""
    with socket.create_connection(address, timeout=30) as connection:
        try:
            for piece in pieces:
                if isinstance(piece, bytes):
                    connection.sendall(piece)
                else:
                    time.sleep(piece)
        except OSError:
            pass  # the service has closed its side; its answer may be there all the same
        try:
            while more := connection.recv(65536):
                found += more
                if b"}" in found:
                    break
        except OSError:
            pass
    head, _, body = found.partition(b"\r\n\r\n")
    if not head:
        return 0
    status = int(head.split()[1])
    # uvicorn refuses what is not HTTP in plain text
    assert status == 200 or b"json" not in head or "error" in json.loads(body), body
    return status


def _peak_of(pid: int, work: Callable[[], Any]) -> float:
    """The most memory of a process while `work` runs, in MB."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # forgets earlier peaks
    work()
    return memory_mb("VmHWM", pid)


def attack(address: Address, pid: int) -> dict[str, dict[str, Any]]:
    """Attack a service in every way, up to 40 requests of a kind at the same time."""
    kinds, found = attacks(), {}
    for name, (pieces, wanted, times) in kinds.items():
        before, statuses = memory_mb("VmRSS", pid), Counter[int]()
        peak = _peak_of(pid, lambda: at_once(address, pieces, times, statuses))  # noqa: B023
        found[name] = {
            "requests": times,
            "statuses": {str(status): count for status, count in sorted(statuses.items())},
            "as_expected": set(statuses) <= set(wanted),
            "peak_mb": peak - before,
        }
    # what stays after the first time is the allocator's; what grows the second time would leak
    before, quick = (
        memory_mb("VmRSS", pid),
        [kind for kind in kinds.values() if not {200, 408} & {*kind.statuses}],
    )
    for pieces, _, times in quick:
        at_once(address, pieces, times, Counter())
    found["all quick ones again: memory left behind"] = {
        "requests": sum(kind.times for kind in quick),
        "statuses": {}, "as_expected": True, "peak_mb": memory_mb("VmRSS", pid) - before,
    }  # fmt: skip
    return found


def at_once(address: Address, pieces: Any, times: int, statuses: Counter[int]) -> None:
    """Send the same request several times at the same time, and count the answers."""

    def one() -> None:
        statuses[send(address, pieces())] += 1

    threads = [threading.Thread(target=one) for _ in range(times)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
