"""What was found when a corpus was read."""

import logging
from dataclasses import dataclass, field

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class UnknownSymbol:
    """A symbol outside the alphabet: how often, and where first."""

    symbol: str
    count: int
    where: str


@dataclass(frozen=True)
class CorpusReport:
    """What was found when the corpus was read."""

    num_train: int
    num_valid: int
    seconds: float
    skipped: dict[str, int] = field(default_factory=dict)
    """Reason to utterances left out."""
    unknown_symbols: tuple[UnknownSymbol, ...] = ()


def tell(report: CorpusReport) -> None:
    """A few lines of the log."""
    log.info(
        "corpus: %d utterances for training, %d for validation, %.1f minutes",
        report.num_train,
        report.num_valid,
        report.seconds / 60,
    )
    for reason, count in report.skipped.items():
        log.warning("skipped %d utterances %s", count, reason)
    if report.unknown_symbols:
        log.warning(
            "symbols outside the alphabet are left out: %s",
            ", ".join(
                f"{row.symbol!r} (U+{ord(row.symbol):04X}) x{row.count}, first at {row.where}"
                for row in report.unknown_symbols
            ),
        )
