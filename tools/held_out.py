"""Score a run on its own held-out utterances: recorded, vocoded, teacher-forced, free-running.

    python tools/held_out.py --run runs/asterisk --out out/asterisk --json out/asterisk.json

Writes the wavs of all four, pictures of teacher-forced beside free-running for the first
utterances, and prints word and character error rates by Whisper (extra ``judges``).
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from judge import Said, Transcriber, judge, rows_of, summary
from omegaconf import OmegaConf

from profforce.audio.files import write_audio
from profforce.audio.pictures import draw_comparison, save_figure
from profforce.audio.vocoder import Vocoder, build_vocoder
from profforce.config import TrainConfig, VocoderKind
from profforce.data.batch import collate
from profforce.data.corpus import Corpus, load_corpus
from profforce.errors import UserError
from profforce.models.checkpoint import find_checkpoint, load_model
from profforce.training.gap import Reading, measure_gap
from profforce.training.show import behaviours

PICTURES = 4


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0 if scored, 1 for a mistake of the user."""
    options = _parser().parse_args(argv)
    torch.set_num_threads(options.threads)
    try:
        result = score(options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    options.json.write_text(json.dumps(result, indent=1), encoding="utf-8")
    brief = {key: {**value, "rows": None} for key, value in result["forms"].items()}
    print(json.dumps({**result, "forms": brief}))
    return 0


def score(options: argparse.Namespace) -> dict[str, Any]:
    """Speak, listen and count."""
    config = settings_of(options.run)
    corpus = load_corpus(config.data, config.text, config.mel)
    checkpoint = find_checkpoint(options.run, options.checkpoint)
    model, _ = load_model(checkpoint, torch.device("cpu"))
    count = min(options.num, len(corpus.valid))
    batch = collate([corpus.valid[i] for i in range(count)])
    reading = measure_gap(model, batch, config.freerun)
    forms = speak(reading, corpus, model.config.reduction_factor, options.out)
    transcriber = Transcriber(options.threads)
    heard = {form: list(judge(said, transcriber)) for form, said in forms.items()}
    return {
        "run": str(options.run),
        "checkpoint": checkpoint.name,
        "gap": reading.scalars,
        "forms": {f: {**summary(rows), "rows": rows_of(rows)} for f, rows in heard.items()},
    }


def settings_of(run: Path) -> TrainConfig:
    """The settings that ``profforce train`` kept with the run."""
    file = run / ".hydra" / "config.yaml"
    if not file.is_file():
        raise UserError("no run of profforce train", where=run, expected=".hydra/config.yaml")
    merged = OmegaConf.merge(OmegaConf.structured(TrainConfig), OmegaConf.load(file))
    config = OmegaConf.to_object(merged)
    assert isinstance(config, TrainConfig)
    return config


def speak(reading: Reading, corpus: Corpus, factor: int, out: Path) -> dict[str, list[Said]]:
    """Write every utterance in its four forms."""
    vocoder: Vocoder = build_vocoder(VocoderKind.griffin_lim, corpus.mel)
    forms: dict[str, list[Said]] = {
        form: [] for form in ("recorded", "vocoded", "teacher_forced", "free_running")
    }
    for i, text in enumerate(reading.batch.texts):
        forms["recorded"].append(Said(Path(corpus.valid.utterances[i].audio), text))
        pair = behaviours(reading, i, factor)
        real = reading.batch.mel[i, : int(reading.batch.mel_lengths[i])]
        mels = {"vocoded": real, **{b.name: torch.as_tensor(b.mel) for b in pair}}
        for form, mel in mels.items():
            path = out / form / f"{i:03}.wav"
            write_audio(path, vocoder(mel), corpus.mel.sample_rate)
            forms[form].append(Said(path, text))
        if i < PICTURES:
            numbers = reading.batch.symbols[i, : int(reading.batch.symbol_lengths[i])].tolist()
            figure = draw_comparison(
                *pair,
                symbols=[corpus.tokenizer.symbols[n] for n in numbers],
                title=text,
                mel_config=corpus.mel,
                reduction_factor=factor,
            )
            save_figure(figure, out / f"{i:03}.png")
    return forms


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--run", type=Path, required=True, help="run folder")
    parser.add_argument("--checkpoint", default="last", help="last, best or step-N")
    parser.add_argument("--num", type=int, default=30, help="held-out utterances")
    parser.add_argument("--out", type=Path, required=True, help="folder for wavs and pictures")
    parser.add_argument("--json", type=Path, required=True, help="file for the whole result")
    parser.add_argument("--threads", type=int, default=1)
    return parser


if __name__ == "__main__":
    sys.exit(main())
