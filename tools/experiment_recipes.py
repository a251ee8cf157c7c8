"""Reading the recipes of an experiment: each gets all of its words, also those it builds on.

A file is ``{"start": [...], "common": [...], "recipes": [{"name": ..., "overrides": [...]}]}``. A
recipe with ``"like": NAME`` has the overrides of another one before its own. A file with ``"like":
FILE``, a path beside it, goes on from that file's lists; those that it leaves out are as there.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from profforce.errors import UserError, did_you_mean

START = "start"
"""Name of the row that examines the start itself."""
LISTS = ("start", "common", "recipes")
LIKE = "like"
RECIPE = {"name", "overrides", LIKE}
EXPECTED = "JSON with start, common and recipes, each with name and overrides; or like another"


def read_recipes(path: Path) -> dict[str, Any]:
    """``{"start": [...], "common": [...], "recipes": [{"name": ..., "overrides": [...]}]}``.

    Raises:
        UserError: for a file that cannot be read or is none of recipes, names that are missing or
            twice the same, words that are no overrides, and recipes or files that build on what
            is not there or on each other.
    """
    plan = _with_base(path, ())
    names = [recipe["name"] for recipe in plan["recipes"]]
    if not names or len(set(names)) < len(names) or START in names:
        raise UserError(
            "recipes need names of their own", where=path, got=names, expected=f"not '{START}'"
        )
    known = {recipe["name"]: recipe for recipe in plan["recipes"]}
    expanded = [{"name": name, "overrides": _words(name, known, (), path)} for name in names]
    return {"start": plan["start"], "common": plan["common"], "recipes": expanded}


def _with_base(path: Path, above: Sequence[Path]) -> dict[str, Any]:
    """The three lists of a file, after those of the files that it builds on."""
    _refuse_circle([file.name for file in above], path.name, path.resolve() in above, path)
    plan = _read(path)
    if LIKE not in plan:
        return plan
    base = _with_base(path.parent / plan[LIKE], (*above, path.resolve()))
    return {key: base[key] + plan[key] for key in LISTS}


def _words(
    name: str, known: dict[str, dict[str, Any]], above: Sequence[str], path: Path
) -> list[str]:
    """All overrides of a recipe, those of the recipes that it builds on first."""
    _refuse_circle(above, name, name in above, path)
    recipe = known[name]
    if LIKE not in recipe:
        return list(recipe["overrides"])
    base = recipe[LIKE]
    if base not in known:
        raise UserError(
            f"recipe '{name}' is like '{base}', which is none{did_you_mean(base, known)}",
            where=path,
            expected=", ".join(other for other in known if other != name),
        )
    return [*_words(base, known, (*above, name), path), *recipe["overrides"]]


def _refuse_circle(above: Sequence[str], name: str, is_closed: bool, path: Path) -> None:
    if is_closed:
        raise UserError("they build on each other", where=path, got=" -> ".join((*above, name)))


def _read(path: Path) -> dict[str, Any]:
    """One file as it stands: its three lists, and what it is like."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        lists = {key: told.get(key, []) if LIKE in told else told[key] for key in LISTS}
        names = [recipe["name"] for recipe in lists["recipes"]]
        words = [lists["start"], lists["common"], *(r["overrides"] for r in lists["recipes"])]
        bases = [part[LIKE] for part in (told, *lists["recipes"]) if LIKE in part]
        unknown = {*told} - {*LISTS, LIKE}
        unknown |= {key for recipe in lists["recipes"] for key in recipe} - RECIPE
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        got = f"{type(error).__name__} {error}"
        raise UserError(
            "cannot read the recipes", where=path, got=got, expected=EXPECTED
        ) from error
    if unknown:
        got = ", ".join(sorted(unknown))
        raise UserError("recipes have no such key", where=path, got=got, expected=EXPECTED)
    if not all(isinstance(text, str) for text in (*names, *bases)):
        raise UserError("names are texts", where=path, got=[*names, *bases])
    if not isinstance(lists["recipes"], list):
        raise UserError("recipes are a list", where=path, got=lists["recipes"], expected=EXPECTED)
    if not all(isinstance(part, list) and all(map(_is_override, part)) for part in words):
        raise UserError("overrides are lists of KEY=VALUE", where=path)
    return {**told, **lists}


def _is_override(word: object) -> bool:
    return isinstance(word, str) and "=" in word
