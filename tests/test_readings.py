"""Readings on disk: mapped, never whole in memory, written whole or not at all."""

from pathlib import Path
from typing import Iterator

import pytest
import torch

from nac_openood import FileError, NACError, Reading, Readings
from nac_openood.search.recipe import ReadingSet

ROWS, NEURONS, PARTS = 1000, 2000, 16
MB = 2**20
WHOLE = 2 * PARTS * ROWS * NEURONS * 4  # bytes of all readings below: 256 MB


def part(rows: int = 5, neurons: int = 3, seed: int = 0, layer: str = "a") -> Readings:
    draw = torch.Generator().manual_seed(seed)
    both = (torch.randn(rows, neurons, generator=draw) for _ in range(2))
    return Readings({layer: Reading(*both)}, torch.arange(rows), torch.arange(rows) % 2)


def own_memory() -> int:
    """Bytes of this process that no file backs."""
    status = Path("/proc/self/status")
    if not status.is_file() or "RssAnon" not in status.read_text():
        pytest.skip("needs /proc/self/status with RssAnon")
    line = next(x for x in status.read_text().splitlines() if x.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def test_parts_make_the_file_that_save_makes(tmp_path: Path) -> None:
    parts = [part(5, seed=0), part(1, seed=1), part(7, seed=2)]
    spooled = Readings.save_parts(tmp_path / "one", iter(parts))
    Readings.concatenate(parts).save(tmp_path / "two")
    saved = Readings.load(tmp_path / "two")
    assert spooled.n_samples == saved.n_samples == 13 and list(spooled) == list(saved) == ["a"]
    for mine, other in zip((*spooled["a"], spooled.label), (*saved["a"], saved.label)):
        assert torch.equal(mine, other) and mine.dtype == other.dtype
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one", "two"]


def test_half_precision_and_no_rows(tmp_path: Path) -> None:
    half = part()["a"].activation.bfloat16()
    readings = Readings({"a": Reading(half, half)}, torch.arange(5), torch.arange(5))
    empty = Readings({"a": Reading(half[:0], half[:0])}, torch.arange(0), torch.arange(0))
    found = Readings.save_parts(tmp_path / "x", [readings, empty])
    assert torch.equal(found["a"].activation, half)
    assert Readings.save_parts(tmp_path / "y", [empty]).n_samples == 0


def test_neither_writing_nor_mapping_nor_using_takes_the_memory(tmp_path: Path) -> None:
    grown = []
    before = own_memory()

    def parts() -> Iterator[Readings]:
        for number in range(PARTS):
            yield part(ROWS, NEURONS, number)
            grown.append(own_memory() - before)

    readings = Readings.save_parts(tmp_path / "large", parts())
    assert max(grown) < WHOLE / 2, f"writing kept {max(grown) / MB:.0f} MB"
    before = own_memory()  # the allocator keeps some of what the parts needed
    again = Readings.load(tmp_path / "large")
    total = sum(float(r["a"].activation.double().sum()) for r in again.batches(100))
    assert total == pytest.approx(float(readings["a"].activation.double().sum()))
    mapped = own_memory() - before
    assert mapped < WHOLE / 4, f"mapped readings took {mapped / MB:.0f} of {WHOLE / MB:.0f} MB"


def test_writing_parts_is_all_or_nothing(tmp_path: Path) -> None:
    def stops() -> Iterator[Readings]:
        yield part()
        raise NACError("an image is damaged")

    with pytest.raises(NACError, match="an image is damaged"):
        Readings.save_parts(tmp_path / "x", stops())
    with pytest.raises(NACError, match="no readings to join"):
        Readings.save_parts(tmp_path / "x", [])
    with pytest.raises(FileError, match="different types or shapes"):
        Readings.save_parts(tmp_path / "x", [part(), part(neurons=4)])
    assert not list(tmp_path.iterdir())
    with pytest.raises(FileError, match="there is no folder"):
        Readings.save_parts(tmp_path / "nowhere" / "x", [part()])


def test_sets_remember_what_they_are(tmp_path: Path) -> None:
    about = {"ood_val": {"name": "rotated", "surrogate": True}}
    ReadingSet(part(), part(6), part(7), about=about).save(tmp_path / "deep" / "set")
    found = ReadingSet.load(tmp_path / "deep" / "set")
    assert found.surrogate and found.held_out is None and found.about == about
    sizes = {role: readings.n_samples for role, readings in found.roles.items()}
    assert sizes == {"fit": 5, "id_val": 6, "ood_val": 7}

    # a set written over another takes nothing from it
    ReadingSet(part(), part(), part(), part(9)).save(tmp_path)
    ReadingSet(part(), part(), part()).save(tmp_path)
    assert ReadingSet.load(tmp_path).held_out is None


def test_damaged_sets(tmp_path: Path) -> None:
    ReadingSet(part(), part(), part()).save(tmp_path)
    manifest = tmp_path / "readings.json"
    whole = manifest.read_text()
    for text, message in (
        (whole.replace('"id_val",', ""), "does not match its checksum"),
        (
            '{"format": 1, "roles": ["fit", "ood_val"], "about": {}, "checksums": {}}',
            "has readings of",
        ),
    ):
        manifest.write_text(text)
        with pytest.raises(FileError, match=message):
            ReadingSet.load(tmp_path)
