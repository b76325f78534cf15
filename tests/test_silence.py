"""What would give wrong scores in silence: outputs, randomness, transforms, inputs, threads."""

import threading
import warnings
from collections import namedtuple
from types import SimpleNamespace

import pytest
import torch
import torchvision
from torch import nn

from nac_openood import LayerConfig, NACDetector, NACError, ProbeError
from nac_openood.network.auto import auto_layers
from nac_openood.network.checks import InputRange

LABELS = torch.arange(64) % 4
Returned = namedtuple("Returned", ["features", "logits"])
OUTPUT = LayerConfig(state="output")


class Net(nn.Module):
    """A small network; `end` turns features and logits into what it returns."""

    def __init__(self, end=lambda features, logits: logits, classes=4, middle=None):
        super().__init__()
        torch.manual_seed(1)
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.middle = nn.Identity() if middle is None else middle
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(6, classes)
        self.end = end

    def forward(self, x):
        features = self.pool(self.middle(self.conv(x).relu())).flatten(1)
        return self.end(features, self.head(features))


def images(n=64, scale=1.0, seed=0, side=8, channels=3):
    draw = torch.Generator().manual_seed(seed)
    return torch.rand(n, channels, side, side, generator=draw) * scale


def fit(net, x=None, output=None, settings=OUTPUT, **options):
    x = images() if x is None else x
    det = NACDetector(net.eval(), {"pool": settings}, output=output, **options)
    return det.fit([(x, LABELS[: len(x)])])


# -- what the network returns ------------------------------------------------------------------

CENTER = Net()(images()).mean(dim=0).detach()


def centered(z):
    """Logits as of a network that predicts each class sometimes."""
    return z - CENTER[: z.shape[1]]


ENDS = {
    "a softmax": (lambda f, z: z.softmax(1), "rows sum to 1"),
    "a log_softmax": (lambda f, z: z.log_softmax(1), "log_softmax"),
    "a sigmoid": (lambda f, z: z.sigmoid(), "as after a sigmoid"),
    "a single sigmoid": (lambda f, z: centered(z)[:, :1].sigmoid(), "as after a sigmoid"),
    "a single sigmoid, squeezed": (lambda f, z: centered(z)[:, 0].sigmoid(), "as after a sigmoid"),
    "a softmax in a dict": (lambda f, z: {"logits": z.softmax(1)}, "rows sum to 1"),
    "a softmax in half precision": (lambda f, z: z.softmax(1).bfloat16(), "as after|sum to 1"),
}


@pytest.mark.parametrize("name", ENDS)
def test_outputs_that_are_no_logits_are_named(name):
    end, message = ENDS[name]
    with pytest.warns(UserWarning, match=message):
        NACDetector(Net(end).eval(), {"pool": OUTPUT}).fit([images()])


def test_small_logits_of_an_untrained_network_are_logits():
    fit(Net(lambda f, z: z.abs().clamp(max=0.4)))


@pytest.mark.parametrize(
    "end",
    [
        lambda f, z: z.argmax(1),
        lambda f, z: z > 0,
        lambda f, z: (z.argmax(1), z),
        lambda f, z: {"logits": z.long()},
        lambda f, z: z.to_sparse(),
    ],
)
def test_whole_numbers_are_no_logits(end):
    with pytest.raises(ProbeError, match="Let it return the logits|expected logits of shape"):
        fit(Net(end))


USUAL = {
    "logits": lambda f, z: z,
    "logits and features": lambda f, z: (z, f),
    "logits and their softmax": lambda f, z: (z, z.softmax(1)),
    "a list": lambda f, z: [z],
    "a named tuple": lambda f, z: Returned(f, z),
    "a dict": lambda f, z: {"features": f, "logits": z},
    "logits and a number": lambda f, z: (z, 3),
    "an object": lambda f, z: SimpleNamespace(logits=z),
    "a dict in a tuple": lambda f, z: ({"logits": z}, f),
}


@pytest.mark.parametrize("name", USUAL)
def test_the_usual_outputs_need_no_name(name):
    expected = fit(Net()).score(images(8))
    assert torch.equal(fit(Net(USUAL[name])).score(images(8)), expected)


NAMED = {
    "a number": (lambda f, z: (f, z), 1),
    "a number from the end": (lambda f, z: (f, f, z), -1),
    "a key": (lambda f, z: {"features": f, "scores": z}, "scores"),
    "a field": (lambda f, z: namedtuple("Two", "feat out")(f, z), "out"),
    "the first": (lambda f, z: (z, z[:, :3] @ z[:, :3].T.detach()[:3]), 0),
}


@pytest.mark.parametrize("name", NAMED)
def test_the_logits_can_be_named(name, tmp_path):
    end, output = NAMED[name]
    net = Net(end)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        det = fit(net, output=output)
    if name == "the first":
        return
    assert torch.equal(det.score(images(8)), fit(Net()).score(images(8)))
    det.save(tmp_path / "x")
    again = NACDetector.load(tmp_path / "x", net)
    assert torch.equal(again.score(images(8)), det.score(images(8)))
    assert again.net.output == output


@pytest.mark.parametrize("end", [lambda f, z: (f, z), lambda f, z: [f, f, z]])
def test_features_before_logits_are_refused(end):
    for batch in (images(), (images(), LABELS)):
        with pytest.raises(ProbeError, match=r"looks like features.*output="):
            NACDetector(Net(end).eval(), {"pool": OUTPUT}).fit([batch])


@pytest.mark.parametrize("output", ["nothing", 7])
def test_an_output_that_does_not_exist(output):
    with pytest.raises(ProbeError, match="without an output"):
        fit(Net(lambda f, z: (f, z)), output=output)


# -- randomness and the rest of the batch ------------------------------------------------------


class Always(nn.Module):
    """Dropout that stays on."""

    def forward(self, x):
        return nn.functional.dropout(x, 0.5, training=True)


class Centered(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


class Sorted(nn.Module):
    """Readings in another order than the samples; they hardly differ."""

    def forward(self, x):
        return x[x.flatten(1).norm(dim=1).argsort()]


class NumPyNoise(nn.Module):
    generator = torch.Generator().manual_seed(0)

    def forward(self, x):
        return x + torch.randn(x.shape, generator=self.generator)


class Shifted(nn.Module):
    """Draws little, and sometimes nothing."""

    def forward(self, x):
        return x * (1 + 1e-6 * torch.randint(0, 2, ()))


@pytest.mark.parametrize("module", [Always(), NumPyNoise(), Shifted()])
def test_random_numbers_in_evaluation_mode(module):
    with pytest.warns(UserWarning, match="draws random numbers in evaluation mode"):
        fit(Net(middle=module))


@pytest.mark.parametrize(
    "module", [Centered(), Sorted(), nn.BatchNorm2d(6, track_running_stats=False)]
)
def test_readings_that_depend_on_the_batch(module):
    with pytest.warns(UserWarning, match="depend on the rest of its batch"):
        fit(Net(middle=module))


def test_stable_networks_are_not_warned_about():
    layers = [nn.BatchNorm2d(6), nn.Dropout(), nn.GroupNorm(2, 6), nn.LayerNorm([6, 8, 8])]
    for module in layers:
        state = torch.get_rng_state()
        fit(Net(middle=module))
        assert torch.equal(torch.get_rng_state(), state)
    fit(Net().double())
    for n in (1, 2):
        NACDetector(Net().eval(), {"pool": OUTPUT}).fit([images(n)])
    NACDetector(Net().eval(), {"pool": OUTPUT}, autocast=torch.bfloat16).fit([images()])


# -- function transforms, unusual tensors, inference mode --------------------------------------


def test_function_transforms_are_refused():
    det, x = fit(Net(), settings=LayerConfig()), images(4)
    for transformed in (
        lambda: torch.func.grad(lambda x: det.score(x).sum())(x),
        lambda: torch.func.vmap(lambda x: det.score(x[None])[0])(x),
        lambda: torch.func.jacrev(det.score)(x),
    ):
        with pytest.raises(ProbeError, match="inside of torch.func"):
            transformed()


def test_tensors_without_plain_values_are_refused():
    det, x = fit(Net()), images(4)
    nested = torch.nested.nested_tensor([x[0], x[1]], layout=torch.jagged)
    for unusual in (x.to_sparse(), nested, x.to("meta")):
        with pytest.raises(ProbeError, match="expected dense tensors with values"):
            det.score(unusual)
    with pytest.raises(NACError, match="on the meta device: load them"):
        NACDetector(Net().to("meta"), {"pool": OUTPUT}).fit([x])


class Decorated(Net):
    @torch.inference_mode()
    def forward(self, x):
        return super().forward(x)


def test_inference_mode_in_forward():
    """As a decorator, which is left out; test_probe.py has it inside of forward."""
    x = images(8)
    expected = fit(Net(), settings=LayerConfig()).score(x)
    assert torch.equal(fit(Decorated(), settings=LayerConfig()).score(x), expected)
    assert auto_layers(Decorated().eval(), x) == auto_layers(Net().eval(), x)


@pytest.mark.parametrize("shape", [(4, 1, 8, 8), (4, 4, 8, 8), (4, 30)])
def test_another_number_of_channels_is_named(shape):
    det = fit(Net())
    with pytest.raises(ProbeError, match="another size, or another number of channels"):
        det.score(torch.rand(shape))


def test_another_size_than_a_vision_transformer_takes_is_named():
    net = torchvision.models.VisionTransformer(8, 4, 1, 2, 16, 16, num_classes=4).eval()
    det = NACDetector(net, {"encoder.ln": OUTPUT}).fit([images(8)])
    with pytest.raises(ProbeError, match="Wrong image height.*Does the network take another size"):
        det.score(images(2, side=12))


def scripted(net):
    with pytest.warns(FutureWarning):  # TorchScript is deprecated
        return torch.jit.trace(net.eval(), images(2))


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (lambda: scripted(Net()), "TorchScript runs outside of Python"),
        (lambda: nn.Sequential(nn.LazyConv2d(4, 3), nn.Flatten(1)), "not initialized yet"),
    ],
)
def test_networks_that_cannot_be_read_are_named(net, message):
    with pytest.raises(ProbeError, match=message):
        NACDetector(net(), {"0": OUTPUT}).fit([images(4)])


# -- samples that count twice ------------------------------------------------------------------

SAME = {
    "all": lambda x: [x],
    "in other batches": lambda x: reversed(x.split(7)),
    "among others": lambda x: [images(60, seed=3), x[:40]],
}


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize("scale", [1, 30])
def test_calibration_on_what_was_fitted_on(name, scale, tmp_path):
    x = images(64 * scale)
    det = fit(Net(), x[:64]) if scale == 1 else NACDetector(Net(), {"pool": OUTPUT}).fit([x], None)
    det.save(tmp_path / "x")
    for each in (det, NACDetector.load(tmp_path / "x", det.net)):
        with pytest.warns(UserWarning, match="calibration samples are samples that the detector"):
            each.calibrate(SAME[name](x))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            each.calibrate([images(64, seed=7), x[:1]])
    assert len(det.fit_summary_.hashes) == min(1000, 64 * scale)


def test_repeated_calibration_samples():
    with pytest.warns(UserWarning, match="only 32 of 64 calibration samples are different"):
        fit(Net()).calibrate([images(32, seed=3)] * 2)


# -- inputs unlike those of the fit -------------------------------------------------------------

UNLIKE = {
    "0..255": lambda x: 255 * x,
    "0..255, one image": lambda x: 255 * x[:1],
    "0..1 for 0..255": lambda x: x / 255,
    "normalized": lambda x: (x - 0.5) / 0.25 * 1.0,
    "normalized twice": lambda x: ((x - 0.48) / 0.22 - 0.48) / 0.22,
    "centered": lambda x: x - 5,
    "one channel of another scale": lambda x: x * torch.tensor([1.0, 1, 8])[:, None, None],
    "another size": lambda x: nn.functional.interpolate(x, size=12),
    "another shape": lambda x: x[..., :7],
}


@pytest.mark.parametrize("name", UNLIKE)
@pytest.mark.parametrize("use", ["score", "score_loader"])
def test_inputs_of_another_scale_or_size(name, use, tmp_path):
    x = UNLIKE[name](images(16, seed=3))
    det = fit(Net())
    det.save(tmp_path / "x")
    for each in (det, NACDetector.load(tmp_path / "x", det.net)):
        with pytest.warns(UserWarning, match="unlike the data that the detector was fitted on"):
            getattr(each, use)(x if use == "score" else [x])
        each.score(x)  # once is enough


def test_inputs_that_are_alike():
    det = fit(Net())
    draw = images(16, seed=4)
    for x in (draw, draw[:1], 0.5 * draw, 1 - draw, draw.flip(3), torch.zeros(9, 3, 8, 8)):
        det.score(x)
    det.score_loader([draw, draw * 0.6 + 0.2])


def test_the_range_of_the_inputs_adds_up(tmp_path):
    x = images(40)
    whole = fit(Net(), x).fit_summary_.inputs
    parts = [fit(Net(), part) for part in x.split(10)]
    merged = parts[0].merge(parts[1]).merge(parts[2]).merge(parts[3]).fit_summary_.inputs
    streamed = NACDetector(Net().eval(), {"pool": OUTPUT})
    for part in x.split(8):
        streamed.partial_fit(part)
    assert merged == streamed.fit_summary_.inputs == whole
    assert whole.n_samples == 40 and whole.shape == ((3, 3), (8, 8), (8, 8))
    assert InputRange.of(torch.ones(3, 4, dtype=torch.int64)) is None
    assert InputRange.of({"ids": torch.ones(3, 4, dtype=torch.int64)}) is None


# -- threads ------------------------------------------------------------------------------------


def at_once(n, work):
    threads = [threading.Thread(target=work, args=[number]) for number in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_partial_fit_from_many_threads_counts_every_sample():
    det, batches = NACDetector(Net().eval(), {"pool": OUTPUT}), images(400).split(5)
    det.partial_fit(batches[0])

    def work(number):
        for batch in batches[1 + number :: 8]:
            det.partial_fit(batch)

    at_once(8, work)
    alone = NACDetector(Net().eval(), {"pool": OUTPUT}).fit(batches)
    assert det.fit_summary_.n_samples == det.rule_.n_samples == 400
    tensors = det.rule_.tensors()
    assert all(torch.equal(tensors[n], t) for n, t in alone.rule_.tensors().items())


def test_calibrating_from_many_threads_counts_held_out_samples_once():
    alone, det = (NACDetector(Net().eval(), ["middle"]).fit([images(300)]) for _ in range(2))
    data = [images(200, seed=1)]
    at_once(4, lambda number: det.calibrate(data))
    alone.calibrate(data)
    assert det.rule_.n_samples == 300
    assert torch.equal(det.p_value(images(8, seed=2)), alone.p_value(images(8, seed=2)))
