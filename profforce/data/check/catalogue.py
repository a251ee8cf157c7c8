"""Every kind of defect by its code, in the order in which reports show them."""

from profforce.data.check import audio_kinds, manifest_kinds, text_kinds
from profforce.data.check.kinds import Kind, Severity

KINDS: dict[str, Kind] = {
    kind.code: kind
    for severity in Severity
    for module in (manifest_kinds, text_kinds, audio_kinds)
    for kind in vars(module).values()
    if isinstance(kind, Kind) and kind.severity is severity
}
