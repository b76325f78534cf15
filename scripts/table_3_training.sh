#!/usr/bin/env bash
# Table 3: far OOD on ImageNet-1k after other training schemes, by their own detector and by NAC.
# Needs OpenOOD, and data and checkpoints of its scripts/download/download.py:
#   --datasets imagenet-1k, --checkpoints imagenet_res50_v1.5.
# Run in OpenOOD's source tree. Its script picks networks by detector, so NAC's is built here.
set -euo pipefail
for scheme in conf_branch:conf_branch_net rotpred:rot_net godin:godin_net; do
  checkpoint=./results/imagenet_${scheme#*:}_${scheme%:*}_e30_lr0.001_default/s0/best.ckpt
  nac-openood run scripts/eval_ood_imagenet.py --arch resnet50 --ckpt-path "$checkpoint" \
    --postprocessor "${scheme%:*}" --save-csv
  python - "${scheme%:*}" "$checkpoint" <<'PYTHON'
import sys, torch, nac_openood
nac_openood.register(compat=True)
from openood.evaluation_api import Evaluator
from openood.networks import ResNet50, conf_branch_net, godin_net, rot_net
wrap = {"conf_branch": conf_branch_net.ConfBranchNet, "rotpred": rot_net.RotNet,
        "godin": lambda net, classes: godin_net.GodinNet(net, net.feature_size, classes)}
net = wrap[sys.argv[1]](ResNet50(), 1000)
net.load_state_dict(torch.load(sys.argv[2], map_location="cpu"))
Evaluator(net.cuda().eval(), id_name="imagenet", data_root="data", config_root="configs",
          postprocessor_name="nac", batch_size=200).eval_ood()
PYTHON
done
