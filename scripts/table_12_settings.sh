#!/usr/bin/env bash
# Table 12: NAC's settings on ImageNet-1k, searched again. The paper's are those of the presets.
# Needs data of OpenOOD's scripts/download/download.py: --datasets imagenet-1k; torchvision's
#   ResNet-50 (IMAGENET1K_V1) where OpenOOD's scripts look for it, and ViT-B/16 beside it
#   (https://download.pytorch.org/models/vit_b_16-c867db91.pth).
# Run where OpenOOD's data/ and results/ lie; further options go to the command.
set -euo pipefail
nac-openood search --id-data imagenet --data-root ./data --arch resnet50 \
  --checkpoint ./results/pretrained_weights/resnet50_imagenet1k_v1.pth \
  --space paper --out ./results/table_12/resnet50 "$@"
nac-openood search --id-data imagenet --data-root ./data --arch vit_b_16 \
  --checkpoint ./results/pretrained_weights/vit_b_16-c867db91.pth \
  --space paper --out ./results/table_12/vit_b_16 "$@"
