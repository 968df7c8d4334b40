# Sourced: unpacks the sources next to nothing else, installs the wheels that the image lacks, sets variables.
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PYTHON=${PYTHON:-python3}
UNPACKED=${UNPACKED:-/tmp/jaxperf_gpu_check}
mkdir -p "$UNPACKED/site" "$UNPACKED/jaxperf"
if [ ! -e "$UNPACKED/done" ]; then
  $PYTHON -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade \
    --target "$UNPACKED/site" "$HERE"/wheels/*.whl
  tar xzf "$HERE/sources.tar.gz" -C "$UNPACKED/jaxperf"
  git -C "$UNPACKED/jaxperf" config core.bare false 2>/dev/null || true
  touch "$UNPACKED/done"
fi
export PYTHONPATH=$UNPACKED/site:$UNPACKED/jaxperf JAXPERF_DATA=$HERE/data PYTHONUNBUFFERED=1
cd "$UNPACKED/jaxperf"
