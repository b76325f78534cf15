#!/usr/bin/env bash
# Table 2: far OOD on ImageNet-1k with ResNet-50 and ViT-B/16, NAC and 9 baselines.
# Needs data of OpenOOD's scripts/download/download.py: --datasets imagenet-1k; torchvision's
#   ResNet-50 (IMAGENET1K_V1) where OpenOOD's scripts look for it, and ViT-B/16 beside it
#   (https://download.pytorch.org/models/vit_b_16-c867db91.pth).
# Run where OpenOOD's data/ and results/ lie; further options go to the command.
set -euo pipefail
nac-openood compare --id-data imagenet --data-root ./data --arch resnet50 \
  --checkpoint ./results/pretrained_weights/resnet50_imagenet1k_v1.pth \
  --methods openmax mds rmds react vim knn ash she gen nac \
  --against paper --out ./results/table_2/resnet50 "$@"
nac-openood compare --id-data imagenet --data-root ./data --arch vit_b_16 \
  --checkpoint ./results/pretrained_weights/vit_b_16-c867db91.pth \
  --methods openmax mds rmds react vim knn ash she gen nac \
  --against paper --out ./results/table_2/vit_b_16 "$@"
