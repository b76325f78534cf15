#!/usr/bin/env bash
# Table 21: far OOD on CIFAR-100, all methods.
# Needs data and checkpoints of OpenOOD's scripts/download/download.py:
#   --datasets cifar-100, --checkpoints cifar100_res18_v1.5.
# Run where OpenOOD's data/ and results/ lie; further options go to the command.
set -euo pipefail
nac-openood compare --id-data cifar100 --data-root ./data --arch resnet18_32x32 \
  --checkpoint ./results/cifar100_resnet18_32x32_base_e100_lr0.1_default/s* \
  --methods openmax msp temp_scaling odin mds mds_ensemble rmds gram ebo opengan gradnorm \
    react mls klm vim knn dice rankfeat ash she gen nac \
  --against paper --out ./results/table_21 "$@"
