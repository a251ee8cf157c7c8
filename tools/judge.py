"""What Whisper hears in any audio: ``python tools/judge.py ROWS.jsonl [--json FILE|-]``.

ROWS has ``wav`` and ``text`` a line, as ``profforce sample`` prints; paths are relative to the
file. The judge and its errors are those of ``profforce evaluate listen=true`` (extra ``judges``).
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from profforce.audio.files import read_audio
from profforce.errors import UserError
from profforce.evaluation.figures import mean_over
from profforce.evaluation.listening import MIN_WORDS, WHISPER_HZ, Listener, Whisper, rates_of


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0 if scored, 1 for a mistake of the user."""
    options = _parser().parse_args(argv)
    torch.set_num_threads(options.threads)
    try:
        rows = list(judged(options.rows, Whisper(options.threads)))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    scored = [row for row in rows if "word_errors" in row]
    result = {
        "utterances": len(rows),
        "scored": len(scored),
        "words": sum(row["words"] for row in scored),
        "word_errors": mean_over(scored, "word_errors").mean,
        "character_errors": mean_over(scored, "character_errors").mean,
        "flawless": sum(row["word_errors"] == 0 for row in scored),
    }
    if options.json is not None:
        text = json.dumps({**result, "rows": rows}, indent=2, ensure_ascii=False)
        options.json.write_text(text, encoding="utf-8")
    print(json.dumps(result))
    return 0


def judged(path: Path, listener: Listener) -> Iterator[dict[str, Any]]:
    """Each row of ``path`` with what was heard; texts of fewer than four words get no rates."""
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            wav, text = Path(row["wav"]), str(row["text"])
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                "not a row", where=f"{path}:{number}", expected="a JSON object with wav and text"
            ) from error
        beside = path.parent / wav
        audio = read_audio(beside if beside.is_file() else wav, WHISPER_HZ)
        heard = listener(audio)
        yield {"wav": str(wav), "text": text, "heard": heard, **rates_of(text, heard)}


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError("cannot read the rows", where=path, got=str(error)) from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        epilog=f"Texts of fewer than {MIN_WORDS} words are heard and not scored.",
    )
    parser.add_argument("rows", type=Path, help="JSONL with wav and text")
    parser.add_argument("--json", type=Path, help="file for the rows and what was heard in each")
    parser.add_argument("--threads", type=int, default=1)
    return parser


if __name__ == "__main__":
    sys.exit(main())
