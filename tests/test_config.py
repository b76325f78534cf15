import pytest
import yaml

from nac_openood import LayerConfig, NACConfig, NACError, read_config
from nac_openood.detector.presets import CONFIG_ROOT, preset, presets


def test_reference_spellings_are_read():
    ours = LayerConfig(n_bins=500, full_count=100, steepness=1000.0, state="gradient")
    theirs = {"M": 500, "O": 100, "sig_alpha": 1000, "method": "sigmoid(g_kl)"}
    assert LayerConfig.from_dict(theirs) == ours
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
        ({"weight": "heavy"}, "weight must be a number, got 'heavy'"),
        ({"state": "tanh"}, r"state must be one of \['output\*gradient'"),
        ({"layout": "nhwc"}, "layout must be one of"),
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
    sizes = {}
    for key, path in presets().items():
        config, size = read_config(path), 1
        for lists in config.sweep.values():
            for values in lists.values():
                size *= len(values)
        sizes[key] = size
    assert sizes["cifar10", "resnet"] == 256
    assert sizes["cifar100", "resnet"] == 288
    assert sizes["imagenet", "resnet"] == 576
    assert sizes["imagenet", "vit"] == 256
    assert sizes["embedded", "resnet"] == sizes["embedded", "vit"] == 256
    assert CONFIG_ROOT.is_dir()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("postprocessor: {postprocessor_args: {layer: {}}}", r"unknown key \['layer'\]"),
        ("postprocessor: {postprocessor_args: {}}", "the config has no layers"),
        ("postprocessor: 3", "expected a mapping 'postprocessor:'"),
        ("[1, 2]", "expected a YAML mapping"),
        ("{", "nac.yml: while parsing"),
        (
            "{postprocessor_args: {layers: {a: {}}}, postprocessor_sweep: {a: {n_bins: [2]}}}",
            "n_bins must be at least 4",
        ),
        (
            "{postprocessor_args: {layers: {a: {}}}, postprocessor_sweep: {a: {bins: [2]}}}",
            "unknown sweep setting",
        ),
    ],
)
def test_bad_files_are_named(tmp_path, text, message):
    path = tmp_path / "nac.yml"
    path.write_text(text)
    with pytest.raises(NACError, match=message):
        read_config(path)


def test_missing_files_and_presets():
    with pytest.raises(NACError, match="there is no config file nowhere.yml"):
        read_config("nowhere.yml")
    with pytest.raises(NACError, match="no preset 'mnist' for rule 'nac'; there are"):
        preset("mnist", "resnet")
    with pytest.raises(
        NACError, match=r"preset 'cifar10' has settings for .*'resnet'.*, not for 'densenet'"
    ):
        preset("cifar10", "densenet")
