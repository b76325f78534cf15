#!/usr/bin/env bash
# Table 9: RC and ACC of checkpoints trained with SelfReg and CORAL, PACS with ResNet-18.
# Needs data of DomainBed's domainbed/scripts/download.py in ./data, and checkpoints of its training
#   as ./runs/PACS_<algorithm>/resnet18/<target domain>/trial_<number>/model_step<step>.pkl.
# Run where data/ and runs/ lie; further options go to the command.
set -euo pipefail
for algorithm in SelfReg CORAL; do
  nac-openood rank --runs "./runs/PACS_$algorithm/resnet18" --data ./data/PACS --arch resnet18 \
    --out "./results/table_9/$algorithm" "$@"
done
