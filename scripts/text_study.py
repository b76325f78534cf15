#!/usr/bin/env python
"""NAC+, NAC, MSP and energy on text; writes text.json and text.md in benchmarks/notes/.

    python scripts/text_study.py --data ag_news_test.csv    # train and measure: some CPU minutes
    python scripts/text_study.py --page-only                # write the page again

A small transformer is trained from scratch on three of the four topics of AG News. Articles on the
fourth topic are near-OOD, the docstrings of Python's standard library far-OOD. Each topic is held
out once. No choice depends on test data: the network was chosen by its validation accuracy, NAC and
NAC+ have their default settings and automatic layers, NAC+ is calibrated on ID validation data.
"""

from __future__ import annotations

import argparse
import ast
import csv
import json
import platform
import re
import sys
import sysconfig
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

import numpy as np
import torch
from templates import rendered
from torch import Tensor, nn
from torch.nn import functional as F

from nac_openood import NACDetector
from nac_openood.core.metrics import auroc, joined_fpr_at
from nac_openood.core.posthoc import energy, msp
from nac_openood.files import write_json, write_text

HERE = Path(__file__).parent
NOTES = HERE.parent / "benchmarks" / "notes"
TOPICS = ("World", "Sports", "Business", "Sci/Tech")
METHODS = ("NAC+", "NAC", "MSP", "energy")
VOCABULARY, LONGEST, WIDTH, DEPTH = 8000, 48, 128, 2
EPOCHS, BATCH, RATE = 4, 64, 1e-3
#: Articles per class that are fitted on, and shares of the rest for validation and test.
TRAIN, VAL = 1330, 285
FAR = 855

Batch = dict[str, Tensor]


class TextNet(nn.Module):
    """A transformer that averages the tokens that the mask keeps."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY + 2, WIDTH, padding_idx=0)
        self.places = nn.Embedding(LONGEST, WIDTH)
        for table in (self.words, self.places):  # as BERT has it; PyTorch's default trains badly
            nn.init.normal_(table.weight, std=0.02)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.2, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False)
        self.dropout = nn.Dropout(0.3)
        self.head = nn.Linear(WIDTH, n_classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Logits `[batch, classes]` of token numbers and their mask, both `[batch, tokens]`."""
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.dropout(self.words(input_ids) + self.places(places))
        x = self.encoder(x, src_key_padding_mask=attention_mask == 0)
        kept = attention_mask.unsqueeze(-1).to(x.dtype)
        logits: Tensor = self.head(self.dropout((x * kept).sum(1) / kept.sum(1)))
        return logits


class Tokenizer:
    """The most frequent words of the training texts; 0 is padding, 1 any other word."""

    def __init__(self, texts: Sequence[str]) -> None:
        counts = Counter(word for text in texts for word in _words(text))
        self._numbers = {word: n + 2 for n, (word, _) in enumerate(counts.most_common(VOCABULARY))}

    def __call__(self, texts: Sequence[str]) -> Batch:
        """Token numbers and attention mask, both `[texts, longest]`."""
        rows = [[self._numbers.get(word, 1) for word in _words(t)][:LONGEST] for t in texts]
        longest = max(map(len, rows))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
        return {"input_ids": ids, "attention_mask": mask}


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+|[0-9]|[^\sa-z0-9]", text.lower()) or ["."]


class Texts(NamedTuple):
    """Texts and their labels, -1 if they have none."""

    texts: list[str]
    labels: list[int]

    def batches(self, tokenizer: Tokenizer) -> Iterator[Batch]:
        """Batches as Hugging Face has them, in order."""
        for start in range(0, len(self.texts), BATCH):
            rows = slice(start, start + BATCH)
            yield {**tokenizer(self.texts[rows]), "labels": torch.tensor(self.labels[rows])}


def articles(path: Path) -> list[list[str]]:
    """The articles of each topic, title and description."""
    found: list[list[str]] = [[] for _ in TOPICS]
    with path.open(encoding="utf-8", newline="") as file:
        for topic, title, description in csv.reader(file):
            found[int(topic) - 1].append(f"{title} {description}")
    return found


def docstrings() -> list[str]:
    """Docstrings of Python's standard library with at least eight words, in order of the files."""
    found = []
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if {"site-packages", "dist-packages", "test", "tests", "idle_test"} & set(parts):
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        texts = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds)]
        found += [text for text in texts if text and len(text.split()) >= 8]
    return list(dict.fromkeys(found))


def split(by_topic: Sequence[Sequence[str]], held_out: int, seed: int) -> dict[str, Texts]:
    """Training, validation and test articles, near-OOD and far-OOD texts."""
    draw = np.random.RandomState(seed)
    parts: dict[str, Texts] = {name: Texts([], []) for name in ("train", "val", "test")}
    inside = [topic for topic in range(len(TOPICS)) if topic != held_out]
    for label, topic in enumerate(inside):
        texts = [by_topic[topic][i] for i in draw.permutation(len(by_topic[topic]))]
        ends = (0, TRAIN, TRAIN + VAL, len(texts))
        for part, start, stop in zip(parts.values(), ends, ends[1:]):
            part.texts.extend(texts[start:stop])
            part.labels.extend([label] * len(texts[start:stop]))
    n = len(parts["test"].texts)
    near = [by_topic[held_out][i] for i in draw.permutation(len(by_topic[held_out]))[:n]]
    strings = docstrings()
    far = [strings[i] for i in draw.permutation(len(strings))[:FAR]]
    return {**parts, "near": Texts(near, [-1] * len(near)), "far": Texts(far, [-1] * len(far))}


def train(sets: Mapping[str, Texts], tokenizer: Tokenizer, seed: int) -> nn.Module:
    """Train with AdamW and a learning rate that falls to zero."""
    torch.manual_seed(seed)
    net = TextNet(len(TOPICS) - 1)
    texts, labels = sets["train"]
    optimizer = torch.optim.AdamW(net.parameters(), RATE, weight_decay=0.01)
    steps = EPOCHS * -(-len(texts) // BATCH)
    falling = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    for _ in range(EPOCHS):
        order = torch.randperm(len(texts)).split(BATCH)
        for rows in order:
            target = torch.tensor([labels[i] for i in rows])
            loss = F.cross_entropy(net(**tokenizer([texts[i] for i in rows])), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            falling.step()
    return net.eval()


def measure(held_out: int, by_topic: Sequence[Sequence[str]], seed: int) -> dict[str, Any]:
    """Train on three topics, and score all test sets with all methods."""
    began = time.process_time()
    sets = split(by_topic, held_out, seed)
    tokenizer = Tokenizer(sets["train"].texts)
    net = train(sets, tokenizer, seed)
    trained = time.process_time() - began
    batches = {name: list(part.batches(tokenizer)) for name, part in sets.items()}
    plus = NACDetector(net, "auto", rule="nac_plus").fit(batches["train"], progress=False)
    plus.calibrate(batches["val"], progress=False)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        nac = NACDetector(net, "auto", rule="nac").fit(batches["train"], progress=False)
    scores: dict[str, dict[str, Tensor]] = {}
    right = 0.0
    for name in ("test", "near", "far"):
        read = plus.read_loader(batches[name], progress=False)
        assert read.logits is not None
        right = read.accuracy if name == "test" else right
        scores[name] = {
            "NAC+": plus.score_readings(read).double(),
            "NAC": torch.from_numpy(nac.score_loader(batches[name], progress=False).score).double(),
            "MSP": msp(read.logits), "energy": energy(read.logits),
        }  # fmt: skip
    return {
        "held_out": TOPICS[held_out], "accuracy": 100 * right,
        "samples": {name: len(part.texts) for name, part in sets.items()},
        "layers": {"NAC+": list(plus.layers), "NAC": list(nac.layers)},
        "warnings": [str(one.message) for one in told],
        "results": {
            name: {method: _metrics(scores["test"][method], scores[name][method])
                   for method in METHODS}
            for name in ("near", "far")
        },
        "cpu_seconds": {"training": trained, "all": time.process_time() - began},
    }  # fmt: skip


def _metrics(inside: Tensor, outside: Tensor) -> dict[str, float]:
    both = torch.cat([inside, outside])[None]
    return {
        "AUROC": 100 * float(auroc(inside, outside)),
        "FPR@95": 100 * float(joined_fpr_at(both, len(inside))),
    }


def page(told: Mapping[str, Any]) -> str:
    """benchmarks/notes/text.md from the figures."""
    runs = told["runs"]
    means = {
        (name, method, metric): float(
            np.mean([run["results"][name][method][metric] for run in runs])
        )
        for name in ("near", "far")
        for method in METHODS
        for metric in ("AUROC", "FPR@95")
    }
    auc = {n: {method: means[n, method, "AUROC"] for method in METHODS} for n in ("near", "far")}
    best_of = {name: max(found, key=found.__getitem__) for name, found in auc.items()}
    behind = {name: max(found.values()) - found["NAC+"] for name, found in auc.items()}
    saturated = sum(any("cannot tell samples apart" in w for w in r["warnings"]) for r in runs)
    return rendered(
        "text_study.md.j2", told=told, runs=runs, methods=METHODS, means=means,
        wins=_wins(runs), epochs=EPOCHS, best_of=best_of, behind=behind, saturated=saturated,
        width=WIDTH, depth=DEPTH, vocabulary=VOCABULARY, longest=LONGEST,
    )  # fmt: skip


def _wins(runs: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str, str], int]:
    """On how many hold-outs NAC+ or NAC has a higher AUROC than a method on logits."""
    return {
        (name, ours, other): sum(
            run["results"][name][ours]["AUROC"] > run["results"][name][other]["AUROC"]
            for run in runs
        )
        for name in ("near", "far")
        for ours in ("NAC+", "NAC")
        for other in ("MSP", "energy")
    }


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="ag_news_test.csv: class, title, description")
    parser.add_argument("--seed", type=int, default=0, help="of the split and of training")
    parser.add_argument("--page-only", action="store_true", help="keep the figures in the file")
    args = parser.parse_args()
    document = NOTES / "text.json"
    if args.page_only:
        told = json.loads(document.read_text(encoding="utf-8"))
    elif args.data is None:
        parser.error("--data is needed, or --page-only")
    else:
        torch.set_num_threads(1)
        by_topic = articles(args.data)
        runs = []
        for held_out in range(len(TOPICS)):
            runs.append(measure(held_out, by_topic, args.seed))
            print(json.dumps(runs[-1]["results"]), file=sys.stderr)
        told = {"python": platform.python_version(), "seed": args.seed, "runs": runs}
        write_json(document, told)
    write_text(NOTES / "text.md", page(told))


if __name__ == "__main__":
    main()
