#!/usr/bin/env bash
# Table 10: NAC's settings on CIFAR-10, searched again. The paper's are in the preset.
# Needs data and checkpoints of OpenOOD's scripts/download/download.py:
#   --datasets cifar-10, --checkpoints cifar10_res18_v1.5.
# Run where OpenOOD's data/ and results/ lie; further options go to the command.
set -euo pipefail
nac-openood search --id-data cifar10 --data-root ./data --arch resnet18_32x32 \
  --checkpoint ./results/cifar10_resnet18_32x32_base_e100_lr0.1_default/s0/best.ckpt \
  --space paper --out ./results/table_10 "$@"
