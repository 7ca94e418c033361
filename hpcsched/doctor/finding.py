"""What one look has found."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Verdict(StrEnum):
    OK = "ok"
    WARN = "warn"
    """It works, but not well; or only for some experiments."""
    FAIL = "FAIL"
    """Runs will not work before this is mended."""
    SKIP = "skip"
    """Could not be tried here."""


class Finding(msgspec.Struct, frozen=True):
    what: str
    verdict: Verdict
    said: str
    """What was seen, with its numbers."""
    cure: str = ""


def ok(what: str, said: str) -> Finding:
    return Finding(what, Verdict.OK, said)


def warn(what: str, said: str, cure: str) -> Finding:
    return Finding(what, Verdict.WARN, said, cure)


def fail(what: str, said: str, cure: str) -> Finding:
    return Finding(what, Verdict.FAIL, said, cure)


def skip(what: str, said: str, cure: str = "") -> Finding:
    return Finding(what, Verdict.SKIP, said, cure)


def line_of(finding: Finding) -> str:
    text = f"{finding.verdict.value:<4}  {finding.what}: {finding.said}"
    return text + (f"\n      cure: {finding.cure}" if finding.cure else "")
