"""Shell completion of Hydra overrides inside a Typer command.

Bash splits words at "=": ``model=li`` arrives as the words ``model`` and ``=`` plus the incomplete
``li``, and wants back only ``linear``. Zsh and fish pass, and want back, ``model=linear``.
"""

import os

from profforce.groups import CONF_PACKAGE


def at_equals() -> bool:
    """Is the cursor right after bash's own word "="? (Typer hides that word.)"""
    words = os.environ.get("COMP_WORDS", "").split("\n")
    index = int(os.environ.get("COMP_CWORD") or 0)
    return index < len(words) and words[index] == "="


def rejoin(words: list[str]) -> list[str]:
    """Undo bash's split: ``["model", "=", "linear"]`` becomes ``["model=linear"]``."""
    joined: list[str] = []
    value_follows = False
    for word in words:
        if word == "=" and joined:
            joined[-1] += "="
            value_follows = True
        elif value_follows:
            joined[-1] += word
            value_follows = False
        else:
            joined.append(word)
    return joined


def complete(name: str, words: list[str], incomplete: str) -> list[str]:
    """Completions of ``incomplete`` after the overrides ``words`` of config ``name``.

    Hydra offers its query to its own shell plugins only, so this reaches into ``hydra._internal``;
    when that moves, completion offers nothing and every command still works.
    """
    try:
        return _query(name, words, incomplete)
    except Exception:  # a traceback in the middle of a command line being typed helps nobody
        return []


def _query(name: str, words: list[str], incomplete: str) -> list[str]:
    from hydra import version
    from hydra._internal.core_plugins.bash_completion import BashCompletion
    from hydra._internal.hydra import Hydra
    from hydra._internal.utils import create_automatic_config_search_path
    from hydra.core.global_hydra import GlobalHydra

    from profforce.bridge import VERSION_BASE, register_schemas

    register_schemas()
    version.setbase(VERSION_BASE)
    words, head = rejoin(words), ""
    if words and words[-1].endswith("="):
        head = words.pop()
    path = create_automatic_config_search_path(None, None, f"pkg://{CONF_PACKAGE}")
    hydra = Hydra.create_main_hydra2(name, path)
    try:
        line = " ".join([*(word for word in words if "=" in word), head + incomplete])
        found = BashCompletion(hydra.config_loader)._query(config_name=name, line=line or " ")
    finally:
        GlobalHydra.instance().clear()
    return [
        word.removeprefix(head)
        for word in found
        if not word.startswith("hydra") and not word.endswith("_schema")
    ]
