#!/usr/bin/env bash
# Table 6: NAC by r = 0.1, 0.5, 1, 5, 50, on CIFAR-10, layer4 (avgpool here) alone, alpha = 100;
# full_count (O*) is r x samples / M, so 2, 10, 20, 100, 1000.
# Needs data and checkpoints of OpenOOD's scripts/download/download.py:
#   --datasets cifar-10, --checkpoints cifar10_res18_v1.5.
# Run where OpenOOD's data/ and results/ lie; further options go to the command.
set -euo pipefail
mkdir -p ./results/table_6
for full in 2 10 20 100 1000; do
  cat > ./results/table_6/$full.yml <<YAML
postprocessor:
  name: nac
  postprocessor_args:
    n_samples: 1000
    layers: {avgpool: {n_bins: 50, full_count: $full, steepness: 100}}
YAML
  nac-openood compare --id-data cifar10 --data-root ./data --arch resnet18_32x32 \
    --checkpoint ./results/cifar10_resnet18_32x32_base_e100_lr0.1_default/s* \
    --methods nac --nac-config ./results/table_6/$full.yml --out ./results/table_6/$full "$@"
done
