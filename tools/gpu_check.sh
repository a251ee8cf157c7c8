#!/usr/bin/env bash
# Check the CUDA kernels and time them and the benches on the GPU of this machine, in less than eight
# minutes:
#
#     tools/gpu_check.sh [--json FILE]
#
# Works from a checkout alone, with any Python that has PyTorch, cuda-core and pytest: $PYTHON, else
# .venv, else python3. Without a GPU it says so and exits with 2.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
command -v "$python" > /dev/null || python=python3
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
exec "$python" tools/gpu_check.py "$@"
