#!/usr/bin/env bash
# Table 22: far OOD on ImageNet-1k with ResNet-50 and ViT-B/16, all methods it has numbers for.
# Needs data of OpenOOD's scripts/download/download.py: --datasets imagenet-1k; torchvision's
#   ResNet-50 (IMAGENET1K_V1) where OpenOOD's scripts look for it, and ViT-B/16 beside it
#   (https://download.pytorch.org/models/vit_b_16-c867db91.pth).
# Run where OpenOOD's data/ and results/ lie; further options go to the command.
set -euo pipefail
nac-openood compare --id-data imagenet --data-root ./data --arch resnet50 \
  --checkpoint ./results/pretrained_weights/resnet50_imagenet1k_v1.pth \
  --methods openmax msp temp_scaling odin mds mds_ensemble rmds gram ebo gradnorm \
    react mls klm vim knn dice rankfeat ash she gen nac \
  --against paper --out ./results/table_22/resnet50 "$@"
nac-openood compare --id-data imagenet --data-root ./data --arch vit_b_16 \
  --checkpoint ./results/pretrained_weights/vit_b_16-c867db91.pth \
  --methods openmax msp temp_scaling odin mds mds_ensemble rmds gram ebo gradnorm \
    react mls klm vim knn dice rankfeat ash she gen nac \
  --against paper --out ./results/table_22/vit_b_16 "$@"
