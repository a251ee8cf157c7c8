"""Kinds of defects of an audio file: where it lies, what it holds, how it sounds."""

from profforce.audio.rates import RATES
from profforce.data.check.kinds import error, note, warning

RECORD = "record it again or remove its line"
SILENT_PEAK = 1e-7
"""Less than one step of 24 bits: at this peak the whole mel lies at ``mel.log_floor``."""
FORMATS = "a wav, flac, ogg or mp3 file"

AUDIO_UNNAMED = error("audio.unnamed", "no audio file named", "an id or a path", "name the file")
AUDIO_ESCAPES = error(
    "audio.escapes",
    "the audio path leaves the corpus folder",
    "a path below the corpus folder",
    "move the file into the corpus",
)
AUDIO_MISSING = error(
    "audio.missing", "no such audio file", "a file", "add the file or remove the line"
)
AUDIO_CASE = error(
    "audio.case",
    "no such audio file, but one that differs in case",
    "the name as on disk",
    "rename the file or the id",
)
AUDIO_FORMAT = error(
    "audio.format",
    "the audio is of a format that is not read",
    FORMATS,
    "convert it to wav or flac",
)
AUDIO_NOT_A_FILE = error(
    "audio.not_a_file",
    "a folder, pipe or device where the audio should be",
    "a regular file",
    "replace it by the audio",
)
AUDIO_DANGLING = error(
    "audio.dangling_link",
    "a symbolic link to a file that is not there",
    "a link to a file",
    "mend the link or copy the file",
)
AUDIO_LOOP = error(
    "audio.link_loop",
    "symbolic links that lead in a circle",
    "a link to a file",
    "mend the link or copy the file",
)
AUDIO_UNREADABLE = error(
    "audio.unreadable",
    "the audio file may not be read",
    "a file that can be read",
    "check its permissions",
)
AUDIO_OUTSIDE = note(
    "audio.linked_outside",
    "a symbolic link that leaves the corpus",
    "a corpus that can be moved as a whole",
    "none needed here; copy the file before you move the corpus",
)
AUDIO_SHARED = warning(
    "audio.shared",
    "two lines name the same audio file",
    "a file an utterance",
    "remove one of the lines",
)
AUDIO_SAME_SOUND = warning(
    "audio.same_sound",
    "two files hold the same sound",
    "a recording an utterance",
    "remove one; if their texts differ, one of them is wrong",
)
AUDIO_UNLISTED = note(
    "audio.unlisted",
    "an audio file that no line names",
    "a line for it",
    "add its line, or remove the file",
)
AUDIO_AMBIGUOUS = warning(
    "audio.ambiguous",
    "two audio files fit one id, this one is not used",
    "one file an id",
    "remove the wrong one",
)
FOLDER_LOOP = warning(
    "folder.link_loop",
    "a linked folder that contains itself",
    "folders without circles",
    "remove the link: other tools follow it for ever",
)

AUDIO_EMPTY = error("audio.empty_file", "audio file is empty", "sound", RECORD)
AUDIO_NO_SAMPLES = error("audio.no_samples", "audio file is empty", "sound", RECORD)
AUDIO_CORRUPT = error("audio.corrupt", "cannot read audio", FORMATS, RECORD)
AUDIO_TRUNCATED = error(
    "audio.truncated",
    "the wav ends before the length that its header gives",
    "a whole file",
    "copy it again",
)
AUDIO_ODD_RATE = error(
    "audio.odd_rate",
    "audio of this sample rate is not converted",
    RATES,
    "see whether the header is damaged, or resample the file",
)
AUDIO_NOT_FINITE = error(
    "audio.not_finite",
    "audio holds values that are not finite",
    "numbers",
    "write the file again from its source",
)
AUDIO_SILENT = error("audio.silent", "the audio is silent throughout", "speech", RECORD)

AUDIO_QUIET = warning("audio.quiet", "very quiet audio", "a peak above -30 dBFS", "raise its level")
AUDIO_CLIPPED = warning(
    "audio.clipped",
    "clipped: samples stay at full scale",
    "peaks below full scale",
    "record it again at a lower level",
)
AUDIO_BEYOND = warning(
    "audio.beyond_full_scale",
    "float samples beyond full scale",
    "samples from -1 to 1",
    "scale the file; a 16-bit copy of it would be clipped",
)
AUDIO_DC = warning("audio.dc_offset", "a constant offset", "a mean of 0", "high-pass the file")
AUDIO_LEADING = note(
    "audio.leading_silence",
    "long silence before the speech",
    "at most 1 s",
    "none needed while data.trim_db is set",
)
AUDIO_TRAILING = note(
    "audio.trailing_silence",
    "long silence after the speech",
    "at most 1 s",
    "none needed while data.trim_db is set",
)
AUDIO_PAUSE = warning(
    "audio.long_pause",
    "a long pause inside the speech",
    "pauses of at most 2 s",
    "cut the pause or split the utterance",
)
AUDIO_SHORT = warning(
    "audio.too_short",
    "shorter than data.min_seconds, so it is skipped",
    "longer audio",
    "lower data.min_seconds or remove the line",
)
AUDIO_LONG = warning(
    "audio.too_long",
    "longer than data.max_seconds, so it is skipped",
    "shorter audio",
    "split the utterance or raise data.max_seconds",
)
AUDIO_LOW_RATE = warning(
    "audio.low_rate",
    "the sample rate is too low for the mel's highest frequency",
    "at least twice mel.fmax_hz",
    "lower mel.fmax_hz or use better recordings",
)
AUDIO_RATE = note(
    "audio.rate", "another sample rate than the mel's", "mel.sample_rate", "none: it is resampled"
)
AUDIO_MIXED_RATES = warning(
    "audio.mixed_rates",
    "files of one corpus have different sample rates",
    "one rate, as bandwidth is part of the voice",
    "use recordings of one origin",
)
AUDIO_STEREO = note("audio.stereo", "more than one channel", "mono", "none: they are averaged")
AUDIO_COARSE = warning(
    "audio.coarse",
    "8 bits a sample, which are heard as noise",
    "16 bits",
    "use better recordings",
)
AUDIO_WIDE = note(
    "audio.wide_samples", "more than 16 bits a sample", "16 bits", "none: they are read in full"
)
AUDIO_FLOAT = note("audio.float", "floating-point samples", "16 bits", "none: they are read as is")
AUDIO_LOSSY = note(
    "audio.lossy", "lossily compressed", "wav or flac", "none, if there is no better copy"
)
AUDIO_UNBOUNDED = note(
    "audio.unbounded",
    "the wav's header gives no length, as pipes write it",
    "the length",
    "none: it is read to its end",
)
