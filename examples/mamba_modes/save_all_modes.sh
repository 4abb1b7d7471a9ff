#!/usr/bin/env bash
# Save the outputs of many modes: ./save_all_modes.sh [fp_only | quant_only | essential | MODE ...]
set -euo pipefail

MODEL="${MODEL:-mamba-small}"                       # or quamba-130m-w8a8: 24 layers of width 768
PRETRAINED_DIR="${PRETRAINED_DIR:-}"                # a Hugging Face folder; empty: weights drawn from a seed
OUTPUT_DIR="${OUTPUT_DIR:-layer_outputs}"
CALIB_DATA_NUM="${CALIB_DATA_NUM:-10}"
CALIB_SEQLEN="${CALIB_SEQLEN:-512}"
PYTHON="${PYTHON:-python3}"

case "${1:-all}" in
    all) modes=(fp32 0 2-0 2-1 2-2 2-3 2-4 3) ;;
    fp_only) modes=(fp32) ;;
    quant_only) modes=(0 2-0 2-1 2-2 2-3 2-4 3) ;;
    essential) modes=(fp32 0 2-1 2-2 2-4) ;;
    *) modes=("$@") ;;
esac

# One process for all of them: loading torch takes longer than a small model runs.
exec "$PYTHON" "$(dirname "$0")/save_layer_outputs.py" "$MODEL" \
    ${PRETRAINED_DIR:+--pretrained_dir "$PRETRAINED_DIR"} \
    --mode "$(IFS=,; echo "${modes[*]}")" --quantize \
    --output_dir "$OUTPUT_DIR" --calib_data_num "$CALIB_DATA_NUM" --calib_seqlen "$CALIB_SEQLEN"
