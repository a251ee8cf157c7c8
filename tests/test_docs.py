"""What every page names is there: files, headings, settings and their defaults."""

import dataclasses
import re
import typing
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

import pytest

from profforce.config import BenchConfig, EvaluateConfig, SampleConfig, TrainConfig
from profforce.groups import config_groups

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "data/README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = (TrainConfig, SampleConfig, EvaluateConfig, BenchConfig)
SECTIONS = ("data", "discriminator", "faults", "freerun", "mel", "method", "model", "text")

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


def settings(schema: type, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Every setting of a command with its default, ``section.name``."""
    types = typing.get_type_hints(schema)
    for field in dataclasses.fields(schema):
        kind, name = types[field.name], prefix + field.name
        if dataclasses.is_dataclass(kind):
            yield from settings(typing.cast(type, kind), f"{name}.")
        elif field.default is not dataclasses.MISSING:
            yield name, field.default
        else:
            factory = field.default_factory
            yield name, None if factory is dataclasses.MISSING else factory()


DEFAULTS = [dict(settings(schema)) for schema in COMMANDS]
NAMES = {name for command in DEFAULTS for name in command} | set(config_groups())


def anchor(heading: str) -> str:
    """The name that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@each_page
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        name, _, place = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        if place:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.M)
            assert place in map(anchor, headings), link


@each_page
def test_every_file_that_is_named_exists(page: Path) -> None:
    named = r"(?<![\w./-])((?:tools|tests|docs|conf|profforce|data/texts)/[\w./-]+\.\w+)"
    for name in re.findall(named, page.read_text(encoding="utf-8")):
        assert (ROOT / name).exists(), name


@each_page
def test_every_setting_that_is_named_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    known = NAMES | {"model.safetensors"}
    if page.name == "data_check.md":
        known |= set(re.findall(r"^\| `([a-z]+\.[a-z_0-9]+)`", text, re.M))  # kinds of defects
    named = rf"(?<![\w./-])((?:{'|'.join(SECTIONS)}|trainer)\.[a-z_0-9]+)(?:`|=)"
    for name in re.findall(named, text):
        assert name in known, name


def table_cells(line: str) -> list[str]:
    """What stands between the bars of a table's line."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def documented_defaults(text: str) -> Iterator[tuple[str, str]]:
    """Setting and default of the tables that have a column for both."""
    for table in re.findall(r"(?:^\|.*\n)+", text, re.M):
        header, _, *rows = (table_cells(line) for line in table.splitlines())
        of_names = [i for i, cell in enumerate(header) if re.match(r"name|setting", cell)]
        if not of_names or "default" not in header:
            continue
        common = re.search(r"\(`(.*)`\)", header[of_names[0]])
        for row in rows:
            names = re.findall(r"`([^`]+)`", row[of_names[0]])
            values = [v.strip("` ") for v in row[header.index("default")].split(",")]
            section = names[0].split(".")[0] if names else ""
            values *= len(names) if len(values) == 1 else 1
            for name, value in zip(names, values, strict=True):
                whole = section + name if name.startswith(".") else name
                yield (common[1] if common else "") + whole, value


def is_default(told: str, value: object) -> bool:
    """Whether a page's words for a default are those of the code."""
    value = value.value if isinstance(value, Enum) else value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return re.fullmatch(r"[\d.e-]+", told) is not None and float(told) == value
    return told == {"None": "none"}.get(str(value), str(value).lower())


@each_page
def test_the_defaults_in_tables_are_those_of_the_code(page: Path) -> None:
    in_words = {"data.root": "per recipe", "freerun.batch_size": "half of `trainer.batch_size"}
    for name, told in documented_defaults(page.read_text(encoding="utf-8")):
        values = [command[name] for command in DEFAULTS if name in command]
        assert values, name
        assert told == in_words.get(name) or any(is_default(told, v) for v in values), (name, told)


def test_defaults_in_tables_are_found() -> None:
    told = [row for page in PAGES for row in documented_defaults(page.read_text(encoding="utf-8"))]
    assert len(told) > 45
    assert {("faults.max_hurry", "2.6"), ("discriminator.loss", "bce")} <= set(told)
    assert not is_default("2.5", 2.6) and not is_default("half", 2.6) and is_default("1e-3", 0.001)
