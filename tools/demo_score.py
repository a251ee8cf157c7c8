"""Score a run by ear: word and character error rates of what a judge hears in its speech.

    python tools/demo_score.py --run runs/demo --sentences data/texts/demo_unseen.txt \
        --corpus data/demo --num 50 --json score.json
    python tools/demo_score.py --rows rows.jsonl --json -

The first form speaks unseen sentences with the run, free-running, and puts beside it the corpus'
own held-out audio and the same audio after mel and vocoder: the judge's and the vocoder's share
of the errors. The second scores any JSONL of ``wav`` and ``text``. One JSON object is printed.
"""

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from judge import Heard, Said, Transcriber, judge, read_rows, rows_of, summary, worst

from profforce.audio.files import read_audio, trim_silence, write_audio
from profforce.audio.mel import MelSpectrogram
from profforce.audio.vocoder import build_vocoder
from profforce.config import DataConfig, MelConfig, SampleConfig, VocoderKind
from profforce.errors import UserError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0 if scored, 1 for a mistake of the user."""
    options = _parser().parse_args(argv)
    torch.set_num_threads(options.threads)
    try:
        _write(_score(options), options.json)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _score(options: argparse.Namespace) -> dict[str, Any]:
    transcriber = Transcriber(options.threads)
    if options.rows:
        return report(list(judge(read_rows(options.rows)[: options.num], transcriber)))
    if not (options.run and options.sentences):
        raise UserError("nothing to score", remedy="give --run and --sentences, or --rows")
    with tempfile.TemporaryDirectory() as scratch:
        out = options.out or Path(scratch)
        spoken = speak(options, out)
        said = [Said(Path(str(row["wav"])), str(row["text"])) for row in spoken]
        heard = list(judge(said, transcriber))
        result = {
            "run": str(options.run),
            "vocoder": options.vocoder,
            "free_running": report(heard, spoken),
        }
        if options.corpus:
            mel = _mel_of(options.run)
            held_out = held_out_of(options.corpus, options.valid_fraction, len(said))
            vocoded = vocode(held_out, mel, options, Path(scratch) / "vocoded")
            result["corpus"] = report(list(judge(held_out, transcriber)))
            result["corpus_vocoded"] = report(list(judge(vocoded, transcriber)))
    return result


def speak(options: argparse.Namespace, out: Path) -> list[dict[str, object]]:
    """Free-run the first ``--num`` sentences; the rows of ``profforce sample``."""
    from profforce.sampling.run import sample

    try:
        lines = options.sentences.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError("cannot read the sentences", where=options.sentences) from error
    texts = [line.strip() for line in lines if line.strip()][: options.num]
    config = SampleConfig(
        seed=options.seed,
        checkpoint=options.checkpoint,
        vocoder=VocoderKind(options.vocoder),
        vocoder_checkpoint=options.vocoder_checkpoint,
        pictures=False,
        num_threads=options.threads,
    )
    return list(sample(config, options.run, texts, out))


def held_out_of(root: Path, valid_fraction: float, num: int) -> list[Said]:
    """The first ``num`` utterances that training holds out of the corpus at ``root``."""
    from profforce.data.corpus import is_valid_text
    from profforce.data.manifest import corpus_folder, read_manifest

    utterances = read_manifest(corpus_folder(root))
    held_out = [u for u in utterances if is_valid_text(u.spoken, valid_fraction)]
    if not held_out:
        raise UserError("the corpus holds no utterance out", where=root)
    return [Said(Path(u.audio), u.spoken) for u in held_out[:num]]


def vocode(
    said: Sequence[Said], mel: MelConfig, options: argparse.Namespace, out: Path
) -> list[Said]:
    """Each utterance through mel and vocoder: the ceiling of a model without any error."""
    analyse = MelSpectrogram(mel)
    vocoder = build_vocoder(
        VocoderKind(options.vocoder), mel, checkpoint=options.vocoder_checkpoint
    )
    vocoded = []
    for number, one in enumerate(said):
        audio = trim_silence(read_audio(one.wav, mel.sample_rate), mel.sample_rate, 40.0)
        path = out / f"{number:04}.wav"
        write_audio(path, vocoder(analyse(audio)), mel.sample_rate)
        vocoded.append(Said(path, one.text))
    return vocoded


def report(
    heard: Sequence[Heard], spoken: Sequence[dict[str, object]] | None = None
) -> dict[str, Any]:
    """Rates, the worst utterances and every row; for free runs also how each one ended."""
    rows = rows_of(heard)
    result = summary(heard)
    if spoken is not None:
        result["stopped_by"] = dict(Counter(str(row["stopped_by"]) for row in spoken))
        extras = ("stopped_by", "seconds", "real_time_factor", "alignment_coverage")
        for row, source in zip(rows, spoken, strict=True):
            row.update({key: source[key] for key in extras if key in source})
    return {**result, "worst": worst(heard), "rows": rows}


def _mel_of(run: Path) -> MelConfig:
    from profforce.models.checkpoint import find_checkpoint, load_meta

    return MelConfig(**load_meta(find_checkpoint(run, "last"))["mel"])


def _write(result: dict[str, Any], target: str) -> None:
    text = json.dumps(result, indent=2, ensure_ascii=False) + "\n"
    if target == "-":
        sys.stdout.write(text)
        return
    path = Path(target)
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    aside.write_text(text, encoding="utf-8")
    aside.replace(path)
    brief = {key: _without_rows(value) for key, value in _without_rows(result).items()}
    sys.stdout.write(json.dumps(brief) + "\n")


def _without_rows(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: inner for key, inner in value.items() if key not in ("rows", "worst")}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--run", type=Path, help="run folder to sample from")
    parser.add_argument("--sentences", type=Path, help="file with one unseen sentence a line")
    parser.add_argument("--rows", type=Path, help="score this JSONL of wav and text instead")
    parser.add_argument("--corpus", type=Path, help="corpus folder to compare with")
    parser.add_argument(
        "--valid-fraction",
        type=float,
        default=DataConfig().valid_fraction,
        help="share of texts that training held out (default: %(default)s)",
    )
    parser.add_argument("--num", type=int, default=50, help="utterances (default: %(default)s)")
    parser.add_argument("--checkpoint", default="last", help="last, best or step-N")
    parser.add_argument("--vocoder", choices=list(VocoderKind), default="griffin_lim")
    parser.add_argument("--vocoder-checkpoint", help="HiFi-GAN weights by path")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of model and judge")
    parser.add_argument("--out", type=Path, help="keep the spoken audio here")
    parser.add_argument("--json", default="-", help="file for the whole result (- is stdout)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
