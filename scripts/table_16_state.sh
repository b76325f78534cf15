#!/usr/bin/env bash
# Table 16: NAC by neuron state, on ImageNet-1k with ResNet-50, layer4 (avgpool here) alone: the
# rows z (output), all but z (gradient) and all. This package does not take the state further apart.
# Needs data of OpenOOD's scripts/download/download.py: --datasets imagenet-1k,
#   and torchvision's ResNet-50 (IMAGENET1K_V1) where OpenOOD's own scripts look for it.
# Run where OpenOOD's data/ and results/ lie; further options go to the command.
set -euo pipefail
mkdir -p ./results/table_16
while read -r name state alpha; do
  cat > ./results/table_16/$name.yml <<YAML
postprocessor:
  name: nac
  postprocessor_args:
    n_samples: 1000
    layers: {avgpool: {n_bins: 50, full_count: 10, steepness: $alpha, state: $state}}
YAML
  nac-openood compare --id-data imagenet --data-root ./data --arch resnet50 \
    --checkpoint ./results/pretrained_weights/resnet50_imagenet1k_v1.pth \
    --methods nac --nac-config ./results/table_16/$name.yml \
    --out ./results/table_16/$name "$@" </dev/null
done <<'STATES'
z output 100
gradient gradient 100
all output*gradient 3000
STATES
