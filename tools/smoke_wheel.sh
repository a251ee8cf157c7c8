#!/usr/bin/env bash
# Build sdist and wheel, install the wheel in a light environment of its own outside the checkout,
# and use it there from an empty folder. Takes the dependencies of .venv, so nothing is downloaded
# but setuptools.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$PWD/.venv/bin/python
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
heading() { printf '\n== %s (%s s)\n' "$1" "$SECONDS"; }

heading "build sdist and wheel"
"$python" -m build -o "$scratch/dist" . > "$scratch/build.log" 2>&1 \
  || { tail -30 "$scratch/build.log"; exit 1; }
ls "$scratch/dist"

heading "install the wheel elsewhere"
"$python" -m venv "$scratch/venv"
"$scratch/venv/bin/python" -m pip --disable-pip-version-check install -q --no-deps "$scratch"/dist/*.whl
# One plain path line brings the dependencies without running the .pth files that lie there, so the
# editable install is not seen; its own folder of packages comes first.
purelib='import sysconfig; print(sysconfig.get_path("purelib"))'
"$python" -c "$purelib" > "$("$scratch/venv/bin/python" -c "$purelib")/dependencies.pth"
mkdir "$scratch/work"
cd "$scratch/work"
PATH=$scratch/venv/bin:$PATH
python - "$scratch/dist" <<'PY'
import sys
import tarfile
from importlib.resources import files
from pathlib import Path

import profforce
from profforce.data.recipes.demo import demo_texts

assert Path(profforce.__file__).is_relative_to(sys.prefix), profforce.__file__
assert files("profforce.conf").joinpath("train.yaml").is_file()
assert len(demo_texts("demo")) > 500
(sdist,) = Path(sys.argv[1]).glob("*.tar.gz")
names = {name.partition("/")[2] for name in tarfile.open(sdist).getnames()}
missing = {"conf/train.yaml", "data/texts/demo.txt", "tests/test_readme.py", "Makefile"} - names
assert not missing, missing
PY

heading "use it"
profforce --version
profforce --help > help.txt
grep -q sample help.txt
profforce doctor
profforce data prepare synthetic data.root=corpus data.num_utterances=24 data.valid_fraction=0.3
profforce train model=tiny data=synthetic data.root=corpus data.num_utterances=24 \
  data.valid_fraction=0.3 trainer.steps=4 trainer.warmup_steps=2 trainer.batch_size=4 \
  method.start_step=1 freerun.pool_size=4 hydra.run.dir=run
profforce sample --run run --text "ba be" --out out > rows.jsonl
python - <<'PY'
import json
from pathlib import Path

(row,) = map(json.loads, Path("rows.jsonl").read_text().splitlines())
for kind in ("wav", "mel", "picture"):
    assert Path(row[kind]).stat().st_size > 100, row
assert Path("run/checkpoints/step-4/model.safetensors").is_file()
logged = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
assert any("imitation/mel" in row for row in logged), "no step of professor forcing was logged"
print(json.dumps(row))
PY
heading "the wheel works"
