#!/usr/bin/env bash
# Table 13: the settings that NAC-ME is searched over; the report shows those that are chosen.
# Needs data of DomainBed's domainbed/scripts/download.py in ./data, and checkpoints of its training
#   as ./runs/<dataset>/resnet18/<target domain>/trial_<number>/model_step<step>.pkl.
# Run where data/ and runs/ lie; further options go to the command.
set -euo pipefail
for dataset in VLCS PACS office_home terra_incognita; do
  nac-openood rank --runs "./runs/$dataset/resnet18" --data "./data/$dataset" --arch resnet18 \
    --out "./results/table_13/$dataset" "$@"
done
