"""Files of ours that are damaged: detectors, readings, checkpoints."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from typing import Any

import torch
from conftest import SmallNet
from fuzz_case import IDENTICAL, REFUSED, SILENT, VALID, Target
from mutations import MUTATE, mutate_bytes, mutate_document, mutate_tensors
from safetensors.torch import save_file

from nac_openood import NACDetector
from nac_openood.detector.checked_fit import ShardNotes, merge_shards, write_shard
from nac_openood.detector.readings import Readings
from nac_openood.errors import NACError
from nac_openood.search.stored import ReadingSet
from nac_openood.sources.weights import load_checkpoint


def network(seed: int = 0) -> SmallNet:
    torch.manual_seed(seed)
    return SmallNet().eval()


def pictures(n: int = 24, seed: int = 1) -> torch.Tensor:
    return torch.randn(n, 3, 9, 9, generator=torch.Generator().manual_seed(seed))


class Detectors(Target):
    """A detector's file; every answer must be the one of the whole file."""

    name, tried = "detector, bytes", "flipped, lost, repeated and foreign bytes in detector files"
    weight = 3
    how = "bytes"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.net, self.x = network(), pictures()
        self.expected: dict[str, Any] = {}
        for rule in ("nac", "nac_plus"):
            detector = NACDetector(self.net, ["layer1", "layer2"], rule=rule)
            detector.fit([(pictures(60, 2), torch.arange(60) % 4)]).calibrate([pictures(100, 3)])
            detector.classes_, detector.notes_ = ("a", "b", "c", "d"), {"arch": "small"}
            detector.save(folder / rule)
            self.expected[rule] = self.answers(detector)

    def answers(self, detector: NACDetector) -> list[Any]:
        said = detector.score(self.x), detector.p_value(self.x), detector.predict(self.x)
        told = detector.classes_, detector.notes_, detector.fit_summary_, detector.layers
        return [*(each.tolist() for each in said), *told]

    def case(self, rng: Random, place: Path) -> Any:
        rule = rng.choice(sorted(self.expected))
        path = Path(shutil.copy(self.folder / rule, place / "detector.nac"))
        MUTATE[self.how](rng, path)
        answers = self.answers(NACDetector.load(path, self.net))
        if answers == self.expected[rule]:
            return IDENTICAL
        return self.other(answers)

    def other(self, answers: list[Any]) -> Any:
        """What to say of other answers: damage must have been noticed."""
        return SILENT, f"other answers: {answers[:2]}"


class ChangedDetectors(Detectors):
    """Settings, metadata and tensors that somebody wrote, with a right checksum or with none."""

    name = "detector, content"
    tried = "tensors and metadata of detector files of the wrong type, shape or size; missing; new"
    how = "tensors"

    def other(self, answers: list[Any]) -> Any:
        finite = all(torch.tensor(each).isfinite().all() for each in answers[:2])
        return (VALID, "") if finite else (SILENT, f"scores that are not finite: {answers[:2]}")


class SavedReadings(Target):
    """A folder of readings, one file or the manifest of which is damaged."""

    name, tried = "readings, bytes", "bytes in files and manifests of readings"
    weight = 2

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        detector = NACDetector(network(), ["avgpool", "layer2"])
        loaders = {"fit": 60, "id_val": 40, "ood_val": 30}
        found = {
            role: detector.read_loader([(pictures(n, n), torch.arange(n) % 4)])
            for role, n in loaders.items()
        }
        about = {
            "ood_val": {"name": "x", "surrogate": False},
            "samples": loaders,
            "known": {"head_input": "avgpool", "early": {}},
            "accuracy": 0.5,
            "id_data": "own",
        }
        ReadingSet(**found, about=about).save(folder / "set")
        other = NACDetector(network(7), ["avgpool", "layer2"])
        other.read_loader([pictures(60, 60)], save_to=folder / "other.safetensors")
        self.detector = detector
        self.expected = self.answers(ReadingSet.load(folder / "set"))

    def answers(self, found: ReadingSet) -> list[Any]:
        """Scores and what is noted, as a search would use them."""
        detector = NACDetector(self.detector.net, self.detector.layers).fit_readings(found.fit)
        found.id_val.check_finite("ID validation")
        scores = [detector.score_readings(r).tolist() for r in found.roles.values()]
        return [*scores, dict(found.about), found.surrogate, found.id_val.accuracy]

    def damage(self, rng: Random, folder: Path) -> None:
        mutate_bytes(rng, rng.choice(sorted(folder.iterdir())))

    def case(self, rng: Random, place: Path) -> Any:
        folder = shutil.copytree(self.folder / "set", place / "set")
        self.damage(rng, folder)
        answers = self.answers(ReadingSet.load(folder))
        return IDENTICAL if answers == self.expected else self.other(answers)

    def other(self, answers: list[Any]) -> Any:
        return SILENT, f"other answers: {answers[0][:3]}"


class ChangedReadings(SavedReadings):
    """Content that somebody wrote, and files of other sets and networks."""

    name = "readings, content"
    tried = "tensors, metadata and manifests of readings; files swapped, missing, of other networks"

    def damage(self, rng: Random, folder: Path) -> None:
        path = rng.choice(sorted(folder.glob("*.safetensors")))
        how = rng.randrange(6)
        if how == 0:
            shutil.copy(self.folder / "other.safetensors", path)
        elif how == 1:
            other = rng.choice(sorted(folder.glob("*.safetensors")))
            path.write_bytes(other.read_bytes())
        elif how == 2:
            path.unlink()
        elif how == 3:
            mutate_document(rng, folder / "readings.json")
        else:
            mutate_tensors(rng, path)

    def other(self, answers: list[Any]) -> Any:
        # without the checksums of an early version, or with new ones, it is another valid set
        finite = all(torch.tensor(each).isfinite().all() for each in answers[:3])
        return (VALID, "") if finite else (SILENT, "scores that are not finite")


class OneFileOfReadings(Target):
    """A single file of readings, as `Readings.load` maps it."""

    name, tried = "readings, one file", "bytes, tensors and metadata of a single file of readings"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.detector = NACDetector(network(), ["avgpool", "layer2"])
        self.detector.read_loader([pictures()], save_to=folder / "x")
        self.detector.fit([pictures(60, 2)])
        self.expected = self.detector.score_readings(Readings.load(folder / "x")).tolist()

    def case(self, rng: Random, place: Path) -> Any:
        path = Path(shutil.copy(self.folder / "x", place / "x"))
        changed = rng.random() < 0.5
        (mutate_tensors if changed else mutate_bytes)(rng, path)
        found = self.detector.score_readings(Readings.load(path))
        if found.tolist() == self.expected:
            return IDENTICAL
        return (VALID, "") if changed else (SILENT, "other scores")


class Shards(Target):
    """Shards of a fit that are merged: all of them as they were written, or nothing."""

    name, tried = "shards", "bytes and notes of the shards of a fit; files swapped and missing"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        train, val = ([(pictures(10, seed), torch.arange(10) % 4) for seed in seeds]
                      for seeds in (range(6), range(6, 12)))  # fmt: skip
        sizes = {"train": 60, "val": 60}
        for number in (1, 2):
            detector = NACDetector(network(), ["avgpool", "layer2"])
            notes = ShardNotes(number, 2, 10, 0.05, 4, sizes)
            write_shard(folder / str(number), notes, detector, train, val, progress=False)
        self.expected = self.answers(folder)

    def answers(self, folder: Path) -> list[Any]:
        merged = merge_shards([folder / "2", folder / "1"])
        counts = [tensor.tolist() for tensor in merged.fitted.rule.tensors().values()]
        assert merged.fitted.pvalues is not None
        return [merged.fitted.threshold, merged.fitted.pvalues.scores.tolist(), *counts]

    def case(self, rng: Random, place: Path) -> Any:
        folder = shutil.copytree(self.folder, place / "shards")
        found = sorted(path for path in folder.rglob("*") if path.is_file())
        path, how = rng.choice(found), rng.randrange(8)
        if how == 0:
            path.unlink()
        elif how == 1:
            path.write_bytes(rng.choice(found).read_bytes())
        elif how <= 3 and path.suffix == ".json":
            mutate_document(rng, path)
        else:
            mutate_bytes(rng, path)
        if self.answers(folder) == self.expected:
            return IDENTICAL
        return (VALID, "") if path.suffix == ".json" else (SILENT, "another detector")


class Checkpoints(Target):
    """Somebody's weights: refused, or noticed by the detector that was fitted on others."""

    name, tried = "checkpoint", "bytes in checkpoints (PyTorch and safetensors), then the detector"
    weight = 2

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        net, self.x = network(), pictures(8)
        torch.save({"state_dict": net.state_dict(), "epoch": 3}, folder / "net.pt")
        save_file(net.state_dict(), folder / "net.safetensors")
        detector = NACDetector(net, ["avgpool"]).fit([pictures(60, 2)])
        detector.save(folder / "detector")
        self.expected = detector.score(self.x).tolist()

    def case(self, rng: Random, place: Path) -> Any:
        name = rng.choice(("net.pt", "net.safetensors"))
        path = Path(shutil.copy(self.folder / name, place / name))
        mutate_bytes(rng, path)
        net = load_checkpoint(network(5), path)
        try:
            detector = NACDetector.load(self.folder / "detector", net)
        except NACError as error:
            return REFUSED if "another network" in str(error) else (SILENT, str(error))
        same = detector.score(self.x).tolist() == self.expected
        return IDENTICAL if same else (SILENT, "the detector took other weights for its own")
