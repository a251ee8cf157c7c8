"""Speak with exported graphs: NumPy and ONNX Runtime alone, no torch.

This file imports nothing else of profforce: ``profforce export`` puts a copy of it beside the
graphs, and the folder then runs wherever ``numpy`` and ``onnxruntime`` are installed.

    voice = OnnxVoice("folder")
    (spoken,) = voice.speak([voice.numbers("hello.")], seed=0)
    numpy.save("hello.npy", spoken.mel)

The mel is that of the first take of ``profforce sample`` with the same seed: same noise, same stop,
same tail. Faults are not looked for and nothing is tried again.

Shapes: B batch, S symbols, T mel frames, R reduction factor, M mel channels, P prenet layers,
W prenet width, G guided heads, U decoder steps.
"""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FORMAT = 1
NOISE_STEPS = 64
"""Steps whose noise is drawn at once."""
_MASK = 0xFFFFFFFF
_MULTIPLIER = 0x45D9F3B

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Spoken:
    """One text, spoken."""

    mel: Floats
    """``[T, M]``, natural-log amplitude."""
    stop_probability: Floats
    """``[T]``"""
    alignment: Floats
    """``[G, U, S]``, attention of the guided heads."""
    stopped: bool
    """The stop head ended it; otherwise it is as long as it may be."""


class OnnxVoice:
    """The graphs of one run."""

    def __init__(self, folder: str | Path, *, num_threads: int = 1) -> None:
        """Load ``folder`` as ``profforce export`` wrote it.

        Raises:
            ValueError: if it holds no such export, or one of another format.
        """
        import onnxruntime

        folder = Path(folder)
        self.meta = _read_meta(folder / "meta.json")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = num_threads
        self._sessions = {
            name: onnxruntime.InferenceSession(
                str(folder / file), options, providers=["CPUExecutionProvider"]
            )
            for name, file in self.meta["graphs"].items()
        }
        self.symbols: list[str] = self.meta["tokenizer"]["symbols"]
        self._numbers = {symbol: number for number, symbol in enumerate(self.symbols)}

    def numbers(self, text: str) -> list[int]:
        """Symbols of ``text``, which is written as the model reads it: nothing is spelt out.

        Raises:
            ValueError: for characters that are not in the alphabet.
        """
        unknown = sorted({symbol for symbol in text if symbol not in self._numbers})
        if unknown or not text:
            raise ValueError(f"no text of this alphabet: {text!r}, unknown {unknown}")
        return [*(self._numbers[symbol] for symbol in text), self._numbers["<eos>"]]

    def identity(self, numbers: Sequence[int]) -> int:
        """The text's own 32 bits of the noise: ``profforce sample`` draws by them."""
        text = "".join(
            self.symbols[n] for n in numbers if self.symbols[n] not in ("<pad>", "<eos>")
        )
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).digest()
        return int.from_bytes(digest, "little")

    def speak(
        self,
        texts: Sequence[Sequence[int]],
        *,
        seed: int = 0,
        speakers: Sequence[int] | None = None,
        identities: Sequence[int] | None = None,
    ) -> list[Spoken]:
        """Free-run a batch.

        Args:
            texts: symbol numbers of each, end-of-sentence included; never empty.
            seed: of the prenet's noise.
            speakers: number of the speaker of each text; the first when None.
            identities: of the noise of each text; :meth:`identity` when None.

        Raises:
            ValueError: for no text, and for numbers that are no symbols or speakers.
        """
        self._check(texts, speakers)
        if identities is not None and len(identities) != len(texts):
            raise ValueError(f"give an identity a text, got {len(identities)} for {len(texts)}")
        rows = _Rows([self._limits(len(text)) for text in texts], self.meta)
        who = np.array(identities or [self.identity(text) for text in texts], dtype=np.int64)
        memory = self._encode(texts, speakers)
        states = self._first_states(len(texts), max(map(len, texts)))
        frames = np.zeros((len(texts), rows.frames_a_step * self.meta["mel"]["num_mels"]), "f4")
        step, kept = 0, np.zeros(0, bool)
        while rows.running(step):
            if step % NOISE_STEPS == 0:
                kept = kept_by_dropout(self.meta["prenet"], seed, who, step, NOISE_STEPS)
            feed = {"step": np.array(step), "frames": frames, "kept": kept[step % NOISE_STEPS]}
            frames, stop, alignment, *after = self._run(
                "decoder_step", {**feed, **memory, **states}
            )
            states = dict(zip(states, after, strict=True))
            rows.add(step, frames, stop, alignment)
            step += 1
        return self._spoken(rows, [len(text) for text in texts])

    def _spoken(self, rows: "_Rows", num_symbols: Sequence[int]) -> list[Spoken]:
        size = rows.frames_a_step
        mel = np.stack(rows.frames, 1).reshape(len(num_symbols), -1, self.meta["mel"]["num_mels"])
        stop = np.concatenate(rows.stop, 1)
        alignments = np.stack(rows.alignments, 2)
        (refined,) = self._run("postnet", {"frames": mel, "lengths": rows.wanted})
        spoken = []
        for row, count in enumerate(num_symbols):
            frames = int(rows.wanted[row])
            end = rows.end(row, stop[row, :frames])
            length = frames if end is None else min(end + rows.tail, frames)
            spoken.append(
                Spoken(
                    mel=refined[row, :length],
                    stop_probability=stop[row, :length],
                    alignment=alignments[row, :, : -(-length // size), :count],
                    stopped=end is not None,
                )
            )
        return spoken

    def _run(self, graph: str, feed: dict[str, Any]) -> list[Any]:
        session = self._sessions[graph]
        wanted = {name.name for name in session.get_inputs()}  # without dropout nothing is kept
        return list(session.run(None, {k: v for k, v in feed.items() if k in wanted}))

    def _encode(
        self, texts: Sequence[Sequence[int]], speakers: Sequence[int] | None
    ) -> dict[str, Any]:
        lengths = np.array([len(text) for text in texts], dtype=np.int64)
        symbols = np.zeros((len(texts), int(lengths.max())), dtype=np.int64)
        for row, text in enumerate(texts):
            symbols[row, : len(text)] = text
        who = np.array(speakers or [0] * len(texts), dtype=np.int64)
        feed = {"symbols": symbols, "symbol_lengths": lengths, "speakers": who}
        return dict(zip(self.meta["memories"], self._run("encoder", feed), strict=True))

    def _first_states(self, batch: int, symbols: int) -> dict[str, Any]:
        sizes = {"batch": batch, "symbols": symbols, "steps": 0}
        return {
            state["name"]: np.zeros([sizes.get(n, n) for n in state["shape"]], state["dtype"])
            for state in self.meta["states"]
        }

    def _limits(self, num_symbols: int) -> tuple[int, int]:
        """Frames before which the stop head is not heard, and the most there may be."""
        ends, mel = self.meta["ends"], self.meta["mel"]
        rate = mel["sample_rate"] / mel["hop_length"]
        seconds = max(num_symbols * ends["max_seconds_per_symbol"], ends["min_limit_s"])
        most = math.ceil(seconds * rate)
        least = math.ceil(num_symbols * ends["min_seconds_per_symbol"] * rate)
        return min(max(least, 1), most), most

    def _check(self, texts: Sequence[Sequence[int]], speakers: Sequence[int] | None) -> None:
        if not texts or not all(texts):
            raise ValueError("nothing to say: give one text or more, each of one symbol or more")
        least, most = min(map(min, texts)), max(map(max, texts))
        if least < 0 or most >= len(self.symbols):
            raise ValueError(
                f"symbols are numbered 0 to {len(self.symbols) - 1}, got {least, most}"
            )
        count = max(self.meta["num_speakers"], 1)
        if speakers is not None and not (
            len(speakers) == len(texts) and all(0 <= who < count for who in speakers)
        ):
            raise ValueError(f"give a speaker from 0 to {count - 1} a text, got {list(speakers)}")


class _Rows:
    """What a batch has said so far, and where each of it ends."""

    def __init__(self, limits: Sequence[tuple[int, int]], meta: dict[str, Any]) -> None:
        self.least = [least for least, _ in limits]
        self.most = [most for _, most in limits]
        self.wanted: Ints = np.array(self.most, dtype=np.int64)
        """``[B]``, frames to make."""
        self.heard = [False] * len(limits)
        self.frames_a_step: int = meta["reduction_factor"]
        self.threshold: float = meta["ends"]["stop_threshold"]
        self.tail: int = meta["ends"]["tail_frames"]
        self.frames: list[Floats] = []
        self.stop: list[Floats] = []
        self.alignments: list[Floats] = []

    def running(self, step: int) -> bool:
        """Whether a frame of ``step`` is wanted."""
        return bool(step * self.frames_a_step < self.wanted.max())

    def add(self, step: int, frames: Floats, stop: Floats, alignment: Floats) -> None:
        """Take a step's outputs; the first sure frame of a row says how far it goes.

        One that comes sooner than anybody speaks is not believed: the row is then made whole.
        """
        self.frames.append(frames)
        self.stop.append(stop)
        self.alignments.append(alignment)
        sure = stop > self.threshold
        for row in np.flatnonzero(sure.any(1)):
            frame = step * self.frames_a_step + int(sure[row].argmax()) + 1
            if self.heard[row] or frame > self.most[row]:
                continue
            self.heard[row] = True
            if frame >= self.least[row]:
                self.wanted[row] = min(frame + self.tail, self.most[row])

    def end(self, row: int, stop: Floats) -> int | None:
        """Frames up to the first that the stop head may end with; None if there is none."""
        begin = self.least[row]
        sure = np.flatnonzero(stop[begin - 1 :] > self.threshold)
        return begin + int(sure[0]) if len(sure) else None


def kept_by_dropout(
    prenet: dict[str, Any], seed: int, identities: Ints, first: int, count: int
) -> NDArray[np.bool_]:
    """``[count, B, P, W]``: what dropout lets pass in the steps from ``first`` on.

    A 32-bit hash of (seed, layer), identity, step and channel, one after the other; a cell is kept
    if its hash is at least ``dropout * 2**32`` (:mod:`profforce.nn.noise`).
    """
    steps = np.arange(first, first + count, dtype=np.int64)
    channels = np.arange(prenet["width"], dtype=np.int64)
    layers = []
    for layer in range(prenet["layers"]):
        key = np.array((seed * 0x9E3779B1 + layer * 0x85EBCA6B) & _MASK, dtype=np.int64)
        rows = _mix((_mix(key) + identities) & _MASK)
        cells = _mix((rows[None] + steps[:, None]) & _MASK)
        bits = _mix((cells[..., None] + channels) & _MASK)
        layers.append(bits >= int(prenet["dropout"] * 2**32))
    return np.stack(layers, 2)


def _mix(x: Ints) -> Ints:
    """Two rounds of xor-shift and multiply; products of 32-bit values fit in 63 bits."""
    for _ in range(2):
        x = ((x ^ (x >> 16)) * _MULTIPLIER) & _MASK
    return x ^ (x >> 16)


def _read_meta(path: Path) -> dict[str, Any]:
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
        found = meta["onnx_format"]
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise ValueError(f"{path} is not the meta.json of 'profforce export'") from err
    if found != FORMAT:
        raise ValueError(f"{path}: export of another format: got {found}, expected {FORMAT}")
    return dict(meta)
