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
            where=where,
            got=got,
            expected=expected or kind.expected,
            remedy=f"{kind.remedy} [{kind.code}]",
        )
        self.kind = kind
        self.where = str(where)
        self.got = None if got is None else str(got)
        self.expected = None if expected is None else str(expected)
