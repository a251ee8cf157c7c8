"""Kinds of defects of a transcript."""

from profforce.data.check.kinds import error, note, warning

TEXT_EMPTY = error(
    "text.empty", "empty transcript", "what is said", "write what is said or remove the line"
)
TEXT_UNSPEAKABLE = error(
    "text.unspeakable",
    "nothing to say in this text",
    "at least one letter or digit of the alphabet",
    "write what is said or remove the line",
)
TEXT_DIGITS = error(
    "text.digits",
    "more digits than anyone reads aloud",
    "at most 1000 in one text",
    "see whether this is data and not a transcript",
)
TEXT_ALPHABET = warning(
    "text.alphabet",
    "symbols outside the alphabet, which are left out",
    "symbols of the front end",
    "write them as words, or set text.normalize=true",
)
TEXT_CONTROL = warning(
    "text.control",
    "a control character in the text",
    "printable text",
    "remove it",
    mendable=True,
)
TEXT_ZERO_WIDTH = warning(
    "text.zero_width",
    "a zero-width or invisible character in the text",
    "visible characters",
    "remove it",
    mendable=True,
)
TEXT_WHITESPACE = note(
    "text.whitespace",
    "tabs, repeated or special spaces in the text",
    "single spaces",
    "none needed: they are read as one space",
    mendable=True,
)
TEXT_REPLACEMENT = warning(
    "text.replacement",
    "U+FFFD stands for a letter that an earlier conversion lost",
    "the letter",
    "write it again from the source",
)
TEXT_MOJIBAKE = warning(
    "text.mojibake",
    "UTF-8 that was read as Latin-1 and saved again",
    "the letters themselves",
    "convert the text back once",
)
TEXT_DECOMPOSED = note(
    "text.decomposed",
    "letters and their accents apart (not NFC)",
    "composed letters",
    "none needed: they are composed when read",
)
TEXT_MARKUP = warning(
    "text.markup",
    "HTML tags or entities, which would be read aloud",
    "plain text",
    "write what is said",
)
TEXT_CSV_QUOTES = warning(
    "text.csv_quotes",
    "the quoting of a CSV writer is part of the text",
    "text without quoting",
    "write the manifest without quoting",
)
TEXT_DUPLICATE = note(
    "text.duplicate", "the same words occur on another line", "", "none needed if both are said so"
)
TEXT_TOO_LONG = error(
    "text.impossible",
    "the text has more symbols than its audio has mel frames",
    "audio in which all of it is said",
    "see whether the audio is cut or another one",
)
TEXT_FAST = warning(
    "text.fast",
    "far more text than its audio can hold",
    "at most 30 symbols a second",
    "see whether the audio is cut or another one",
)
TEXT_SLOW = warning(
    "text.slow",
    "far less text than its audio holds",
    "at least 2 symbols a second",
    "see whether words are missing from the text",
)
