import math

import numpy as np
import pytest
import yaml

from nac_openood import LayerConfig, NACConfig, NACError, read_config
from nac_openood.detector.config import CONFIG_ROOT, preset, presets


def test_reference_spellings_are_read():
    ours = LayerConfig(n_bins=500, full_count=100, steepness=1000.0, state="gradient")
    reference = {"M": 500, "O": 100, "sig_alpha": 1000, "method": "sigmoid(g_kl)"}
    assert LayerConfig.from_dict(reference) == ours
    assert LayerConfig.from_dict(ours.to_dict()) == ours


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_bins": 3}, "n_bins must be at least 4, got 3"),
        ({"n_bins": 50.5}, "n_bins must be a whole number, got 50.5"),
        ({"full_count": 0}, "full_count must be at least 1, got 0"),
        ({"steepness": float("nan")}, "steepness must be finite"),
        ({"steepness": -1}, "steepness must be finite and not negative"),
        ({"steepness": 0}, "steepness must be above 0"),
        ({"weight": "heavy"}, "weight must be finite and not negative, got 'heavy'"),
        ({"state": "tanh"}, r"state must be one of \['output\*gradient'"),
        ({"layout": "nhwc"}, "layout must be one of"),
        ({"steepness": 1e39}, r"steepness must be at most 1e\+30, got 1e\+39"),
        ({"steepness": 1e-39}, "steepness must be above 0, got 1e-39"),
        ({"weight": 1e308}, r"weight must be at most 1e\+06"),
        ({"full_count": 2**31}, "full_count must be at most 2,147,483,647"),
        ({"n_bins": 10**7}, "n_bins must be at most 1,000,000"),
        ({"n_bins": np.float64("nan")}, "n_bins must be a whole number"),
        ({"n_bins": True}, "n_bins must be a whole number"),
        ({"bins": 50}, r"unknown layer setting \['bins'\]; expected one of"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(NACError, match=message):
        LayerConfig.from_dict(settings)


def test_the_authors_document_is_read():
    document = {
        "postprocessor": {
            "name": "nac",
            "APS_mode": True,
            "postprocessor_args": {
                "test_method": "avg",
                "layer_names": ["avgpool"],
                "valid_num": 500,
            },
            "layer_kwargs": {
                "avgpool": {"O": 50, "M": 50, "sig_alpha": 100, "method": "sigmoid(o*g_kl)"},
                "layer3": {"O": 1, "M": 50, "sig_alpha": 100, "method": "sigmoid(o*g_kl)"},
            },
            "postprocessor_sweep": {"avgpool": {"O": [10, 50]}, "layer3": {"O": [1]}},
        }
    }
    config = NACConfig.from_dict(document)
    assert config.layers == {"avgpool": LayerConfig(50, 50, 100.0)}
    assert config.n_samples == 500
    assert config.search
    assert config.sweep == {"avgpool": {"full_count": [10, 50]}}


def test_yaml_round_trip(tmp_path):
    config = preset("cifar10", "resnet")
    path = tmp_path / "nac.yml"
    path.write_text(yaml.safe_dump(config.to_dict()))
    assert read_config(path).to_dict() == config.to_dict()


def test_every_preset_is_valid_and_the_papers_grids_have_their_sizes():
    expected = dict.fromkeys([("cifar10", "resnet"), ("imagenet", "vit")], 256)
    expected |= {("embedded", "resnet"): 256, ("embedded", "vit"): 256}
    expected |= {("cifar100", "resnet"): 288, ("imagenet", "resnet"): 576}
    for key, path in presets().items():
        sweep = read_config(path).sweep.values()
        size = math.prod(len(v) for lists in sweep for v in lists.values())
        assert size == expected.pop(key, size)
    assert not expected
    assert CONFIG_ROOT.is_dir()


def document(args="layers: {a: {}}", more=""):
    return f"{{postprocessor_args: {{{args}}}{more and ', ' + more}}}"


def swept(lists, **options):
    return document(more=f"postprocessor_sweep: {lists}", **options)


ONE_OF_TWO = "layers: {a: {}, b: {}}, layer_names: [a]"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("postprocessor: {postprocessor_args: {layer: {}}}", r"unknown key \['layer'\]"),
        ("postprocessor: {postprocessor_args: {}}", "the config has no layers"),
        ("postprocessor: 3", "expected a mapping under 'postprocessor:'"),
        ("[1, 2]", "expected a YAML mapping"),
        ("{", "nac.yml: not valid YAML: while parsing"),
        ("{postprocessor_args: 5}", "expected a mapping under 'postprocessor_args:', got 5"),
        ("{postprocessor: {name: nac}, netwrok: {}}", r"unknown key \['netwrok'\]"),
        (document(more="name: msp"), "unknown rule 'msp'; expected one of"),
        (document("layers: auto, n_samples: 3000000000"), "n_samples must be at most 2,147,483"),
        (document(more="APS_mode: 'False'"), "APS_mode must be true or"),
        (document("layers: auto, fast: 'no'"), "fast must be true or false"),
        (swept("{b: {n_bins: [50]}}"), r"unknown layer in the sweep \['b'\]; .*\['a'\]"),
        (document("layers: {a: {}}, layer_names: [a, b]"), r"unknown layer in layer_names \['b'\]"),
        (document("layers: {a: {n_bins: 50, M: 60}}"), "has two spellings in"),
        (document("layers: {a: {n_bins: 50.5}}"), r"nac\.yml: n_bins must be a whole number"),
        (document("layers: auto, n_samples: 5, valid_num: 6"), "n_samples and valid_num are"),
        (swept("{a: {n_bins: 50}}"), "layer 'a': expected a non-empty list of values for 'n_bins'"),
        (swept("{a: {n_bins: [2]}}"), "n_bins must be at least 4"),
        (swept("{a: {bins: [2]}}"), "unknown sweep setting"),
        (swept("{a: {n_bins: [50]}}", args="layers: auto"), r"unknown layer in the sweep \['a'\]"),
        (document(more="layer_kwargs: {a: {}}"), "layers and layer_kwargs are the same setting"),
        (document("layers: {a: {}, b: {n_binz: 5}}, layer_names: [a]"), r"setting \['n_binz'\]"),
        (swept("{b: {n_bins: 5}}", args=ONE_OF_TWO), "list of values for 'n_bins', got 5"),
        ("{name: nac, name: nac_plus}", "duplicate key 'name' in line 1"),
        ("{a: 2001-99-99}", "not valid YAML"),
    ],
)
def test_bad_files_are_named(tmp_path, text, message):
    path = tmp_path / "nac.yml"
    path.write_text(text)
    with pytest.raises(NACError, match=message):
        read_config(path)


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "latin.yml").write_bytes("name: caf\xe9".encode("latin-1"))
    with pytest.raises(NACError, match=r"cannot read .*latin\.yml: it is not UTF-8 text"):
        read_config(tmp_path / "latin.yml")
    with pytest.raises(NACError, match="cannot read .*: Is a directory"):
        read_config(tmp_path)


def test_missing_files_and_presets():
    with pytest.raises(NACError, match="cannot read nowhere.yml: No such file"):
        read_config("nowhere.yml")
    for benchmark, family in (("mnist", "resnet"), ("cifar10", "densenet")):
        message = f"no preset '{benchmark}' for rule 'nac' and '{family}' networks; there are"
        with pytest.raises(NACError, match=message):
            preset(benchmark, family)


def test_numbers_of_numpy_are_numbers():
    config = LayerConfig(n_bins=np.int64(50), steepness=np.float32(2), weight=np.int32(1))
    assert config == LayerConfig(n_bins=50, steepness=2.0, weight=1.0)
    assert type(config.n_bins) is int and type(config.steepness) is float
