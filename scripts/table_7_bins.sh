#!/usr/bin/env bash
# Table 7: NAC by the number of bins M, on CIFAR-10, layer4 (avgpool here) alone, alpha = 100,
# r = 1; full_count (O*) is r x samples / M.
# Needs data and checkpoints of OpenOOD's scripts/download/download.py:
#   --datasets cifar-10, --checkpoints cifar10_res18_v1.5.
# Run where OpenOOD's data/ and results/ lie; further options go to the command.
set -euo pipefail
mkdir -p ./results/table_7
for bins in 10 50 100 500 1000; do
  cat > ./results/table_7/$bins.yml <<YAML
postprocessor:
  name: nac
  postprocessor_args:
    n_samples: 1000
    layers: {avgpool: {n_bins: $bins, full_count: $((1000 / bins)), steepness: 100}}
YAML
  nac-openood compare --id-data cifar10 --data-root ./data --arch resnet18_32x32 \
    --checkpoint ./results/cifar10_resnet18_32x32_base_e100_lr0.1_default/s* \
    --methods nac --nac-config ./results/table_7/$bins.yml --out ./results/table_7/$bins "$@"
done
