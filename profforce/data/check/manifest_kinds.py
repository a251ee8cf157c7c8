"""Kinds of defects of a manifest as a whole, of its lines, ids, speakers and of the split."""

from profforce.data.check.kinds import error, note, warning

SHAPE = "id|text or id|text|normalized_text"
LINE_REMEDY = "mend the line or remove it"
UTF8_REMEDY = "save the file as UTF-8"

MANIFEST_MISSING = error(
    "manifest.missing",
    "no corpus here",
    "metadata.csv or manifest.jsonl",
    "check data.root",
)
MANIFEST_BOTH = error(
    "manifest.both", "more than one manifest", "metadata.csv or manifest.jsonl", "remove one"
)
MANIFEST_DESCRIPTION = error(
    "manifest.description",
    "cannot read the corpus description",
    "a JSON object",
    "delete it and prepare the corpus again",
)
MANIFEST_UNREADABLE = error(
    "manifest.unreadable",
    "cannot read the manifest",
    "a file that can be read",
    "check its permissions",
)
MANIFEST_EMPTY = error(
    "manifest.empty",
    "the manifest lists no utterance",
    "a line an utterance",
    "add lines or check data.root",
)
MANIFEST_UTF16 = error(
    "manifest.utf16", "the manifest is UTF-16, not UTF-8", "UTF-8 text", UTF8_REMEDY
)
MANIFEST_MIXED = error(
    "manifest.mixed_encodings",
    "some lines are UTF-8, others another encoding",
    "UTF-8 throughout",
    "convert the lines named line.not_utf8 alone, not the file as a whole",
)
MANIFEST_BOM = note(
    "manifest.bom",
    "starts with a byte-order mark",
    "plain UTF-8",
    "none needed: it is skipped",
    mendable=True,
)
MANIFEST_UNFINISHED = note(
    "manifest.unfinished",
    "the last line has no line end",
    "a line end",
    "see whether the file was cut off",
    mendable=True,
)

LINE_CRLF = note(
    "line.crlf", "Windows line end", "\\n", "none needed: it is skipped", mendable=True
)
LINE_BLANK = note("line.blank", "blank line", "none", "none needed: it is skipped", mendable=True)
LINE_BARE_CR = error(
    "line.bare_cr",
    "a carriage return inside the line",
    "lines that end in \\n",
    "convert the line ends; several lines were taken for one",
)
LINE_LONG = error(
    "line.too_long", "the line is too long", "one utterance", "see whether line ends are missing"
)
LINE_ENCODING = error("line.not_utf8", "the line is not UTF-8", "UTF-8 text", UTF8_REMEDY)
LINE_COLUMNS = error("line.columns", "wrong number of columns", SHAPE, LINE_REMEDY)
LINE_SEPARATOR = error(
    "line.separator", "wrong number of columns", SHAPE, "separate the columns by '|'"
)
LINE_HEADER = error(
    "line.header_inside",
    "a header line among the utterances",
    "a header in the first line alone",
    "remove the line",
)
LINE_DUPLICATE = error(
    "line.duplicate",
    "the line occurs twice",
    "each line once",
    "remove the second one",
    mendable=True,
)

JSON_SYNTAX = error("json.syntax", "not JSON", "one JSON object a line", LINE_REMEDY)
JSON_OBJECT = error("json.not_object", "not a JSON object", "one JSON object a line", LINE_REMEDY)
JSON_KEY = error(
    "json.missing_key", "a key is missing", '{"audio": "wavs/a.wav", "text": "..."}', LINE_REMEDY
)
JSON_TYPE = error(
    "json.type", "a value is not a text", '{"audio": "wavs/a.wav", "text": "..."}', LINE_REMEDY
)
JSON_SURROGATE = error(
    "json.surrogate",
    "a text holds half of a surrogate pair",
    "whole characters",
    "write the character itself",
)
JSON_REPEATED_KEY = warning(
    "json.repeated_key",
    "a key occurs twice, the last one counts",
    "each key once",
    "remove one of them",
)
JSON_MISSPELT_KEY = warning(
    "json.misspelt_key",
    "an unknown key, which is ignored",
    "audio, text, normalized_text, id, speaker",
    "rename the key",
)

ID_DUPLICATE = error("id.duplicate", "an id occurs twice", "ids that differ", LINE_REMEDY)
ID_CASE = warning(
    "id.case_clash",
    "ids differ only in case or Unicode form",
    "ids that also differ on disks that ignore case",
    "rename one",
)
ID_UNSAFE = warning(
    "id.unsafe",
    "the id is no safe file name",
    "letters, digits, . _ - and /, at most 200 bytes, no device's name",
    "rename it: samples and reports are named after ids",
)
ID_INVISIBLE = warning(
    "id.invisible",
    "the id holds a control or zero-width character",
    "visible characters",
    "rename it; it looks like another id",
)

SPEAKER_TYPE = error(
    "speaker.type", "the speaker is not a text", '"speaker": "ann"', "write the name in quotes"
)
SPEAKER_MISSING = error(
    "speaker.missing",
    "this utterance has no speaker, others do",
    "a speaker for every utterance or for none",
    LINE_REMEDY,
)
SPEAKER_ALIKE = warning(
    "speaker.alike",
    "two speakers whose names differ only in case, spaces or Unicode form",
    "one form of each name",
    "write it one way: they would become two voices",
)
SPEAKER_UNTRAINED = warning(
    "speaker.untrained",
    "a speaker is on the validation side alone",
    "utterances for training",
    "add some: this voice is never trained",
)

SPLIT_NO_TRAIN = error(
    "split.no_train",
    "no utterance is left for training",
    "at least one on each side",
    "add utterances or change data.valid_fraction",
)
SPLIT_NO_VALID = error(
    "split.no_valid",
    "no utterance is left for validation",
    "at least one on each side",
    "add utterances or change data.valid_fraction",
)
SPLIT_TEXT = warning(
    "split.text_leaks",
    "the same words are on both sides of the split",
    "held-out sentences that training never sees",
    "write them alike: equal texts stay on one side",
)
SPLIT_AUDIO = warning(
    "split.audio_leaks",
    "the same sound is on both sides of the split",
    "held-out recordings that training never sees",
    "remove one of the two lines",
)
