#!/usr/bin/env bash
# Table 11: NAC's settings on CIFAR-100, searched again. The paper's are in the preset.
# Needs data and checkpoints of OpenOOD's scripts/download/download.py:
#   --datasets cifar-100, --checkpoints cifar100_res18_v1.5.
# Run where OpenOOD's data/ and results/ lie; further options go to the command.
set -euo pipefail
nac-openood search --id-data cifar100 --data-root ./data --arch resnet18_32x32 \
  --checkpoint ./results/cifar100_resnet18_32x32_base_e100_lr0.1_default/s0/best.ckpt \
  --space paper --out ./results/table_11 "$@"
