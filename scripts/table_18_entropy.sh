#!/usr/bin/env bash
# Table 18: ACC of networks trained with and without NAC entropy, PACS with ResNet-18.
# Needs data of DomainBed's domainbed/scripts/download.py in ./data, and checkpoints of its training
#   as ./runs/PACS_<variant>/resnet18/<target domain>/trial_<number>/step_<step>.pt.
#   Variants: erm, nac_minimize, nac_maximize; docs/checkpoints.md shows how to train them.
# Run where data/ and runs/ lie; further options go to the command.
set -euo pipefail
for variant in erm nac_minimize nac_maximize; do
  nac-openood rank --runs "./runs/PACS_$variant/resnet18" --data ./data/PACS --arch resnet18 \
    --out "./results/table_18/$variant" "$@"
done
