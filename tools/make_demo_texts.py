"""Write the demo corpus's sentences: ``python tools/make_demo_texts.py [FOLDER]``.

A closed vocabulary in a few sentence frames, so that a small model becomes intelligible within
minutes on a CPU. Every slot takes its least-used filler next, which keeps the words balanced.
Numbers are spelt out: what is read is exactly what stands in the text.
"""

import random
import string
import sys
from collections import Counter
from pathlib import Path

SEED = 38
NUM_TRAIN = 1080
NUM_UNSEEN = 80
NUM_MORE = 500
"""Also unseen, to count how often a trained run fails: rare failures need many texts."""


def _list(words: str) -> list[str]:
    return words.split()


UNITS = _list("one two three four five six seven eight nine")
TEENS = _list("thirteen fourteen fifteen sixteen seventeen eighteen nineteen")
TENS = _list("twenty thirty forty fifty sixty seventy eighty ninety")
MONTHS = _list(
    "January February March April May June July August September October November December"
)
ORDINALS = _list("first second third fourth fifth sixth seventh eighth ninth")

SLOTS: dict[str, list[str]] = {
    "digit": ["zero", *UNITS],
    "hour": [*UNITS, "ten", "eleven", "twelve", "ten", "eleven", "twelve", "eleven"],
    "minute": ["{tens}", "{tens} {unit}", "{teen}", "{teen}", "{teen}"],
    "small": ["{teen}", "{teen}", "{teen}", "{decade}", "{decade} {unit}"],
    "unit": UNITS,
    "teen": TEENS,
    "tens": TENS[:4],
    "decade": [*TENS, *TENS[4:], *TENS[4:], "sixty"],
    "month": MONTHS,
    "ordinal": ORDINALS,
    "day": ["{ordinal}", "{ordinal}", "{ordinal}", "twenty {ordinal9}"],
    "ordinal9": ORDINALS[:9],
    "weekday": _list("Monday Tuesday Wednesday Thursday Friday Saturday Sunday"),
    "part": ["morning", "evening"],
    "vehicle": ["train", "bus", "plane"],
    "move": ["leaves", "arrives"],
    "city": _list("London Paris Boston Chicago Dallas"),
    "switch": ["on", "off"],
    "device": _list("light radio"),
    "room": _list("kitchen bedroom bathroom office garden"),
    "open": ["open", "close"],
    "Open": ["Open", "Close"],
    "closable": ["door", "window"],
    "color": _list("red blue green yellow white black"),
    "thing": _list("book box chair bag"),
    "drink": _list("coffee water milk"),
    "weather": _list("sunny cloudy windy cold"),
    "when": ["tomorrow {part}"],
    "event": ["meeting", "party", "lesson"],
}

FRAMES: tuple[tuple[int, str], ...] = (
    (3, "The number is {digit} {digit} {digit} {digit}."),
    (3, "My code is {digit} {digit} {digit}."),
    (2, "Please call {digit} {digit} {digit} {digit} {digit}."),
    (5, "The {vehicle} {move} at {hour} {minute}."),
    (9, "It is {hour} {minute} in the {part}."),
    (5, "The {event} starts at {hour} {minute}."),
    (4, "Please call me at {hour} {minute}."),
    (7, "The {event} is on {month} {day}."),
    (7, "My birthday is on {month} {day}."),
    (14, "Today is {weekday}, {month} {day}."),
    (8, "The {vehicle} from {city} {move} on {month} {day}."),
    (4, "The ticket to {city} costs {small} dollars."),
    (9, "The {color} {thing} costs {small} dollars and {decade} cents."),
    (5, "We have {unit} hundred {small} tickets."),
    (4, "Turn {switch} the {device} in the {room}."),
    (7, "Turn {switch} the {device} and {open} the {closable} in the {room}."),
    (5, "{Open} the {color} {closable} in the {room}."),
    (7, "Put the {color} {thing} in the {room}."),
    (8, "I would like {unit} cups of {drink}, please."),
    (5, "We have {drink} and {drink} in the {room}."),
    (6, "It will be {weather} in {city} {when}."),
    (6, "It will be {weather} and {weather} on {weekday}."),
    (4, "The {event} on {weekday} is in {city}."),
)


class Writer:
    """Fills the frames; remembers how often each filler was used."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.used: Counter[tuple[str, str]] = Counter()

    def pick(self, slot: str) -> str:
        """The least-used filler of a slot, ties broken by chance, its own slots filled."""
        choices = [
            (self.used[slot, filler], self.rng.random(), filler)
            for filler in dict.fromkeys(SLOTS[slot])
        ]
        weight = Counter(SLOTS[slot])
        _, _, filler = min((count / weight[text], tie, text) for count, tie, text in choices)
        self.used[slot, filler] += 1
        return self.fill(filler)

    def fill(self, frame: str) -> str:
        """A frame with every ``{slot}`` filled."""
        parts = string.Formatter().parse(frame)
        return "".join(text + (self.pick(slot) if slot else "") for text, slot, _, _ in parts)

    def sentences(self, count: int, known: set[str]) -> list[str]:
        """Distinct sentences that are not ``known``, the frames in their proportions."""
        deck = [frame for weight, frame in FRAMES for _ in range(weight)]
        found: dict[str, None] = {}
        while len(found) < count:
            self.rng.shuffle(deck)
            for frame in deck:
                sentence = self.fill(frame)
                if sentence not in known:
                    found[sentence] = None
        return list(found)[:count]


def words(sentences: list[str]) -> Counter[str]:
    """How often each lower-cased word occurs."""
    strip = str.maketrans("", "", ".,")
    return Counter(w for s in sentences for w in s.lower().translate(strip).split())


def main() -> None:
    """Write ``demo.txt``, ``demo_unseen.txt`` and ``demo_more.txt``; print the words' balance."""
    default = Path(__file__).resolve().parent.parent / "data" / "texts"
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    writer = Writer(SEED)
    train = writer.sentences(NUM_TRAIN, set())
    unseen = writer.sentences(NUM_UNSEEN, set(train))
    more = Writer(SEED + 1).sentences(NUM_MORE, {*train, *unseen})
    lists = {"demo.txt": train, "demo_unseen.txt": unseen, "demo_more.txt": more}
    for name, sentences in lists.items():
        text = "".join(f"{sentence}\n" for sentence in sentences)
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    counts = words(train)
    rare = ", ".join(f"{word} {count}" for word, count in counts.most_common()[-5:])
    print(
        f"{len(train)} + {len(unseen)} + {len(more)} sentences, {len(counts)} words, rarest: {rare}"
    )


if __name__ == "__main__":
    main()
