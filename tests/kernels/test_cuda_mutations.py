"""Faults planted into the CUDA kernels, each of which the emulated checks must find.

A mutant runs in a forked process: it may crash. What counts as found is a wrong result, a result
that depends on the schedule, a deadlock, a crash, or a write beside the results.
"""

import faulthandler
import multiprocessing
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from profforce.kernels import cuda

sys.path.insert(0, str(Path(__file__).parent / "emulation"))

from cuda_cases import BF16, F16, F32, Case, StepCase, build, check
from cuda_emulator import SOURCE, CompileError, EmulatedDevice, EmulationError, split_into, why_not

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(why_not() is not None, reason=why_not() or ""),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
]

PATIENCE_S = 600
SCHEDULES = (1, 2, 3)
SURVIVED, FOUND, NOT_COMPILED = 0, 3, 4


@dataclass(frozen=True)
class Trial:
    """What a mutant is tried on: tiny, so that it is compiled and run in a second."""

    case: Case | StepCase
    arch: str = "90"
    segments: int = 1

    def __str__(self) -> str:
        return f"{self.case}-sm{self.arch}-{self.segments}"


WHOLE = Trial(Case(F32, 2, 70, 1, lengths=(70, 33)))
EXACT = Trial(Case(F32, 1, 40, 2, 5, 3, layout="odd"))
PARTS = Trial(Case(F32, 2, 134, 1, lengths=(65, 130)), segments=3)
SLICED = Trial(Case(F32, 1, 40, 1, 64, 64), "86")  # the gradients' stage is a part of the state
HALVED = Trial(Case(F32, 1, 40, 1, 64, 64), "80")  # the forward's is half
HALF = Trial(Case(BF16, 1, 40, 1, lengths=(39,)))
FLOAT16 = Trial(Case(F16, 1, 40, 1, lengths=(39,)))
SCALAR = Trial(Case(F32, 1, 40, 1, lengths=(39,)), "75")
RELU = Trial(Case(F32, 1, 40, 1, feature_map="relu"))
TINY = Trial(Case(F32, 1, 20, 1, state=False, shift=-8))
STEP = Trial(StepCase(F32))
STEP_ODD = Trial(StepCase(F32, key=5, value=7, layout="odd"))
STEP_TINY = Trial(StepCase(F32, shift=-8, state=False))
TRIALS = (
    *(WHOLE, EXACT, PARTS, SLICED, HALVED, HALF, FLOAT16, SCALAR, RELU, TINY),
    *(STEP, STEP_ODD, STEP_TINY),
)


@dataclass(frozen=True)
class Mutant:
    """A fault: the ``index``-th of ``of`` occurrences of ``old`` becomes ``new``."""

    name: str
    trial: Trial
    old: str
    new: str
    index: int = 0
    of: int = 1

    def __str__(self) -> str:
        return self.name.replace(" ", "-")

    def plant(self, source: str) -> str:
        found = source.count(self.old)
        assert found == self.of, f"'{self.old}' stands {found} times in the source"
        parts = source.split(self.old)
        head, tail = parts[: self.index + 1], parts[self.index + 1 :]
        return self.old.join(head) + self.new + self.old.join(tail)


# Every barrier of the source in its order: what it parts, and the trial that must miss it.
BARRIERS = [
    ("parts of z, their sum", WHOLE),
    ("forward: tiles, products", WHOLE),
    ("forward: stage read, stage filled", HALVED),
    ("forward: stage filled, stage read", HALVED),
    ("forward: scores, output", WHOLE),
    ("forward: chunk, next chunk", WHOLE),
    ("grad_q: tiles, products", WHOLE),
    ("grad_q: stage read, stage filled", SLICED),
    ("grad_q: stage filled, stage read", SLICED),
    ("grad_q: row sums, slopes", WHOLE),
    ("grad_q: scores, gradient", WHOLE),
    ("grad_q: chunk, next chunk", WHOLE),
    ("grad_kv: tiles, products", WHOLE),
    ("grad_kv: stage read, stage filled", SLICED),
    ("grad_kv: stage filled, stage read", SLICED),
    ("grad_kv: scores, values", WHOLE),
    ("grad_kv: scores read, slopes", WHOLE),
    ("grad_kv: slopes, keys", WHOLE),
    ("grad_kv: chunk, next chunk", WHOLE),
    ("states: tiles, sums", PARTS),
    ("states: chunk, next chunk", PARTS),
    ("grad_states: tiles, sums", PARTS),
    ("grad_states: chunk, next chunk", PARTS),
    ("step: inputs, products", STEP),
    ("step: sums, output", STEP),
]
SYNC = "__syncthreads();"

MUTANTS = [
    *(
        Mutant(f"no barrier between {name}", trial, SYNC, "", i, len(BARRIERS))
        for i, (name, trial) in enumerate(BARRIERS)
    ),
    # masks and tails
    Mutant(
        "diagonal masked",
        WHOLE,
        "if (share.col + tile_col(lane, j, i) > share.row + tile_row(lane, i))",
        "if (share.col + tile_col(lane, j, i) >= share.row + tile_row(lane, i))",
    ),
    Mutant("causal mask lost", WHOLE, "share.row + tile_row(lane, i)) p[j][i] = 0.f;", "-1) ;"),
    Mutant(
        "mask of slopes lost",
        WHOLE,
        "row ? 0.f : gv[j][i] * scale + dden",
        "C ? 0.f : gv[j][i] * scale + dden",
    ),
    Mutant(
        "slope above the diagonal",
        WHOLE,
        "tile_col(lane, j, i) <= row) dp",
        "tile_col(lane, j, i) <= C) dp",
    ),
    Mutant("lengths ignored", WHOLE, "lengths && lengths[b] < stop ? lengths[b] : stop", "stop"),
    Mutant("tail of a chunk read", WHOLE, "end - t0 < C ? (int)(end - t0) : C", "C"),
    Mutant("tail of a chunk read as whole", EXACT, "if (row < live) {", "if (row <= live) {"),
    Mutant("output's tail written", EXACT, "if (row >= live) continue;", "", 0, 4),
    Mutant("padding of out left", WHOLE, "  zero_padding(out, in, in.value_width);", ""),
    Mutant("padding of dq left", WHOLE, "  zero_padding(dq, in, in.key_width);", ""),
    Mutant("padding of dk left", WHOLE, "  zero_padding(dk, in, in.key_width);", ""),
    Mutant("padding of dv left", WHOLE, "  zero_padding(dv, in, in.value_width);", ""),
    Mutant(
        "mapped padding of the width",
        EXACT,
        "col + j < width ? change(row, y.x[j]) : 0.f",
        "change(row, y.x[j])",
    ),
    Mutant("store beyond the width", EXACT, "if (col + 1 < width) row[col + 1]", "row[col + 1]"),
    # fragments and products
    Mutant(
        "registers of the left operand swapped",
        WHOLE,
        "{top[i], bottom[i], top[i + 1], bottom[i + 1]}",
        "{top[i], top[i + 1], bottom[i], bottom[i + 1]}",
    ),
    Mutant(
        "registers of the right operand swapped",
        WHOLE,
        "right[2] = {b[i], b[i + 1]}",
        "right[2] = {b[i + 1], b[i]}",
    ),
    Mutant(
        "accumulator's rows swapped",
        WHOLE,
        "(lane >> 2) + 8 * (i >> 1)",
        "(lane >> 2) + 8 * (i & 1)",
    ),
    Mutant("low part of the left lost", WHOLE, "if (A_LOW) mma_part", "if (false) mma_part"),
    Mutant("low part of the right lost", WHOLE, "if (B_LOW) mma_part", "if (false) mma_part"),
    Mutant("low part of bfloat16 lost", HALF, "if (A_LOW) mma_part", "if (false) mma_part"),
    Mutant(
        "low part of float16 values lost",
        FLOAT16,
        "RAW_LOW = PF_TYPE != 1",
        "RAW_LOW = PF_TYPE == 0",
    ),
    Mutant(
        "pair swapped", HALF, "s.high[i] = pf_pack_bf16(x, y)", "s.high[i] = pf_pack_bf16(y, x)"
    ),
    Mutant(
        "wrong low part",
        HALF,
        "x - __uint_as_float(s.high[i] << 16)",
        "x - __uint_as_float(s.high[i])",
    ),
    Mutant("rounded towards zero", HALF, "((u + 0x7fff + (u >> 16 & 1)) >> 16)", "(u >> 16)"),
    Mutant(
        "rows mixed without tensor cores",
        SCALAR,
        "acc[j][2] += bottom * left",
        "acc[j][2] += top * left",
    ),
    Mutant(
        "scores of the last tile lost",
        WHOLE,
        "WidthColumns{sh.v, value.col, 0}, 0, value.row + 16",
        "WidthColumns{sh.v, value.col, 0}, 0, value.row",
    ),
    Mutant(
        "keys of the last tile lost",
        WHOLE,
        "WidthColumns{sh.k, col0, 0}, 0, part.row + 16",
        "WidthColumns{sh.k, col0, 0}, 0, part.row",
    ),
    Mutant(
        "queries of the first tile lost",
        WHOLE,
        "WidthColumns{sh.q, col0, 0}, part.row, C",
        "WidthColumns{sh.q, col0, 0}, part.row + 16, C",
    ),
    Mutant("tiles overlap", WHOLE, "((row & 12) << 1)", "((row & 12) << 3)"),
    Mutant(
        "slice of the state mistaken",
        HALVED,
        "WidthRows{sh.q, value.row, slice * STAGE}",
        "WidthRows{sh.q, value.row, 0}",
    ),
    # the normaliser
    Mutant("no eps", TINY, "return sum + PF_EPS;", "return sum;"),
    Mutant(
        "earlier keys not in the normaliser", WHOLE, "float sum = sh.qz[row];", "float sum = 0.f;"
    ),
    Mutant("z counted by every group", WHOLE, "z0 && z_group == 0 && z_col", "z0 && z_col"),
    Mutant("z not carried on", WHOLE, "z += weight(row) * a[at<LD>(row, z_col)]", "z += 0.f"),
    # gradients
    Mutant(
        "sign of the slope", WHOLE, "return -dot * scale * scale;", "return dot * scale * scale;"
    ),
    Mutant("slope divided once", WHOLE, "return -dot * scale * scale;", "return -dot * scale;"),
    Mutant("slope without earlier chunks", WHOLE, "dot += sh.qx[i * C + row]", "dot += 0.f"),
    Mutant("slope without this chunk", WHOLE, "dot += sh.dots[i * C + row]", "dot += 0.f"),
    Mutant(
        "dq without z",
        WHOLE,
        "x[slice][j][i] * scale + dden * sh.z",
        "x[slice][j][i] * scale + 0.f * sh.z",
    ),
    Mutant("dq without the slope", WHOLE, "gv[j][i] * scale + dden", "gv[j][i] * scale"),
    Mutant("dk without the slope", WHOLE, "dp[j][i] += sh.dd[row];", ";"),
    Mutant("dk without r", WHOLE, "(keys[slice][j][i] + sh.z[col])", "(keys[slice][j][i])"),
    Mutant(
        "r weighed wrongly",
        WHOLE,
        "[&](int row) { return sh.dd[row]; }",
        "[&](int row) { return 1.f; }",
    ),
    Mutant("dv without the normaliser", WHOLE, "return x / den[row];", "return x;"),
    Mutant("slope of elu", WHOLE, "return fminf(phi, 1.f)", "return 1.f"),
    Mutant("slope of relu", RELU, "map == RELU && !(phi > 0.f) ? 0.f : 1.f", "1.f"),
    Mutant("relu forgotten", RELU, "map == RELU && x < 0.f ? 0.f : x", "x"),
    # the state and its segments
    Mutant("last state not written", WHOLE, "if (s1)\n", "if (false)\n", 0, 2),
    Mutant("gradient of the first state not written", WHOLE, "if (s1)\n", "if (false)\n", 1, 2),
    Mutant(
        "batch and head swapped",
        WHOLE,
        "b(bh / heads_), h(bh % heads_)",
        "b(bh % heads_), h(bh / heads_)",
    ),
    Mutant(
        "forward from another segment",
        PARTS,
        "place = in.bh * gridDim.y + blockIdx.y",
        "place = in.bh * gridDim.y",
        0,
        3,
    ),
    Mutant(
        "grad_q from another segment",
        PARTS,
        "place = in.bh * gridDim.y + blockIdx.y",
        "place = in.bh * gridDim.y",
        1,
        3,
    ),
    Mutant(
        "grad_kv from another segment",
        PARTS,
        "place = in.bh * gridDim.y + blockIdx.y",
        "place = in.bh * gridDim.y",
        2,
        3,
    ),
    Mutant(
        "prefix with its own segment",
        PARTS,
        "    *here = carry;\n    carry += sum;",
        "    carry += sum;\n    *here = carry;",
    ),
    Mutant("prefix in the wrong direction", PARTS, "backwards ? segments - 1 - i : i", "i"),
    Mutant("prefix without the first state", PARTS, "first ? first[at_end] : 0.f", "0.f"),
    Mutant("prefix keeps the sum", PARTS, "if (s1) (in_s ? s1 : z1)[at_end] = carry;", ""),
    # the step
    Mutant("step: state not written", STEP, "if (packed) *(Four*)here = now;", ""),
    Mutant(
        "step: odd state not written",
        STEP_ODD,
        "if (!packed && col + i < values) here[i] = now.x[i];",
        "",
    ),
    Mutant(
        "step: write beyond the row",
        STEP_ODD,
        "if (!packed && col + i < values) here[i] = now.x[i];",
        "if (!packed) here[i] = now.x[i];",
    ),
    Mutant("step: z not written", STEP, "z[bh * keys + i] = now;", ""),
    Mutant(
        "step: normaliser one step late",
        STEP,
        "sum += sq[i] * now;",
        "sum += sq[i] * (now - sk[i]);",
    ),
    Mutant(
        "step: readout one step late",
        STEP,
        "acc.x[i] += sq[row] * now.x[i];",
        "acc.x[i] += sq[row] * (now.x[i] - sk[row] * sv[col + i]);",
    ),
    Mutant("step: no eps", STEP_TINY, "*den = sum + PF_EPS;", "*den = sum;"),
]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cuda-mutants")


@pytest.mark.parametrize("trial", TRIALS, ids=str)
def test_the_source_as_it_is_passes_every_trial(trial: Trial, folder: Path) -> None:
    assert _outcome(trial, SOURCE, folder) == SURVIVED


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_planted_fault_is_found(mutant: Mutant, folder: Path, tmp_path: Path) -> None:
    source = tmp_path / SOURCE.name
    source.write_text(mutant.plant(SOURCE.read_text(encoding="utf-8")), encoding="utf-8")
    outcome = _outcome(mutant.trial, source, folder)
    assert outcome != NOT_COMPILED
    assert outcome != SURVIVED, "nothing noticed the fault"


def test_every_barrier_has_its_mutant() -> None:
    assert SOURCE.read_text(encoding="utf-8").count(SYNC) == len(BARRIERS)


def _outcome(trial: Trial, source: Path, folder: Path) -> int:
    """The exit code of the trial in a process of its own; negative: ended by a signal."""
    whole = trial.case if isinstance(trial.case, Case) else trial.case.whole()
    build(whole)  # once, here
    process = multiprocessing.get_context("fork").Process(
        target=_try, args=(trial, source, folder), daemon=True
    )
    process.start()
    process.join(PATIENCE_S)
    outcome = process.exitcode
    process.kill()
    assert outcome is not None, "the trial takes too long"
    return outcome


def _try(trial: Trial, source: Path, folder: Path) -> None:
    faulthandler.disable()  # a crash is a result here
    torch.set_num_threads(1)
    device = EmulatedDevice(folder, trial.arch, source=source)
    cuda._kernel.cache_clear()
    cuda._device = lambda _: device
    cuda.split = split_into(trial.segments)
    first: dict[str, torch.Tensor] = {}
    for seed in SCHEDULES:
        device.schedule[0] = seed
        try:
            problems, got = check(trial.case)
        except EmulationError:
            os._exit(FOUND)
        except CompileError:
            os._exit(NOT_COMPILED)
        first = first or got
        if problems or not all(torch.equal(got[name], first[name]) for name in got):
            os._exit(FOUND)
    os._exit(SURVIVED)
