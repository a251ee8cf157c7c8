"""How well the verdicts of tools/experiment.py find what is wrong: faults planted in known speech.

python tools/experiment_check.py                 # letters, on the synthetic corpus
python tools/experiment_check.py --wavs data/demo/wavs     # slips by alignment, on recordings
"""

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from profforce.audio.mel import MelSpectrogram
from profforce.audio.vocoder import build_vocoder
from profforce.config import MelConfig, VocoderKind
from profforce.data.features import MelReader
from profforce.data.recipes.synthetic import CONSONANTS, VOWELS, Sound, sounds_of, synthetic_texts
from profforce.errors import UserError
from profforce.evaluation.edits import Edits, edits_between
from profforce.evaluation.letters import letter_templates, letters_of, mel_of, rendered, tokens_of
from profforce.evaluation.verdict import judge
from profforce.evaluation.warp import QUIET_NEPERS, Slips, slips_between

MEL = MelConfig()
Plant = Callable[[list[Sound], random.Random], list[Sound]]
CUT_FRAMES = 30
TEMPOS = (0.8, 1.25)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0 if checked, 1 for a mistake of the user."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--num", type=int, default=200, help="texts or recordings")
    parser.add_argument("--vocoded", type=int, default=20, help="of them also through a vocoder")
    parser.add_argument("--wavs", type=Path, help="folder of recordings")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    try:
        if options.wavs:
            lines = check_slips(options.wavs, options.num)
        else:
            lines = check_letters(options.num, options.vocoded)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print("\n".join(lines))
    return 0


def check_letters(num: int, num_vocoded: int) -> list[str]:
    """A Markdown table: false alarms on true speech, then precision and recall of each fault."""
    templates, texts = letter_templates(MEL), synthetic_texts(num)
    vocoder, analyse = build_vocoder(VocoderKind.griffin_lim, MEL), MelSpectrogram(MEL)

    def alarms(mels: Sequence[Tensor]) -> str:
        found = [judge(m, tokens_of(t, MEL), templates, MEL) for t, m in zip(texts, mels)]  # noqa: B905
        wrong = sum(verdict.edits.total for verdict in found)
        letters = sum(verdict.num_symbols for verdict in found)
        return f"{wrong} of {letters} | {sum(v.failed for v in found)} of {len(found)} |"

    varied = [rendered(text, MEL, 1.0) for text in texts]
    lines = ["| true speech | letters called wrong | utterances called failed |", "|---|---:|---:|"]
    lines.append(f"| as the corpus | {alarms([rendered(text, MEL) for text in texts])}")
    lines.append(f"| varied | {alarms(varied)}")
    lines.append(
        f"| varied, vocoded | {alarms([analyse(vocoder(m)) for m in varied[:num_vocoded]])}"
    )
    lines += ["", "| planted | precision | recall | counted exactly |", "|---|---:|---:|---:|"]
    for name, plant in PLANTS.items():
        rng, pairs = random.Random(0), []
        for text in texts:
            sounds = sounds_of(text, 1.0)
            said = plant(sounds, rng)
            wanted, heard = ([t.symbol for t in letters_of(s, MEL)] for s in (sounds, said))
            verdict = judge(mel_of(said, MEL), tokens_of(text, MEL), templates, MEL)
            pairs.append((edits_between(wanted, heard), verdict.edits))
        lines.append(f"| {name} | {precision_and_recall(pairs)} |")
    return lines


def precision_and_recall(pairs: Sequence[tuple[Edits, Edits]]) -> str:
    """Of the letters deleted, inserted or substituted: (planted, found) for each utterance."""
    kinds = ("deleted", "inserted", "substituted")
    both = sum(min(getattr(a, kind), getattr(b, kind)) for a, b in pairs for kind in kinds)
    planted, found = (sum(pair[side].total for pair in pairs) for side in (0, 1))
    exact = sum(a == b for a, b in pairs)
    return f"{both} of {found} | {both} of {planted} | {exact} of {len(pairs)}"


def check_slips(folder: Path, num: int) -> list[str]:
    """One line of counts on recordings of two seconds or more, the first ``num`` of them."""
    read, rng = MelReader(MEL, 40.0), random.Random(0)
    long = (torch.from_numpy(read(path)) for path in sorted(folder.glob("*.wav")))
    mels = [mel for mel, _ in zip((m for m in long if len(m) > 170), range(num))]  # noqa: B905
    if not mels:
        raise UserError("no recordings of two seconds or more", where=folder)
    clean: list[Slips] = []
    cut, again = [], []
    for mel in mels:
        clean += [slips_between(_faster(mel, tempo), mel, MEL) for tempo in TEMPOS]
        place = _loudest(mel, rng)
        end = place + CUT_FRAMES
        cut.append(slips_between(torch.cat([mel[:place], mel[end:]]), mel, MEL))
        again.append(slips_between(torch.cat([mel[:end], mel[place:]]), mel, MEL))
    return [
        f"slips called at {' and '.join(map(str, TEMPOS))} times the length: "
        f"{sum(s.any for s in clean)} of {len(clean)}",
        f"cuts of {CUT_FRAMES} frames found: {sum(s.skipped_s > 0 for s in cut)} of {len(cut)}",
        f"repeats of as many found: {sum(s.made_up_s > 0 for s in again)} of {len(again)}",
    ]


def _faster(mel: Tensor, tempo: float) -> Tensor:
    stretched = torch.nn.functional.interpolate(mel.T[None], scale_factor=tempo, mode="linear")
    return stretched[0].T


def _loudest(mel: Tensor, rng: random.Random) -> int:
    """Where a stretch of speech begins that has the fewest quiet frames."""
    level = mel.exp().mean(1).log()
    loud = level > level.max() - QUIET_NEPERS
    places = range(20, len(mel) - CUT_FRAMES - 20)
    return max(places, key=lambda k: int(loud[k : k + CUT_FRAMES].sum()) + rng.random())


def _block(sounds: list[Sound], rng: random.Random, most: int) -> tuple[int, int]:
    """A stretch of letters and pauses before the last pause."""
    size = rng.randint(2 if most > 1 else 1, most)
    start = rng.randrange(0, len(sounds) - 2 - size)
    return start, start + size


def _delete(most: int) -> Plant:
    def plant(sounds: list[Sound], rng: random.Random) -> list[Sound]:
        start, stop = _block(sounds, rng, most)
        return sounds[:start] + sounds[stop:]

    return plant


def _repeat(sounds: list[Sound], rng: random.Random) -> list[Sound]:
    start, stop = _block(sounds, rng, 4)
    return sounds[:stop] + sounds[start:]


def _babble(sounds: list[Sound], rng: random.Random) -> list[Sound]:
    place = rng.randrange(1, len(sounds) - 2)
    made_up = [Sound(rng.choice(kind), rng.randint(3, 8)) for kind in (CONSONANTS, VOWELS) * 2]
    return sounds[:place] + made_up + sounds[place:]


def _truncate(sounds: list[Sound], rng: random.Random) -> list[Sound]:
    return sounds[: len(sounds) - 2 - rng.randint(1, 4)]


PLANTS: dict[str, Plant] = {
    "one symbol left out": _delete(1),
    "2 to 4 symbols left out": _delete(4),
    "2 to 4 symbols said twice": _repeat,
    "4 letters made up": _babble,
    "1 to 4 symbols cut off the end": _truncate,
}

if __name__ == "__main__":
    sys.exit(main())
