"""Compare recipes: each goes on from one checkpoint for the same training time, then free-runs.

    python tools/experiment.py --recipes tools/recipes/synthetic.json --seeds 0,1,2 --minutes 10 \
        --start runs/bed/checkpoints/step-2000 --out out/experiment
    profforce train $(python tools/experiment.py --recipes FILE --words) hydra.run.dir=runs/bed

A recipe is a name and overrides of the start's settings; experiment_recipes.py describes the file.
What is finished is kept: run again with the same settings to go on. Writes results.json, results.md
and results.png; docs/experiments.md says more.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

from experiment_job import CLOCKS, Job, settings_for, write_whole
from experiment_recipes import START, read_recipes
from experiment_report import draw, summary_of, table_of

from profforce.errors import UserError
from profforce.models.checkpoint import find_checkpoint

WORKER = Path(__file__).with_name("experiment_job.py")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0 if all is done, 1 for a mistake of the user or a job that failed."""
    options = _parser().parse_args(argv)
    try:
        plan = read_recipes(options.recipes)
        if options.words:
            print(" ".join(plan["start"]))
            return 0
        jobs = jobs_of(plan, options)
        finished = [job for job in jobs if is_done(job)]
        print(f"{len(finished)} of {len(jobs)} jobs are done", file=sys.stderr)
        todo = finished if options.again else [job for job in jobs if job not in finished]
        with ThreadPoolExecutor(options.jobs) as pool:
            done = list(pool.map(lambda job: work(job, options.out, options.again), todo))
        report(jobs, options.out)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0 if all(done) else 1


def jobs_of(plan: dict[str, Any], options: argparse.Namespace) -> list[Job]:
    """The start's own exam, then every recipe with one seed, then with the next.

    Every job's settings are tried before the first one runs.
    """
    if options.start is None:
        raise UserError("nothing to start from", remedy="give --start RUN, or --words alone")
    for name in ("minutes", "texts", "joined", "min_words", "readings", "jobs"):
        if (given := getattr(options, name)) <= 0:
            raise UserError(f"--{name.replace('_', '-')} must be above 0", got=given)
    start = checkpoint_at(options.start)
    common = {
        "start": str(start),
        "clock": options.clock,
        "num_texts": options.texts,
        "joined": options.joined,
        "min_words": options.min_words,
        "readings": options.readings,
    }
    recipes = [(r["name"], (*plan["common"], *r["overrides"])) for r in plan["recipes"]]
    unknown = set(options.only or ()) - {name for name, _ in recipes}
    if unknown:
        raise UserError(
            "no such recipe",
            where=f"--only {' '.join(sorted(unknown))}",
            expected=", ".join(name for name, _ in recipes),
        )
    wanted = [(START, (), 0, 0.0)] + [
        (name, overrides, seed, 60 * options.minutes)
        for seed in options.seeds
        for name, overrides in recipes
        if (not options.only or name in options.only) and not options.start_only
    ]
    jobs = []
    for name, overrides, seed, seconds in wanted:
        key = name if name == START else f"{name}-seed{seed}"
        run_dir, result = options.out / "runs" / key, options.out / "jobs" / f"{key}.json"
        job = Job(
            name,
            overrides,
            seed,
            run_dir=str(run_dir),
            result=str(result),
            seconds=seconds,
            **common,
        )
        settings_for(job)
        jobs.append(job)
    return jobs


def checkpoint_at(path: Path) -> Path:
    """The checkpoint folder that is meant: itself, or the last one of a run."""
    if (path / "meta.json").is_file():
        return path
    return find_checkpoint(path, "last")


def is_done(job: Job) -> bool:
    """Whether the result of just this job is there.

    Raises :class:`UserError` when another job's result lies in its place.
    """
    path = Path(job.result)
    if not path.is_file():
        return False
    defaults = {each.name: each.default for each in fields(Job) if each.default is not MISSING}
    found = defaults | json.loads(path.read_text(encoding="utf-8"))  # older ones lack the newest
    asked = json.loads(json.dumps(asdict(job)))
    other = [
        key for key in asked if found.get(key) != asked[key] and key not in ("run_dir", "result")
    ]
    if other:
        raise UserError(
            "this result is of other settings",
            where=path,
            got=", ".join(f"{key} {found.get(key)}" for key in other),
            expected=", ".join(f"{key} {asked[key]}" for key in other),
            remedy="give another --out, or remove the file",
        )
    return True


def work(job: Job, out: Path, again: bool = False) -> bool:
    """Do ``job``, or its exam ``again``, in a process of one thread; False if it failed.

    Says how it ended, and where its log is if it failed.
    """
    folder = Path(job.run_dir)
    if folder.exists() and not again:  # left by a job that was killed: its time is not known
        folder.rename(_aside(folder))
    logs = out / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    order, log = logs / f"{folder.name}.job.json", logs / f"{folder.name}.log"
    write_whole(order, asdict(job))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log.open("wb") as file:
        code = subprocess.call(
            [sys.executable, str(WORKER), str(order), *["--again"] * again],
            stdout=file,
            stderr=file,
            env=environment,
        )
    done = code == 0
    said = "done" if done else f"FAILED ({code}), see {log}"
    print(f"{folder.name}: {said}", file=sys.stderr)
    return done


def report(jobs: Sequence[Job], out: Path) -> None:
    """Write the figures of what is done."""
    paths = [Path(job.result) for job in jobs if Path(job.result).is_file()]
    results = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    if not results:
        raise UserError("no job has a result", where=out, remedy=f"see {out / 'logs'}")
    summary = summary_of(results)
    settings = {
        key: value
        for key, value in asdict(jobs[-1]).items()
        if key in ("start", "seconds", "clock", "num_texts", "joined", "min_words", "readings")
    }
    write_whole(out / "results.json", {"settings": settings, **summary})
    (out / "results.md").write_text(table_of(summary), encoding="utf-8")
    draw(summary, out / "results.png")
    print(table_of(summary))


def _aside(folder: Path) -> Path:
    number = 1
    while (aside := folder.with_name(f"{folder.name}.unfinished{number}")).exists():
        number += 1
    return aside


def _seeds(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--recipes", type=Path, required=True, help="JSON file")
    parser.add_argument("--words", action="store_true", help="print the start's overrides and stop")
    parser.add_argument("--start", type=Path, help="RUN or RUN/checkpoints/step-N to go on from")
    parser.add_argument("--out", type=Path, default=Path("out/experiment"))
    parser.add_argument("--seeds", type=_seeds, default=[0], help="such as 0,1,2")
    parser.add_argument("--minutes", type=float, default=10.0, help="of training, each")
    parser.add_argument(
        "--clock",
        choices=list(CLOCKS),
        default="cpu",
        help="count the training's processor time, or wall-clock time (default: %(default)s)",
    )
    parser.add_argument("--texts", type=int, default=60, help="of each exam (default: %(default)s)")
    parser.add_argument("--joined", type=int, default=2, help="texts in one of the longer exam")
    parser.add_argument("--min-words", type=int, default=1, help="of a recording in an exam")
    parser.add_argument("--readings", type=int, default=1, help="free runs of each text, averaged")
    parser.add_argument("--only", nargs="+", help="names of recipes")
    parser.add_argument("--again", action="store_true", help="examine what is done once more")
    parser.add_argument("--start-only", action="store_true", help="examine the start, no recipe")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once, one thread each")
    return parser


if __name__ == "__main__":
    sys.exit(main())
