#!/usr/bin/env bash
# Table 17: far OOD on CIFAR-10 with the paper's layer weights; equal ones are in Table 20.
# Needs data and checkpoints of OpenOOD's scripts/download/download.py:
#   --datasets cifar-10, --checkpoints cifar10_res18_v1.5.
# Run where OpenOOD's data/ and results/ lie; further options go to the command.
set -euo pipefail
mkdir -p ./results/table_17
cat > ./results/table_17/weighted.yml <<'YAML'
postprocessor:
  name: nac
  postprocessor_args:
    n_samples: 1000
    layers:
      avgpool: {n_bins: 50, full_count: 50, steepness: 100, weight: 0.4}
      layer3: {n_bins: 500, full_count: 100, steepness: 1000, weight: 0.8}
      layer2: {n_bins: 50, full_count: 5, steepness: 0.001, weight: 0.2}
      layer1: {n_bins: 500, full_count: 100, steepness: 0.001, weight: 0.4}
YAML
nac-openood compare --id-data cifar10 --data-root ./data --arch resnet18_32x32 \
  --checkpoint ./results/cifar10_resnet18_32x32_base_e100_lr0.1_default/s* \
  --methods nac --nac-config ./results/table_17/weighted.yml --out ./results/table_17 "$@"
