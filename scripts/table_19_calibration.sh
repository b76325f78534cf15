#!/usr/bin/env bash
# Table 19: calibration errors on CIFAR-10 of MSP, TempScale and NAC; OOD samples count as wrong.
# Needs data and checkpoints of OpenOOD's scripts/download/download.py:
#   --datasets cifar-10, --checkpoints cifar10_res18_v1.5.
# Run where OpenOOD's data/ and results/ lie; further options go to the command.
set -euo pipefail
for run in ./results/cifar10_resnet18_32x32_base_e100_lr0.1_default/s*; do
  nac-openood analyze calibration --id-data cifar10 --data-root ./data --arch resnet18_32x32 \
    --checkpoint "$run" --against paper --out "./results/table_19/${run##*/}" "$@"
done
