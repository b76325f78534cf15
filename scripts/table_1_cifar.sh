#!/usr/bin/env bash
# Table 1: far OOD on CIFAR-10 and CIFAR-100, NAC and 12 baselines.
# Needs data and checkpoints of OpenOOD's scripts/download/download.py:
#   --datasets cifar-10 cifar-100, --checkpoints cifar10_res18_v1.5 cifar100_res18_v1.5.
# Run where OpenOOD's data/ and results/ lie; further options go to the command.
set -euo pipefail
for id in cifar10 cifar100; do
  nac-openood compare --id-data $id --data-root ./data --arch resnet18_32x32 \
    --checkpoint ./results/${id}_resnet18_32x32_base_e100_lr0.1_default/s* \
    --methods openmax odin mds mds_ensemble rmds gram react vim knn ash she gen nac \
    --against paper --out ./results/table_1/$id "$@"
done
