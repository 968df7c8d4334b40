#!/usr/bin/env bash
# Decides every open statement about a GPU in at most 8 minutes; $OUT takes logs, summary and gpu_check.tar.gz.
# A second call goes on with what the first did not reach. Words after the script's name go to the check.
set -u
OUT=${OUT:-/tmp/gpu_check}
. "$(dirname "$0")/setup.sh"
exec "$PYTHON" -m tools.gpu_check check --out "$OUT" "$@"
