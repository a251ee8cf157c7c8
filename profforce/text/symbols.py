"""The alphabets. A symbol's index in the tuple is its number in the model."""

import string

PADDING = "<pad>"
END_OF_SENTENCE = "<eos>"
SPECIAL = (PADDING, END_OF_SENTENCE)

PUNCTUATION = " !\"'(),-.:;?"
"""Marks that carry prosody, the apostrophe and the hyphen, and the space between words."""

GRAPHEMES = (*SPECIAL, *PUNCTUATION, *string.ascii_lowercase)

IPA_VOWELS = "iyɨʉɯuɪʏʊeøɘɵɤoəɛœɜɞʌɔæɐaɶɑɒᵻɚɝ"
IPA_CONSONANTS = "pbtdʈɖcɟkɡgqɢʔmɱnɳɲŋɴʙrʀⱱɾɽɸβfvθðszʃʒʂʐxɣχʁħʕhɦɬɮʋɹɻjɰlɭʎʟɫwʍɥʜʢʡɕʑɺɧ"
IPA_CLICKS_AND_IMPLOSIVES = "ʘǀǃǂǁɓɗʄɠʛ"
IPA_MARKS = "ˈˌːˑ|‖‿↓↑→↗↘˞ʰʱʲʷˠˤⁿˡʼʴ˥˦˧˨˩ˀ"
IPA_COMBINING = "".join(map(chr, (*range(0x300, 0x345), 0x35C, 0x361)))
"""Diacritics, tones and tie bars; text is decomposed (NFD), so these stand alone."""


def _ipa() -> tuple[str, ...]:
    letters = string.ascii_lowercase + IPA_VOWELS + IPA_CONSONANTS + IPA_CLICKS_AND_IMPLOSIVES
    ordered = (*SPECIAL, *PUNCTUATION, *letters, *IPA_MARKS, *IPA_COMBINING)
    return tuple(dict.fromkeys(ordered))  # the plain letters among the IPA ones appear once


IPA = _ipa()
