#!/usr/bin/env bash
# Table 5: NAC by the steepness alpha, on CIFAR-10, layer4 (avgpool here) alone, M = 50, r = 1.
# Needs data and checkpoints of OpenOOD's scripts/download/download.py:
#   --datasets cifar-10, --checkpoints cifar10_res18_v1.5.
# Run where OpenOOD's data/ and results/ lie; further options go to the command.
set -euo pipefail
mkdir -p ./results/table_5
for alpha in 1 10 100 500 1000; do
  cat > ./results/table_5/$alpha.yml <<YAML
postprocessor:
  name: nac
  postprocessor_args:
    n_samples: 1000
    layers: {avgpool: {n_bins: 50, full_count: 20, steepness: $alpha}}
YAML
  nac-openood compare --id-data cifar10 --data-root ./data --arch resnet18_32x32 \
    --checkpoint ./results/cifar10_resnet18_32x32_base_e100_lr0.1_default/s* \
    --methods nac --nac-config ./results/table_5/$alpha.yml --out ./results/table_5/$alpha "$@"
done
