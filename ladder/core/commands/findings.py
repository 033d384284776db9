"""What `check` found, as GitHub shows it beside the code: annotations of a workflow, and SARIF.

A finding is at the line that a report names; without one, at the first line of the kernel's file.
SARIF is of version 2.1.0, with what GitHub's code scanning asks for.
"""

import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from ladder.core.common.command_line import version
from ladder.core.common.errors import LadderError
from ladder.core.common.files import read_text
from ladder.core.contract.op import format_dims

PLACE = re.compile(r"^(?:\s*line: )?(\S.*?\.(?:cuh?|py)):(\d+)(?::\d+)?: ", re.MULTILINE)
_RULES = {
    "kernel-fault": "The kernel does what it must not: a race, a bad access, a misused barrier.",
    "wrong-result": "The kernel's result is not that of the reference.",
}
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


class Finding(NamedTuple):
    """What is wrong, where. `file` is relative to the working directory where it lies below it."""

    rule: str
    file: str
    line: int
    text: str


def findings(reports: Sequence[dict[str, Any]]) -> list[Finding]:
    """One for each line that reports, as `check` prints them in JSON, name."""
    by_place: dict[tuple[str, int], Finding] = {}
    for report in reports:
        failed = [each for each in report["outcomes"] if each["status"] in ("failed", "fault")]
        for outcome in failed or ([] if report["passed"] else [{"detail": report["text"]}]):
            detail = outcome["detail"].replace(f"{Path.cwd()}{os.sep}", "")
            places = [(file, line) for _, file, line in outcome.get("problems", ())]
            if not report["outcomes"]:  # the message of a compiler, or on a line of a reference
                places = PLACE.findall(detail)
            named = [(_relative(file), max(int(line), 1)) for file, line in places]
            own = [place for place in named if not os.path.isabs(place[0])]
            place = own[0] if own else (_relative(report["file"]), 1)
            if shape := outcome.get("dims"):
                detail = f"at {format_dims(shape)}, {outcome['dtype']}: {detail}"
            rule = "kernel-fault" if named else "wrong-result"
            by_place.setdefault(place, Finding(rule, *place, f"{report['op']}: {detail}"))
    return list(by_place.values())


def _relative(file: str) -> str:
    path = os.path.relpath(file)
    return os.path.abspath(file) if path.startswith("..") else path


def as_annotations(reports: Sequence[dict[str, Any]]) -> str:
    """Commands of a GitHub workflow, a line each."""

    def escaped(text: str, also: str = "") -> str:
        return re.sub(f"[%\r\n{also}]", lambda match: f"%{ord(match[0]):02X}", text)

    return "\n".join(
        f"::error file={escaped(each.file, ':,')},line={each.line},title={each.rule}::"
        f"{escaped(each.text)}"
        for each in findings(reports)
    )


def as_sarif(reports: Sequence[dict[str, Any]]) -> str:
    """A SARIF log with one run."""
    texts = ("shortDescription", "fullDescription", "help")
    rules = [{"id": id, **{key: {"text": text} for key in texts}} for id, text in _RULES.items()]
    driver = {"name": "Kernel Ladder", "version": version(), "rules": rules}
    run = {"tool": {"driver": driver}, "results": [_result(each) for each in findings(reports)]}
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1)


def _result(finding: Finding) -> dict[str, Any]:
    try:
        text = read_text(Path(finding.file)).splitlines()[finding.line - 1]
    except (LadderError, IndexError):
        text = ""
    region = {"startLine": finding.line, "startColumn": 1}
    region |= {"endLine": finding.line, "endColumn": len(text) + 1}
    place = {"artifactLocation": {"uri": quote(finding.file)}, "region": region}
    return {
        "ruleId": finding.rule,
        "level": "error",
        "message": {"text": finding.text},
        "locations": [{"physicalLocation": place}],
        "partialFingerprints": {
            "primaryLocationLineHash": f"{hashlib.sha256(text.encode()).hexdigest()[:16]}:1"
        },
    }
