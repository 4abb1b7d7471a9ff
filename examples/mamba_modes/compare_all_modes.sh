#!/usr/bin/env bash
# Compare all saved modes with the reference: the summary table, and files in $COMPARISON_DIR.
set -euo pipefail

REFERENCE="${REFERENCE:-fp32}"
OUTPUT_DIR="${OUTPUT_DIR:-layer_outputs}"
COMPARISON_DIR="${COMPARISON_DIR:-comparisons}"
PYTHON="${PYTHON:-python3}"

# Exit status as diff(1): 0 all modes equal the reference, 1 they differ, 2 trouble.
exec "$PYTHON" -m nndiff modes --compare "$OUTPUT_DIR" --reference "$REFERENCE" --comparisons "$COMPARISON_DIR"
