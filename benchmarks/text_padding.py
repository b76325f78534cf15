"""Texts padded to the longest of a batch against texts padded to the tokenizer's full length.

    python benchmarks/text_padding.py ag_news_test.csv

A small BERT is trained on AG News for an epoch, a detector is fitted on its texts as
`nac-openood fit` does, and 1000 other texts are judged with both kinds of padding: seconds of CPU
time, and by how much the answers differ. The figures are those in docs/own_network.md.
"""

from __future__ import annotations

import csv
import sys
import time
from pathlib import Path
from typing import Any, Callable, Optional

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from torch.utils.data import DataLoader

from nac_openood import NACDetector
from nac_openood.detector.outcomes import Verdicts
from nac_openood.sources import networks
from nac_openood.sources.samples import SampleList, collate_texts

BATCH, LONGEST, WORDS = 100, 512, 8000
TRAIN, VAL, TEST = 4000, 1000, 1000


def tokenizer_of(texts: list[str]) -> Any:
    """A word-level tokenizer of the kind that Hugging Face's networks come with."""
    made = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    known = trainers.WordLevelTrainer(vocab_size=WORDS, special_tokens=["[PAD]", "[UNK]"])
    made.train_from_iterator(texts, known)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="[UNK]", pad_token="[PAD]", model_max_length=LONGEST
    )


def trained(data: SampleList) -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=WORDS, hidden_size=128, num_hidden_layers=4, num_attention_heads=4,
        intermediate_size=256, max_position_embeddings=LONGEST, num_labels=4,
    )  # fmt: skip
    net = transformers.BertForSequenceClassification(config).train()
    steps = torch.optim.Adam(net.parameters(), 5e-4)
    for batch in DataLoader(data, 50, shuffle=True, collate_fn=collate_texts):
        steps.zero_grad()
        net(
            **{k: v for k, v in batch.items() if k != "label"}, labels=batch["label"]
        ).loss.backward()
        steps.step()
    return net.eval()


def judged(
    detector: NACDetector, data: SampleList, collate: Optional[Callable[..., Any]]
) -> tuple[Verdicts, float]:
    start = time.process_time()
    parts = [detector.judge(batch) for batch in DataLoader(data, BATCH, collate_fn=collate)]
    return Verdicts(*(torch.cat(column) for column in zip(*parts))), time.process_time() - start


def main() -> None:
    with Path(sys.argv[1]).open(newline="", encoding="utf-8") as file:
        rows = [(f"{title} {text}", int(label) - 1) for label, title, text in csv.reader(file)]
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).tolist()
    rows = [rows[place] for place in order]
    tokenizer = tokenizer_of([text for text, _ in rows[:TRAIN]])
    encode = networks.Tokenizer(tokenizer, transformers.BertConfig())

    def texts(first: int, n: int) -> SampleList:
        part = rows[first : first + n]
        return SampleList([text for text, _ in part], [y for _, y in part], encode, "AG News")

    train, val, test = texts(0, TRAIN), texts(TRAIN, VAL), texts(TRAIN + VAL, TEST)
    net = trained(train)
    detector = NACDetector(net, "auto", rule="nac_plus")
    detector.fit(DataLoader(train, BATCH, collate_fn=collate_texts), 1000)
    detector.calibrate(DataLoader(val, BATCH, collate_fn=collate_texts))
    cut, short = judged(detector, test, collate_texts)
    full, long = judged(detector, test, None)
    accuracy = (cut.prediction == torch.from_numpy(test.labels)).double().mean()
    print(f"accuracy {accuracy:.3f}; layers {list(detector.layers)}")
    print(f"{TEST} texts: {short:.1f} s cut to their batch, {long:.1f} s of {LONGEST} tokens: "
          f"{long / short:.1f} x")  # fmt: skip
    for name in ("score", "p_value"):
        apart = (getattr(cut, name) - getattr(full, name)).abs()
        print(f"{name}: at most {apart.max():.2g} apart; {int((apart > 1e-5).sum())} by over 1e-5")
    print(f"decisions that differ: {int((cut.out() != full.out()).sum())}")


if __name__ == "__main__":
    main()
