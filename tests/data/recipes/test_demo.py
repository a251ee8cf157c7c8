import importlib.util
import sys
from pathlib import Path

import pytest
import soundfile

from profforce.config import DataConfig, DataKind, MelConfig, TextConfig
from profforce.data.manifest import read_manifest
from profforce.data.prepare import prepare
from profforce.data.recipes import demo
from profforce.errors import UserError
from profforce.text.tokenizer import Tokenizer

needs_reader = pytest.mark.skipif(
    importlib.util.find_spec("hibari") is None, reason="the extra demo is not installed"
)


def demo_data(root: Path, count: int = 8) -> DataConfig:
    return DataConfig(kind=DataKind.demo, root=str(root), num_utterances=count, valid_fraction=0.5)


def test_unseen_sentences_are_new_and_of_the_same_words() -> None:
    tokenizer = Tokenizer(TextConfig())

    def plain(name: str) -> list[str]:
        return [tokenizer.normalize(text) for text in demo.demo_texts(name)]

    train, unseen, more = (plain(name) for name in ("demo", "demo_unseen", "demo_more"))
    assert len(unseen) >= 60 and not set(train) & set(unseen)
    assert len(set(more)) == 500 and not set(more) & {*train, *unseen}
    assert len(set(train)) == len(train) and len(set(unseen)) == len(unseen)
    assert min(len(text.split()) for text in unseen) >= 4

    def words(texts: list[str]) -> list[str]:
        return [word.strip(".,") for text in texts for word in text.split()]

    counts = {word: words(train).count(word) for word in set(words(train))}
    assert min(counts.values()) >= 25
    assert set(words(unseen)) | set(words(more)) <= set(counts)


def test_the_normaliser_leaves_the_texts_as_they_are() -> None:
    tokenizer = Tokenizer(TextConfig())
    for text in demo.demo_texts() + demo.demo_texts("demo_unseen"):
        assert tokenizer.normalize(text) == text.lower()


def test_the_script_reproduces_the_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).resolve().parents[3]
    script = root / "tools" / "make_demo_texts.py"
    if not script.is_file():
        pytest.skip("the tools are not part of this tree")
    spec = importlib.util.spec_from_file_location("make_demo_texts", script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, "argv", ["make_demo_texts.py", str(tmp_path)])
    module.main()
    for name in ("demo.txt", "demo_unseen.txt", "demo_more.txt"):
        assert (tmp_path / name).read_bytes() == (root / "data" / "texts" / name).read_bytes()


def test_a_missing_reader_is_one_line_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "hibari", None)
    with pytest.raises(UserError, match=r"hibari-tts.*run: pip install 'profforce\[demo\]'"):
        demo.make(demo_data(tmp_path))


@needs_reader
def test_reading_is_deterministic_and_resumes(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    report = prepare(
        demo_data(tmp_path / "a"),
        TextConfig(),
        MelConfig(),
        lambda label, done, total: seen.append((done, total)) if "sentences" in label else None,
    )
    assert report.num_utterances == 8 and seen == [(k, 8) for k in range(1, 9)]
    utterances = read_manifest(tmp_path / "a")
    assert [u.text for u in utterances] == demo.demo_texts()[:8]
    info = soundfile.info(utterances[0].audio)
    assert (info.samplerate, info.channels, info.subtype) == (22050, 1, "PCM_16")
    expected = {u.audio: u.audio.read_bytes() for u in utterances}
    kept, gone, broken = (u.audio for u in utterances[:3])
    gone.unlink()
    broken.write_bytes(expected[broken][:30])
    times = kept.stat().st_mtime_ns
    seen.clear()
    demo.make(demo_data(tmp_path / "a"), lambda _, done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)] and kept.stat().st_mtime_ns == times
    assert {path: path.read_bytes() for path in expected} == expected


def test_another_reader_gives_another_file() -> None:
    assert demo.utterance_id("a", "1.0") != demo.utterance_id("a", "1.1")
    assert demo.utterance_id("a", "1.0") != demo.utterance_id("b", "1.0")
