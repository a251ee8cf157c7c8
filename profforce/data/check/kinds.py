"""A kind of defect, and the one error that training raises for those it refuses."""

from dataclasses import dataclass
from enum import StrEnum

from profforce.errors import UserError


class Severity(StrEnum):
    """How much a defect matters."""

    error = "error"
    """Training refuses the corpus."""
    warning = "warning"
    """Training goes on, and the voice is the worse for it."""
    note = "note"
    """Worth knowing; handled when the corpus is read."""


@dataclass(frozen=True)
class Kind:
    """One kind of defect."""

    code: str
    """Stable name, ``subject.defect``."""
    severity: Severity
    what: str
    expected: str
    remedy: str
    mendable: bool = False
    """Whether ``--fix`` mends the line; lines with errors of other kinds are left out."""


def error(code: str, what: str, expected: str, remedy: str, *, mendable: bool = False) -> Kind:
    """A kind that training refuses."""
    return Kind(code, Severity.error, what, expected, remedy, mendable)


def warning(code: str, what: str, expected: str, remedy: str, *, mendable: bool = False) -> Kind:
    """A kind that costs quality."""
    return Kind(code, Severity.warning, what, expected, remedy, mendable)


def note(code: str, what: str, expected: str, remedy: str, *, mendable: bool = False) -> Kind:
    """A kind that does no harm."""
    return Kind(code, Severity.note, what, expected, remedy, mendable)


def printable(text: object) -> str:
    """``text`` with escapes for what a terminal would obey or hide; a file's name may hold it."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


class DefectError(UserError):
    """A defect that training refuses; ``profforce data check`` reports all of them at once."""

    def __init__(
        self,
        kind: Kind,
        *,
        where: object,
        what: str | None = None,
        got: object = None,
        expected: object = None,
    ) -> None:
        super().__init__(
            what or kind.what,
            where=printable(where),
            got=None if got is None else printable(got),
            expected=printable(expected or kind.expected),
            remedy=f"{kind.remedy} [{kind.code}]",
        )
        self.kind = kind
        self.where = str(where)
        self.got = None if got is None else str(got)
        self.expected = None if expected is None else str(expected)
