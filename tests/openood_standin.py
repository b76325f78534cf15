"""A stand-in for OpenOOD that follows its call sequence, so that the contract is tested anywhere.

Written from what OpenOOD's Evaluator does: setup once, then, where a search is due, the Cartesian
product of `args_dict` with `set_hyperparam` and `inference` on both validation loaders, then the
test sets. The real OpenOOD is tested in test_plugin.py.
"""

import sys
import types

import numpy as np
from sklearn.metrics import roc_auc_score


class BasePostprocessor:
    def __init__(self, config):
        self.config = config


class BasePreprocessor:
    pass


class TestStandardPreProcessor(BasePreprocessor):
    __test__ = False


def install(monkeypatch):
    """Put the stand-in where `import openood...` finds it, for one test."""
    modules = {
        "openood": {},
        "openood.postprocessors": {},
        "openood.postprocessors.base_postprocessor": {"BasePostprocessor": BasePostprocessor},
        "openood.preprocessors": {},
        "openood.preprocessors.base_preprocessor": {"BasePreprocessor": BasePreprocessor},
        "openood.preprocessors.test_preprocessor": {
            "TestStandardPreProcessor": TestStandardPreProcessor
        },
    }
    for name, content in modules.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    # it must be imported against the stand-in. Set, then deleted: at the end of the test it is put
    # back or, if it was not there, removed
    monkeypatch.setitem(sys.modules, "nac_openood.plugin.postprocessor", types.ModuleType("none"))
    del sys.modules["nac_openood.plugin.postprocessor"]
    from nac_openood.plugin.postprocessor import NACPostprocessor

    return NACPostprocessor


def combinations(lists):
    """Every combination in OpenOOD's order, in which the first list changes fastest."""
    if not lists:
        return [[]]
    before = combinations(lists[:-1])
    return [[*point, value] for value in lists[-1] for point in before]


class StandInEvaluator:
    def __init__(self, net, postprocessor, id_loaders, ood_loaders):
        self.net, self.postprocessor = net, postprocessor
        self.id_loaders, self.ood_loaders = id_loaders, ood_loaders
        assert isinstance(postprocessor, BasePostprocessor)
        postprocessor.setup(net, id_loaders, ood_loaders)
        if postprocessor.APS_mode and not postprocessor.hyperparam_search_done:
            self.search()
        net.eval()

    def search(self):
        best, chosen = 0, None
        for point in combinations(list(self.postprocessor.args_dict.values())):
            self.postprocessor.set_hyperparam(list(point))
            auroc = self.auroc(self.id_loaders["val"], self.ood_loaders["val"])
            if auroc > best:
                best, chosen = auroc, point
        self.postprocessor.set_hyperparam(list(chosen))
        self.postprocessor.hyperparam_search_done = True

    def auroc(self, inside, outside):
        _, id_conf, id_label = self.postprocessor.inference(self.net, inside)
        _, ood_conf, ood_label = self.postprocessor.inference(self.net, outside)
        label = np.concatenate([np.ones_like(id_label), np.zeros_like(ood_label)])
        return roc_auc_score(label, np.concatenate([id_conf, ood_conf]))
