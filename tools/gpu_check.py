"""Check and time the CUDA kernels on the GPU of this machine; see gpu_check.sh.

    python tools/gpu_check.py --json out/gpu_check.json

In turn, each in a process of its own with what is left of the time as its limit: compile every
kernel for the device; run tests/gpu; time forward, backward and recurrent step beside softmax
attention and the floor that the memory's speed sets; do so again in turn with
flash-linear-attention, where that is installed; time whole free runs by CUDA graphs and by the
modules; run the other suites of profforce bench at sizes that fill a GPU; look for memory errors
and races with compute-sanitizer, where that is.
Exits with 0 if all is well, 1 if a step failed, 2 without a GPU.
"""

import argparse
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MINUTES = 7.5
HEADS, STEPS, WIDTH = 8, 2000, 64
DTYPES = ("bfloat16", "float32")
SUITE_FILE = "suite-"
"""Beginning of the names of the files that the suites leave."""
SANITIZERS = ("memcheck", "racecheck")
LAYERS = 4
MODEL = (
    "model.width=512",
    "model.feedforward_width=2048",
    "model.num_heads=8",
    "model.decoder_layers=4",
    "model.reduction_factor=1",
    "freerun.batch_size=8",
    "trainer.batch_size=8",
)
"""Of the suites that time a training: one frame a step, as the recurrent form likes it least."""
SUITES: dict[str, tuple[tuple[str, ...], float]] = {
    "attention": ((), 110),
    "decode": ((), 40),
    "train": (("shapes=[8x500x40]", *MODEL), 80),
    "epoch": (("shapes=[8x500x40]", *MODEL), 90),
}
"""Settings of each suite and its most seconds; those of attention depend on the memory."""
FREE_RUN_BATCHES, FREE_RUN_FRAMES = (1, 32, 128), 500
GRAPH_STEPS = 64
"""Recurrent steps captured into one CUDA graph, so that their time is not that of launching."""


@dataclass(frozen=True)
class Step:
    """One part of the check."""

    name: str
    command: list[str]
    limit_s: float
    """Most seconds it may take, so that one that hangs leaves time for the others."""
    skip: str | None = None
    """Why it is left out; that is no failure."""


@dataclass(frozen=True)
class Outcome:
    """How a step went."""

    name: str
    state: str
    """ok, failed or skipped."""
    seconds: float
    detail: str


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line: 0 all is well, 1 something failed, 2 no GPU or a mistake."""
    options = _parser().parse_args(argv)
    if problem := no_gpu():
        print(f"error: {problem}", file=sys.stderr)
        return 2
    if options.part:
        PARTS[options.part](options)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        outcomes = run_steps(plan(Path(folder), options.batch), 60 * options.minutes)
        result = {"steps": [asdict(outcome) for outcome in outcomes], **collect(Path(folder))}
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(table(result))
    return int(any(outcome.state == "failed" for outcome in outcomes))


def no_gpu() -> str | None:
    """Why nothing can be checked here; None if it can."""
    try:
        import torch
    except ImportError as err:
        return f"PyTorch cannot be imported: {err}"
    if not torch.cuda.is_available():
        return "there is no CUDA device here; run this on a machine with an NVIDIA GPU"
    return None


def plan(folder: Path, batch: int | None) -> list[Step]:
    """What to do, in order; results are written into ``folder``."""
    this = [sys.executable, str(Path(__file__).resolve()), "--folder", str(folder)]
    if batch is not None:
        this += ["--batch", str(batch)]
    tests = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
    no_pytest = None if importlib.util.find_spec("pytest") else "pytest is not installed"
    sanitizer = shutil.which("compute-sanitizer")
    absent = None if sanitizer else "compute-sanitizer is not installed"
    no_peers = None if has_fla() else "flash-linear-attention is not installed"
    return [
        Step("build", [*this, "--part", "build"], 150),
        Step("tests", [*tests, str(ROOT / "tests/gpu")], 120, no_pytest),
        Step("times", [*this, "--part", "times"], 90),
        Step("peers", [*this, "--part", "peers"], 60, no_peers),
        Step("free_run", [*this, "--part", "free_run"], 75),
        *(Step(name, suite(name, folder, batch), limit) for name, (_, limit) in SUITES.items()),
        *(
            Step(
                tool,
                [sanitizer or "", "--tool", tool, "--error-exitcode", "9", *this, "--part", "tiny"],
                60,
                absent,
            )
            for tool in SANITIZERS
        ),
    ]


def suite(name: str, folder: Path, batch: int | None) -> list[str]:
    """The command that runs a suite of the bench into ``folder``."""
    words, _ = SUITES[name]
    if name == "attention":
        sizes = f"{STEPS}x{LAYERS}x{HEADS}x{HEADS * WIDTH}"
        most = min(batch or 128, stack_batch())
        words = (f"shapes=[{','.join(f'{b}x{sizes}' for b in sorted({min(8, most), most}))}]",)
    command = [sys.executable, "-m", "profforce", "bench", f"suite={name}", "device=cuda", *words]
    options = ["repeats=3", "peers=true", "--json", str(folder / f"{SUITE_FILE}{name}.json")]
    return [*command, *options]


def stack_batch() -> int:
    """Utterances whose activations in a stack of layers fit into the memory that is free."""
    import torch

    free = torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else 2**40
    return fitting_batch(free, tensors=40 * LAYERS)


def run_steps(steps: Sequence[Step], seconds: float) -> list[Outcome]:
    """Run every step, whatever became of the others, within ``seconds`` altogether."""
    began, outcomes = time.monotonic(), []
    for step in steps:
        print(f"{step.name} ...", file=sys.stderr, flush=True)
        left = seconds - (time.monotonic() - began)
        outcomes.append(_run(step, min(step.limit_s, left)))
        done = outcomes[-1]
        print(f"{step.name}: {done.state} after {done.seconds:.0f} s", file=sys.stderr, flush=True)
        if done.state == "failed":
            print(done.detail, file=sys.stderr, flush=True)
    return outcomes


def _run(step: Step, limit_s: float) -> Outcome:
    if step.skip is not None:
        return Outcome(step.name, "skipped", 0.0, step.skip)
    if limit_s <= 0:
        return Outcome(step.name, "failed", 0.0, "there was no time left for it")
    began = time.monotonic()
    try:
        done = subprocess.run(
            step.command, capture_output=True, text=True, timeout=limit_s, cwd=ROOT
        )
    except subprocess.TimeoutExpired:
        return Outcome(step.name, "failed", limit_s, f"it ran past {limit_s:.0f} s")
    seconds = time.monotonic() - began
    lines = f"{done.stdout}\n{done.stderr}".strip().splitlines()
    if done.returncode != 0:
        tail = "\n".join(lines[-30:])
        return Outcome(step.name, "failed", seconds, f"exit code {done.returncode}\n{tail}")
    return Outcome(step.name, "ok", seconds, (done.stdout.strip().splitlines() or [""])[-1])


def collect(folder: Path) -> dict[str, Any]:
    """What the parts left behind."""
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text())
        if path.stem.startswith(SUITE_FILE):
            found.setdefault("suites", {})[path.stem.removeprefix(SUITE_FILE)] = result
        else:
            found |= result
    return found


def table(result: dict[str, Any]) -> str:
    """For people: the steps, then the times beside their floors."""
    lines = [
        f"{step['name']:<10} {step['state']:<8} {step['seconds']:6.1f} s  "
        f"{step['detail'].splitlines()[0] if step['detail'] else ''}"
        for step in result["steps"]
    ]
    if rows := result.get("rows"):
        place = result["environment"]
        lines += [
            "",
            f"{place['device']}, torch {place['torch']}, {place['copy_gb_s']:.0f} GB/s",
            "",
        ]
        titles = ("type", "form", "ms", "IQR", "floor", "x floor", "MiB", "error")
        shape = "{:<9} {:<16} {:>9} {:>8} {:>8} {:>8} {:>8} {:>9}"
        lines.append(shape.format(*titles))
        lines += [shape.format(*_cells(row)) for row in rows]
        if peer_rows := result.get("peer_rows"):
            lines += ["", "in turn with flash-linear-attention:"]
            lines += [shape.format(*_cells(row)) for row in peer_rows]
    for name, found in result.get("suites", {}).items():
        lines += ["", f"suite {name}:", *map(_suite_line, found["rows"])]
        if best := found.get("recommended"):
            lines.append(f"recommended: {best['overrides']} ({best['ratio']:.2f} x)")
    return "\n".join(lines)


def _suite_line(row: dict[str, Any]) -> str:
    case = " ".join(f"{size}={number}" for size, number in row["case"].items())
    memory = "" if row["peak_mib"] is None else f"{row['peak_mib']:9.0f} MiB"
    return f"{case:<32} {row['form']:<42} {row['ms_median']:11.3f} ms {memory}"


def _cells(row: dict[str, Any]) -> list[str]:
    floor = row["floor_ms"]
    return [
        row["dtype"],
        row["form"],
        f"{row['ms_median']:.4f}",
        f"{row['ms_iqr']:.4f}",
        f"{floor:.4f}" if floor else "",
        f"{row['ms_median'] / floor:.2f}" if floor else "",
        "" if row["peak_mib"] is None else f"{row['peak_mib']:.0f}",
        "" if row["error"] is None else f"{row['error']:.1e}",
    ]


# ---------------------------------------------------------------- parts, each in its own process


def part_build(options: argparse.Namespace) -> None:
    """Compile every kernel for the device; the figures go into build.json."""
    from profforce.doctor import build

    builds = build([], lambda label, done, total: None)
    _leave(options, "build", {"kernels": [asdict(row) for row in builds]})
    errors = [row.error for row in builds if row.error]
    if errors:
        sys.exit("\n".join(errors))
    spills = sum(bool(row.spill_bytes) for row in builds)
    print(f"{len(builds)} kernels, {spills} of them spill registers")


def part_tiny(options: argparse.Namespace) -> None:
    """Each kernel once on tiny inputs, for compute-sanitizer."""
    import torch

    from profforce.kernels.ops import causal_linear_attention, causal_linear_step
    from profforce.kernels.state import empty_state

    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for key_width, value_width in ((32, 32), (40, 24), (128, 64)):
            shape = (2, 200, 2, key_width)
            q, k = (
                torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True) for _ in "qk"
            )
            v = torch.randn(2, 200, 2, value_width, device="cuda", dtype=dtype, requires_grad=True)
            lengths = torch.tensor([200, 77], device="cuda")
            state = empty_state(2, 2, key_width, value_width, like=q)
            out, last = causal_linear_attention(q, k, v, lengths=lengths, state=state)
            (out.float().sum() + last.s.sum() + last.z.sum()).backward()
            with torch.no_grad():
                causal_linear_step(q[:, 0], k[:, 0], v[:, 0], state)
    torch.cuda.synchronize()
    print("forward, backward and step of three types and widths")


def part_times(options: argparse.Namespace) -> None:
    """Forward, backward and step at a size that fills the device; into times.json."""
    place, rows = measure(options.batch, peers=False)
    _leave(options, "times", {"environment": place, "rows": rows})
    print(f"{rows[0]['case']}")


def part_peers(options: argparse.Namespace) -> None:
    """The same in turn with flash-linear-attention; into peers.json."""
    _, rows = measure(options.batch, peers=True)
    _leave(options, "peers", {"peer_rows": rows})
    print(f"{rows[0]['case']}")


def part_free_run(options: argparse.Namespace) -> None:
    """Whole free runs by CUDA graphs and by the modules; into suite-free_run.json."""
    import torch

    from profforce.models import graphs

    device = torch.device("cuda", torch.cuda.current_device())
    most = options.batch or max(FREE_RUN_BATCHES)
    rows = []
    for attention in ("linear", "softmax"):
        model = free_running_model(device, attention)
        if problem := graphs.obstacle(model):
            sys.exit(f"graphs cannot run the model: {problem}")
        for batch in (b for b in FREE_RUN_BATCHES if b <= most):
            rows += free_run_rows(model, batch, FREE_RUN_FRAMES)
        if problem := graphs.obstacle(model):
            sys.exit(f"graphs could not run the model: {problem}")
    _leave(options, f"{SUITE_FILE}free_run", {"rows": rows})
    if wrong := [row["form"] for row in rows if is_far(row)]:
        sys.exit(f"far from the modules' frames: {', '.join(wrong)}")
    print(f"{FREE_RUN_FRAMES} frames, {len(rows)} rows")


def free_running_model(device: Any, attention: str, width: int = HEADS * WIDTH) -> Any:
    """One frame a step, and nobody stops."""
    import torch

    from profforce.config import ModelConfig
    from profforce.models.transformer import TransformerTTS

    config = ModelConfig(
        attention=attention,
        width=width,
        num_heads=HEADS,
        feedforward_width=4 * width,
        decoder_layers=LAYERS,
        reduction_factor=1,
    )
    torch.manual_seed(0)
    model = TransformerTTS(config, 40, 80).to(device).eval()
    torch.nn.init.constant_(model.stop_out.bias, -50.0)
    return model


def free_run_rows(model: Any, batch: int, frames: int, repeats: int = 3) -> list[dict[str, Any]]:
    """Milliseconds of a run whose utterances end between half of ``frames`` and all."""
    from profforce.bench.timing import interleave, spread

    forms = free_run_forms(model, batch, frames)
    truth = forms["plain"]()
    errors = {name: _distance(run(), truth) for name, run in forms.items()}
    times = interleave(forms, repeats=repeats, warmup=1, device=model.mel_mean.device)
    case = {"B": batch, "T": frames}
    rows = []
    for name, values in times.items():
        median, iqr = spread(values)
        rows.append(
            {
                "suite": "free_run",
                "case": case,
                "form": f"{model.config.attention}_{name}",
                "ms_median": median,
                "ms_iqr": iqr,
                "peak_mib": None,
                "error": errors[name],
            }
        )
    return rows


def free_run_forms(model: Any, batch: int, frames: int) -> dict[str, Callable[[], Any]]:
    """Each gives the normalised frames ``[B, T, M]`` that it made."""
    import torch

    from profforce.models import graphs
    from profforce.models.free_run import Outputs
    from profforce.models.mirror import Mirror
    from profforce.nn.noise import PrenetNoise

    device = model.mel_mean.device
    symbols = torch.randint(1, 40, (batch, 80), generator=torch.Generator().manual_seed(0))
    numbers = torch.arange(batch, device=device)
    given: dict[str, Any] = {
        "symbols": symbols.to(device),
        "symbol_lengths": torch.full((batch,), 80, device=device),
        "max_frames": torch.linspace(frames / 2, frames, batch, device=device).ceil().long(),
        "noise": PrenetNoise(0, numbers),
        "speakers": None,
        "stop_threshold": 0.5,
    }

    def by_graphs(precision: str, compact: bool) -> Any:
        steps = int(given["max_frames"].max())
        out = Outputs.allocate(model, given["symbols"], steps, alignments=False)
        graphs.run_on_device(model, outputs=out, precision=precision, compact=compact, **given)
        return out.finish(model, None).mel

    def plain() -> Any:
        kept = {"refine": False, "alignments": False}
        return Mirror(model).free_run(plain=True, **kept, **given).mel

    return {
        "plain": plain,
        "graphs": lambda: by_graphs("float32", True),
        "graphs_of_all_rows": lambda: by_graphs("float32", False),
        "graphs_bfloat16": lambda: by_graphs("bfloat16", True),
    }


def is_far(row: dict[str, Any]) -> bool:
    """Whether frames in float32 differ by more than rounding; those in bfloat16 only count."""
    return "bfloat16" not in row["form"] and not row["error"] < 1e-3


def _distance(ours: Any, truth: Any) -> float:
    """Root mean square of the difference relative to the deviation of ``truth``."""
    return float((ours - truth).square().mean().sqrt() / truth.std())


def has_fla() -> bool:
    """Is flash-linear-attention installed?"""
    return importlib.util.find_spec("fla") is not None


def measure(batch: int | None, *, peers: bool) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(what the figures depend on, a row a type and form)."""
    import torch

    from profforce.bench.machine import environment
    from profforce.config import BenchConfig, BenchDtype

    device = torch.device("cuda", torch.cuda.current_device())
    batch = batch or fitting_batch(torch.cuda.mem_get_info(device)[0])
    rate = copy_rate(device)
    rows: list[dict[str, Any]] = []
    for name in DTYPES:
        config = BenchConfig(
            shapes=[f"{batch}x{HEADS}x{STEPS}x{WIDTH}"],
            device=str(device),
            dtype=BenchDtype(name),
            repeats=10,
            warmup=2,
            peers=peers,
        )
        rows += [_with_floor(row, name, rate) for row in attention_rows(config)]
        rows += [_with_floor(row, name, rate) for row in step_rows(batch, name, device, peers)]
        torch.cuda.empty_cache()
    return {**environment(config, device), "copy_gb_s": rate / 1e9}, rows


def fitting_batch(free_bytes: int, tensors: int = 20) -> int:
    """128, or less where so many float32 tensors of the inputs' size would not fit."""
    utterance = HEADS * STEPS * WIDTH * 4
    return max(1, min(128, int(free_bytes / (tensors * utterance))))


def copy_rate(device: Any) -> float:
    """Bytes a second that the device's memory reads and writes in a plain copy."""
    import torch

    from profforce.bench.timing import interleave, spread

    size = min(2**30, torch.cuda.mem_get_info(device)[0] // 8)
    a, b = (torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2))
    times = interleave({"copy": lambda: b.copy_(a)}, repeats=10, warmup=3, device=device)
    return 2 * size / (1e-3 * spread(times["copy"])[0])


def attention_rows(config: Any) -> list[dict[str, Any]]:
    """The kernel suite's rows at one size and type."""
    from profforce.bench.report import to_json
    from profforce.bench.run import run_suite

    rows: list[dict[str, Any]] = json.loads(to_json(run_suite(config, lambda *_: None)))["rows"]
    return rows


def step_rows(batch: int, dtype_name: str, device: Any, peers: bool) -> list[dict[str, Any]]:
    """One recurrent step a call, replayed from CUDA graphs."""
    import torch

    from profforce.bench.timing import interleave, spread

    dtype = getattr(torch, dtype_name)
    q, k, v = (torch.randn(batch, HEADS, WIDTH, device=device, dtype=dtype) for _ in range(3))
    graphs = {name: capture(step) for name, step in step_forms(q, k, v, peers).items()}
    runs = {name: graph.replay for name, graph in graphs.items()}
    times = interleave(runs, repeats=20, warmup=3, device=device)
    rows = []
    for name, values in times.items():
        median, iqr = spread([value / GRAPH_STEPS for value in values])
        rows.append(
            {
                "suite": "kernel",
                "case": {"B": batch, "H": HEADS, "T": 1, "K": WIDTH},
                "form": name,
                "ms_median": median,
                "ms_iqr": iqr,
                "peak_mib": None,
                "error": None,
            }
        )
    return rows


def step_forms(q: Any, k: Any, v: Any, peers: bool) -> dict[str, Callable[[], object]]:
    """Each keeps its own state, which its calls update."""
    import torch

    from profforce.kernels.ops import causal_linear_step
    from profforce.kernels.state import elu_plus_one, empty_state

    state = empty_state(q.shape[0], HEADS, WIDTH, WIDTH, like=q)

    def ours() -> Any:
        with torch.no_grad():
            return causal_linear_step(q, k, v, state)[0]

    forms: dict[str, Callable[[], object]] = {"ours_step": ours}
    if peers:
        from fla.ops.linear_attn import fused_recurrent_linear_attn

        theirs = [torch.zeros_like(state.s), torch.zeros_like(state.z)[:, None]]
        values = v[:, None]

        def fla() -> None:
            with torch.no_grad():
                _, theirs[:] = fused_recurrent_linear_attn(
                    elu_plus_one(q)[:, None],
                    elu_plus_one(k)[:, None],
                    values,
                    scale=1.0,
                    initial_state=tuple(theirs),
                    output_final_state=True,
                    normalize=True,
                )

        forms["fla_step"] = fla
    return forms


def capture(step: Callable[[], object]) -> Any:
    """A CUDA graph of ``GRAPH_STEPS`` calls, after one that compiles what is needed."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(GRAPH_STEPS):
            step()
    return graph


def floor_bytes(form: str, case: dict[str, int], element_bytes: int) -> int | None:
    """Bytes that linear attention must move: inputs read once, results written once.

    Forward q, k, v and output; backward these inputs again, the output's gradient and three
    gradients; a step reads and writes the state in float32.
    """
    heads = case["B"] * case["H"]
    if form.endswith("_step"):
        state = 4 * heads * case["K"] * (case["K"] + 1)
        return 2 * state + 4 * heads * case["K"] * element_bytes
    if form.startswith(("sdpa", "gemm")):
        return None
    tensor = heads * case["T"] * case["K"] * element_bytes
    return tensor * (11 if form.endswith("_fwdbwd") else 4)


def _with_floor(row: dict[str, Any], dtype: str, rate: float) -> dict[str, Any]:
    moved = floor_bytes(row["form"], row["case"], 2 if dtype == "bfloat16" else 4)
    floor = None if moved is None else 1e3 * moved / rate
    return {**row, "dtype": dtype, "floor_ms": floor}


def _leave(options: argparse.Namespace, name: str, result: dict[str, Any]) -> None:
    if options.folder is not None:
        (options.folder / f"{name}.json").write_text(json.dumps(result), encoding="utf-8")


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "build": part_build,
    "tiny": part_tiny,
    "times": part_times,
    "peers": part_peers,
    "free_run": part_free_run,
}


def _positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be > 0, got {text}")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be >= 1, got {value}")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything found")
    parser.add_argument(
        "--minutes", type=_positive, default=MINUTES, help="for everything; default: %(default)s"
    )
    parser.add_argument("--batch", type=_count, help="utterances; default: 128, or what fits")
    parser.add_argument("--part", choices=sorted(PARTS), help="run this part alone, here")
    parser.add_argument("--folder", type=Path, help="where --part leaves its figures")
    return parser


if __name__ == "__main__":
    sys.exit(main())
