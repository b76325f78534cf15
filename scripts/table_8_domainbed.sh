#!/usr/bin/env bash
# Table 8: RC and ACC of NAC-ME and validation accuracy, four datasets and four networks.
# Needs data of DomainBed's domainbed/scripts/download.py in ./data, and checkpoints of its training
#   as ./runs/<dataset>/<network>/<target domain>/trial_<number>/model_step<step>.pkl.
# Run where data/ and runs/ lie; further options go to the command.
set -euo pipefail
declare -A arch=([resnet18]=resnet18 [resnet50]=resnet50 [vit_t_16]=timm:vit_tiny_patch16_224 \
  [vit_b_16]=timm:vit_base_patch16_224)
for dataset in VLCS PACS office_home terra_incognita; do
  for network in resnet18 resnet50 vit_t_16 vit_b_16; do
    nac-openood rank --runs "./runs/$dataset/$network" --data "./data/$dataset" \
      --arch "${arch[$network]}" --against paper --out "./results/table_8/$dataset/$network" "$@"
  done
done
