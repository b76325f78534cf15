#!/usr/bin/env bash
# Table 4: far OOD of NAC by layers; the paper's layer4 is avgpool here.
# Needs data and checkpoints of OpenOOD's scripts/download/download.py: --datasets cifar-10
#   cifar-100 imagenet-1k, --checkpoints cifar10_res18_v1.5 cifar100_res18_v1.5; and torchvision's
#   ResNet-50 (IMAGENET1K_V1) where OpenOOD's own scripts look for it.
# Run where OpenOOD's data/ and results/ lie; further options go to the command.
set -euo pipefail
while read -r id arch checkpoint; do
  layers=()
  for layer in avgpool layer3 layer2 layer1; do
    layers+=("$layer")
    nac-openood compare --id-data "$id" --data-root ./data --arch "$arch" \
      --checkpoint $checkpoint --methods nac --layers "${layers[@]}" \
      --against paper --out "./results/table_4/$id/${#layers[@]}" "$@" </dev/null
  done
done <<'RUNS'
cifar10 resnet18_32x32 ./results/cifar10_resnet18_32x32_base_e100_lr0.1_default/s*
cifar100 resnet18_32x32 ./results/cifar100_resnet18_32x32_base_e100_lr0.1_default/s*
imagenet resnet50 ./results/pretrained_weights/resnet50_imagenet1k_v1.pth
RUNS
