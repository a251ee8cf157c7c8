"""Exams hold what the model never saw, and a perfect model passes them."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pytest import MonkeyPatch

from profforce.config import DataConfig, DataKind, FreerunConfig, MelConfig, ModelConfig, TextConfig
from profforce.data.batch import Item
from profforce.data.corpus import Corpus, load_corpus
from profforce.data.dataset import MelDataset
from profforce.data.prepare import prepare
from profforce.data.recipes.synthetic import synthetic_texts
from profforce.errors import UserError
from profforce.evaluation import measure
from profforce.evaluation.exam import (
    IN_LENGTH,
    LONGER,
    SEEN,
    Exam,
    corpus_exams,
    seen_exam,
    synthetic_exams,
    twice_read_exam,
)
from profforce.evaluation.letters import Templates, rendered
from profforce.models.free_run import FreeRun
from profforce.models.metrics import mel_cepstral_distortion
from profforce.models.transformer import TransformerTTS
from profforce.models.tts import TeacherForced
from profforce.text.tokenizer import Tokenizer
from profforce.training.gap import Reading

MEL = MelConfig()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    root: Path = tmp_path_factory.mktemp("exam")
    data = DataConfig(
        kind=DataKind.synthetic, root=str(root), num_utterances=20, valid_fraction=0.4
    )
    prepare(data, TextConfig(), MEL)
    return load_corpus(data, TextConfig(), MEL)


def exams(num: int = 3, joined: int = 2) -> list[Exam]:
    tokenizer = Tokenizer(TextConfig())
    return synthetic_exams(tokenizer, MEL, trained=20, variation=1.0, num=num, joined=joined)


def test_no_text_of_an_exam_was_trained_on() -> None:
    short, longer = exams()
    seen = set(synthetic_texts(20))
    texts = [*short.batch.texts, *longer.batch.texts]
    assert len(set(texts)) == 6 and not seen & set(texts)
    assert (short.name, longer.name) == (IN_LENGTH, LONGER)
    assert all(text.count(".") == 1 and text.endswith(".") for text in texts)
    words = [text.rstrip(".").split() for text in longer.batch.texts]
    trained = {word for text in seen for word in text.rstrip(".").split()}
    assert min(map(len, words)) >= 4 and not all(set(row) <= trained for row in words)


def test_the_truth_of_an_exam_is_what_the_corpus_would_say() -> None:
    for exam in exams():
        assert exam.tokens is not None
        for k, text in enumerate(exam.batch.texts):
            mel = rendered(text, MEL, 1.0)
            assert torch.equal(exam.batch.mel[k, : len(mel)], mel)
            assert int(exam.batch.mel_lengths[k]) == len(mel)
            assert len(exam.tokens[k]) == sum(map(str.isalpha, text))


def test_another_reading_says_the_same_otherwise() -> None:
    for exam in exams():
        own, other = exam.batch, exam.other
        assert other is not None and other.texts == own.texts
        assert torch.equal(other.symbols, own.symbols)
        assert not torch.equal(other.mel_lengths, own.mel_lengths)
    tokenizer = Tokenizer(TextConfig())
    plain = synthetic_exams(tokenizer, MEL, trained=20, variation=0.0, num=1, joined=1)
    assert [exam.other for exam in plain] == [None, None]  # it would be the same


def test_excess_is_over_the_pass_along_another_reading(
    templates: Templates, monkeypatch: MonkeyPatch
) -> None:
    exam = exams(num=2)[0]
    other = exam.other
    assert other is not None
    model = TransformerTTS(ModelConfig(), 40, MEL.num_mels)
    monkeypatch.setattr(measure, "measure_gap", lambda *_: spoken(exam, 0))
    forced = TeacherForced(other.mel, other.mel, other.mel, other.mel, other.mel)
    monkeypatch.setattr(measure, "read_along", lambda *_: forced)
    for k, row in enumerate(measure.examine(model, exam, FreerunConfig(), MEL, templates)):
        truth = exam.batch.mel[k, : int(exam.batch.mel_lengths[k])]
        said = other.mel[k, : int(other.mel_lengths[k])]
        assert row["mcd_other_db"] == mel_cepstral_distortion(said, truth) > 0.1
        assert row["mcd_excess_db"] == row["mcd_free_db"] - row["mcd_other_db"]
    (row, _) = measure.examine(model, replace(exam, other=None), FreerunConfig(), MEL, templates)
    assert "mcd_excess_db" not in row


def test_seen_texts_are_those_of_training_with_their_letters_where_known(corpus: Corpus) -> None:
    exam = seen_exam(corpus, MEL, num=3, letters=True)
    assert exam.name == SEEN and exam.tokens is not None
    for k in range(3):
        item = corpus.train[k]
        assert exam.batch.texts[k] == item.text
        assert torch.equal(exam.batch.mel[k, : len(item.mel)], item.mel)
        said = "".join(token.symbol for token in exam.tokens[k])
        assert said == "".join(filter(str.isalpha, item.text))
    everyone = seen_exam(corpus, MEL, num=10**6, letters=False)
    assert len(everyone.batch) == len(corpus.train) and everyone.tokens is None


def test_held_out_utterances_are_joined_without_a_rest(corpus: Corpus) -> None:
    short, longer = corpus_exams(corpus, num=5, joined=2)
    assert len(short.batch) == min(5, len(corpus.valid)) and short.tokens is None
    first, second = corpus.valid[0], corpus.valid[1]
    assert longer.batch.texts[0] == f"{first.text} {second.text}"
    assert torch.equal(longer.batch.mel[0, : len(first.mel)], first.mel)
    assert int(longer.batch.mel_lengths[0]) == len(first.mel) + len(second.mel)
    assert len(longer.batch) == len(short.batch) // 2
    with pytest.raises(UserError, match="several speakers"):
        corpus_exams(replace(corpus, speakers=("a", "b")), num=2, joined=2)


def test_what_was_read_twice_is_set_beside_its_other_reading(
    corpus: Corpus, monkeypatch: MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="no text was read twice"):
        twice_read_exam(corpus)
    train = copy.copy(corpus.train)
    utterances = list(train.utterances)
    first = utterances[0].spoken
    for place, end in ((1, "!"), (5, " ...")):
        utterances[place] = replace(utterances[place], spoken=first.upper().rstrip(".") + end)
    train.utterances = utterances
    exam = twice_read_exam(replace(corpus, train=train))
    assert exam.other is not None and len(exam.batch) == 3
    assert exam.batch.ids == [utterances[place].id for place in (0, 1, 5)]
    assert exam.other.ids == [utterances[place].id for place in (1, 5, 0)]
    mel = corpus.train[5].mel
    assert torch.equal(exam.batch.mel[2, : len(mel)], mel)
    read: list[int] = []
    inner = MelDataset.__getitem__

    def watch(self: MelDataset, position: int) -> Item:
        read.append(position)
        return inner(self, position)

    monkeypatch.setattr(MelDataset, "__getitem__", watch)
    twice_read_exam(replace(corpus, train=train))
    assert set(read) == {0, 1, 5}
    with pytest.raises(UserError, match="at least 99 words"):
        twice_read_exam(replace(corpus, train=train), min_words=99)


def test_several_readings_of_a_text_are_averaged(monkeypatch: MonkeyPatch) -> None:
    exam = exams(num=3)[0]
    often = exam.repeated(2)
    texts = exam.batch.texts
    assert often.batch.texts == [texts[0], texts[0], texts[1], texts[1], texts[2], texts[2]]
    assert exam.tokens and often.tokens and exam.other and often.other
    assert often.tokens[3] == exam.tokens[1]
    assert often.other.texts == often.batch.texts
    noises = iter([1.0, 3.0, 10.0, 20.0, 0.0, 0.5])

    def spoken_once(model: object, asked: Exam, *rest: object) -> list[measure.Row]:
        return [{"exam": asked.name, "text": t, "failed": next(noises)} for t in asked.batch.texts]

    monkeypatch.setattr(measure, "examine", spoken_once)
    model = TransformerTTS(ModelConfig(), 40, MEL.num_mels)
    rows = measure.examine_often(model, exam, FreerunConfig(), MEL, None, 2)
    assert [row["failed"] for row in rows] == [2.0, 15.0, 0.25]
    assert [row["text"] for row in rows] == texts


def test_utterances_of_fewer_words_are_no_part_of_an_exam(corpus: Corpus) -> None:
    lengths = [len(utterance.spoken.split()) for utterance in corpus.valid.utterances]
    least = sorted(lengths)[len(lengths) // 2]
    short, longer = corpus_exams(corpus, num=3, joined=2, min_words=least)
    wanted = [corpus.valid[k] for k, count in enumerate(lengths) if count >= least][:3]
    assert short.batch.texts == [item.text for item in wanted]
    assert longer.batch.texts[0] == f"{wanted[0].text} {wanted[1].text}"
    seen = seen_exam(corpus, MEL, num=10**6, letters=True, min_words=least)
    assert min(len(text.split()) for text in seen.batch.texts) >= least
    assert len(seen.batch) < len(corpus.train)
    with pytest.raises(UserError, match="at least 100 words"):
        corpus_exams(corpus, num=3, joined=2, min_words=100)


def spoken(exam: Exam, cut_frames: int) -> Reading:
    """A model that says the truth, but stops ``cut_frames`` too early."""
    batch = exam.batch
    lengths = batch.mel_lengths - cut_frames
    nothing = torch.zeros(len(batch), 1, 1, 1)
    stop = torch.zeros(batch.mel.shape[:2])
    free = FreeRun(batch.mel, batch.mel, lengths, torch.ones(len(batch)).bool(), stop, nothing)
    forced = TeacherForced(batch.mel, batch.mel, stop, batch.mel, nothing)
    return Reading(batch, forced, free, {})


@pytest.mark.parametrize("lettered", [True, False], ids=["letters", "warping"])
def test_the_truth_passes_and_a_cut_does_not(
    lettered: bool, templates: Templates, monkeypatch: MonkeyPatch
) -> None:
    model = TransformerTTS(ModelConfig(), 40, MEL.num_mels)
    exam = exams(num=2)[0]
    for cut, failed in ((0, 0.0), (30, 1.0)):
        monkeypatch.setattr(measure, "measure_gap", lambda *_, c=cut: spoken(exam, c))
        known = templates if lettered else None
        rows = measure.examine(model, exam, FreerunConfig(), MEL, known)
        assert [row["failed"] for row in rows] == [failed, failed]
        assert all(row["stop_error_frames"] == cut for row in rows)
        assert all(row["mcd_forced_db"] == pytest.approx(0, abs=1e-4) for row in rows)
        assert all((row["mcd_gap_db"] > 0.1) == bool(cut) for row in rows)
        if lettered:
            assert all((row["early"] > 0) == bool(cut) for row in rows)
            assert all(row["error_rate_forced"] == 0 for row in rows)


def test_a_diverged_model_is_named(templates: Templates, monkeypatch: MonkeyPatch) -> None:
    exam = exams(num=1)[0]
    reading = spoken(exam, 0)
    bad = replace(reading.free_running, mel=torch.full_like(exam.batch.mel, float("inf")))
    monkeypatch.setattr(measure, "measure_gap", lambda *_: replace(reading, free_running=bad))
    model = TransformerTTS(ModelConfig(), 40, MEL.num_mels)
    with pytest.raises(UserError, match="diverged"):
        measure.examine(model, exam, FreerunConfig(), MEL, templates)
