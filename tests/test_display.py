"""What results look like when printed, and in notebooks."""

import pickle
import re
from collections import Counter

import pytest
import torch
from pages import Seen

from nac_openood import Explanation, FitSummary, NACDetector, Scores
from nac_openood.detector.display import share_text
from nac_openood.detector.outcomes import Explanations, Images, Verdicts
from nac_openood.search import search


@pytest.fixture
def det(small_net, images, labels):
    fitted = NACDetector(small_net).fit([(images, labels)] * 5)
    return fitted.calibrate([(images, labels)] * 5)


def test_a_detector_says_what_it_is(small_net, images, labels):
    det = NACDetector(small_net, rule="nac")
    assert re.search(r"^NACDetector: NAC on SmallNet\n.*first batch\n.*call fit", repr(det))
    det.fit([(images, labels)])
    right = int((small_net(images).argmax(1) == labels).sum())
    accuracy = f"the network is right on {100 * right / 24:.1f} %"
    assert f"24 samples of 4 classes, 6 of each; {accuracy}" in repr(det)
    assert "call calibrate(loader)" in repr(det)
    det.calibrate([(images, labels)] * 5, 0.9, confidence=0.8, per_class=True)
    text = repr(det)
    assert ", ".join(det.layers) + "\n" in text
    assert "120 samples rank new ones; at most 10 % of ID samples of every predicted class" in text
    assert "with a confidence of 0.8" in text and "threshold" not in text


def test_the_guarantee_of_the_recommended_rule(det):
    text = repr(det)
    assert "NAC+ on SmallNet" in text and "60 samples rank" in text and "on average" in text
    assert f"score < {det.threshold_:.4g} is out" in text
    assert repr(det.pvalues_) == "PValues among 60 scores, the smallest possible is 0.016"
    assert repr(FitSummary(3)) == "3 samples"
    assert repr(FitSummary(5000, {0: 2000, 1: 3000})).endswith("2,000 to 3,000 of each")


def test_scores_in_a_few_lines(det, images, labels):
    scores = det.score_loader([(images, labels)] * 50)
    text = repr(scores)
    assert text.startswith("Scores of 1,200 samples\n") and len(text) < 500
    assert f"accuracy {share_text((scores.prediction == scores.label).mean())}" in text
    unknown = scores._replace(label=scores.label * 0 - 1, score=scores.score * float("nan"))
    assert repr(unknown) == "Scores of 1,200 samples, none of them finite"
    assert "label       none" in repr(scores._replace(label=scores.label * 0 - 1))
    assert isinstance(unknown, Scores)


def test_verdicts_as_text_and_as_a_table_with_the_images(det, images):
    det.classes_ = ("<b>cat", *map(str, range(1, 10)))
    images = torch.cat([images, torch.full_like(images[:1], float("nan"))])
    found = det.judge(images)
    assert isinstance(found, Verdicts) and len(found) == 4
    out = int(found.out(det.pvalues_.alpha).sum())
    text, page = repr(found), Seen(found._repr_html_())
    caption = f"Verdicts on 25 samples, {out} out-of-distribution (p <= 0.05); the first 10"
    assert text.startswith(caption) and caption in page.text
    assert len(text.splitlines()) == 12 and Counter(tag for tag, _ in page.tags) == {
        "div": 1, "p": 1, "table": 1, "thead": 1, "tbody": 1, "tr": 11, "th": 6, "td": 60,
        "b": 10, "img": 10,
    }  # fmt: skip
    names = [line.split()[1] for line in text.splitlines()[2:]]
    assert names == [det.classes_[c] for c in found.prediction[:10].tolist()]
    del images  # nothing keeps them
    assert not Seen(found._repr_html_()).all("img")


def test_verdicts_can_be_sent_to_other_processes(det, images):
    found = det.judge(images)
    again = pickle.loads(pickle.dumps(found))
    assert torch.equal(again.score, found.score) and repr(again) == repr(found)
    assert not Seen(again._repr_html_()).all("img")


def test_explanations_as_text_and_as_pictures(det, images):
    found = det.explain(images, top=3)
    assert isinstance(found, list) and isinstance(found[0], Explanation)
    why = found[0]
    assert f"score {why.score:.4g}, p = {why.p_value:.2g}" in repr(why)
    assert len(repr(why).splitlines()) == 2 + len(why.contributions)
    page = Seen(found._repr_html_())
    assert len(page.all("img")) == 10 and "and 14 more" in page.text
    alone = Seen(why._repr_html_())
    assert not alone.all("img") and len(alone.all("tr")) == 1 + len(why.contributions)
    for text in (alone.text, repr(why)):
        for name, value in why.contributions.items():
            assert name in text and f"{value:.3g}" in text
        for neurons in why.neurons.values():
            assert all(f"#{n} ({v:.3g})" in text for n, v in neurons.items())
    without = Explanation(0.0, None, {"<i>": 0.0}, {})
    assert "no p-value" in repr(without) and "<i>" in Seen(without._repr_html_()).text
    assert Seen(Explanations()._repr_html_()).text == ""


@pytest.mark.parametrize("shape", [(2, 1, 8, 8), (2, 3, 200, 100), (2, 5), (2, 4, 8, 8)])
def test_only_images_have_pictures(shape):
    batch = torch.rand(shape)
    shown = shape[1] in (1, 3)
    assert [bool(each) for each in Images(batch).pictures(3)] == [shown, shown, False]
    assert Images({"x": batch}).pictures(1) == [""]


def test_decisions_and_searches_say_what_they_found(det, images, labels, small_net):
    few = det.false_alarms([images], [0.05])
    assert "24 samples" in repr(few) and repr(det.drift(images)).startswith("p = ")
    assert "of 24 samples are out-of-distribution" in repr(det.select(images))
    assert repr(det.monitor()).startswith("no alarm after 0 inputs")
    reader = NACDetector(small_net, rule="nac")
    fit = reader.read_loader([(images, labels)])
    assert repr(fit).startswith("Readings of 24 samples, by layer (neurons): ")
    found = search(fit, fit, reader.read_loader([images * 3]), layers=reader.layers)
    text = repr(found)
    assert text.startswith("SearchResult: the best settings of NAC\n")
    assert f"{100 * found.best.auroc:.2f} %" in text and all(name in text for name in found.layers)


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.5, "50.0 %"), (1.0, "100.0 %"), (0.0, "0.0 %"), (0.99996, "99.996 %"), (4e-6, "0.0004 %")],
)
def test_percent_does_not_round_to_certainty(share, text):
    assert share_text(share) == text
