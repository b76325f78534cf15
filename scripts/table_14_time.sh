#!/usr/bin/env bash
# Table 14: computing time on ImageNet-1k with ResNet-50, NAC by layers and three baselines.
# Needs data of OpenOOD's scripts/download/download.py: --datasets imagenet-1k,
#   and torchvision's ResNet-50 (IMAGENET1K_V1) where OpenOOD's own scripts look for it.
# Run where OpenOOD's data/ and results/ lie; further options go to the command.
set -euo pipefail
nac-openood analyze cost --id-data imagenet --data-root ./data --arch resnet50 \
  --checkpoint ./results/pretrained_weights/resnet50_imagenet1k_v1.pth \
  --methods gen vim she --against paper --out ./results/table_14 "$@"
