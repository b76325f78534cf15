#!/usr/bin/env bash
# Table 19: calibration errors on CIFAR-10. The run keeps the scores of MSP, TempScale and NAC;
# `compare` prints no calibration errors, they are to be made of these scores.
# Needs data and checkpoints of OpenOOD's scripts/download/download.py:
#   --datasets cifar-10, --checkpoints cifar10_res18_v1.5.
# Run where OpenOOD's data/ and results/ lie; further options go to the command.
set -euo pipefail
nac-openood compare --id-data cifar10 --data-root ./data --arch resnet18_32x32 \
  --checkpoint ./results/cifar10_resnet18_32x32_base_e100_lr0.1_default/s* \
  --methods msp temp_scaling nac \
  --against paper --out ./results/table_19 "$@"
