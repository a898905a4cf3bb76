"""Pages and tables of the papers' reproductions, from the JSON of `ebbtide reproduce`.

The README has a row for each paper. The page of claims has an overview and every claim: its tolerance, and the
reason why it fails or has no figure.

python -m ebbtide_papers.readme_table data/reproductions --readme README.md --claims docs/papers/claims.md
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ebbtide.base.files import write_text
from ebbtide.errors import InputError
from ebbtide_papers.reproduction import counted, is_missing

PAPERS_BEGIN, PAPERS_END = "<!-- papers: begin -->", "<!-- papers: end -->"
BEGINS, ENDS = "<!-- results: begin -->", "<!-- results: end -->"
CLAIMS_BEGIN, CLAIMS_END = "<!-- claims: begin -->", "<!-- claims: end -->"

_COMMAND = (
    "python -m ebbtide_papers.readme_table data/reproductions --readme README.md --claims docs/papers/claims.md"
)
_FILLS = (
    "All claims stand here once `ebbtide reproduce NAME --json data/reproductions/NAME.json` has been run for "
    f"each system: `{_COMMAND}` fills this block. Until then, counts above are of the runs before."
)

# Each system with its paper, and what Ebbtide takes from it.
USES = {
    "spottune": (
        "SpotTune",
        "forecasts of interruptions, refunds of the first hour, early ends of weak trials",
    ),
    "dynamic-pricing": (
        "Training on a Dime (Dynamic Pricing)",
        "many jobs shared out over instance types",
    ),
    "deepspotcloud": ("DeepSpotCloud", "moves between zones and regions"),
    "cumulon": ("Cümülön-D", "clusters that grow and shrink towards a deadline"),
    "exosphere": ("ExoSphere", "a cluster spread over markets like a portfolio"),
    "deadlines": (
        "Can't Be Late",
        "spot machines as long as an on-demand machine can still meet the deadline",
    ),
}

# The claims of each paper's abstract, by row.
HEADLINES = {
    "spottune": ("cost_saving_theta07_vs_cheapest", "cost_saving_theta07_vs_fastest", "top3_accuracy_theta07"),
    "dynamic-pricing": ("total_cost_reduction_max", "dynamic_cost_reduction_max"),
    "deepspotcloud": ("hourly_cost_vs_interrupt_1w", "migrate_cost_vs_interrupt_1w"),
    "cumulon": ("dynamic_mean_cost", "fixed_mean_cost", "on_demand_only_cost"),
    "deadlines": ("gap_closed_overall", "multi_v100_cost_vs_optimum", "multi_h100_cost_vs_optimum"),
    "exosphere": ("saving_vs_on_demand", "risk_vs_best_greedy"),
}


def read_reproductions(folder: Path) -> list[dict[str, Any]]:
    """All reproductions in a folder, by name; none if the folder is missing.

    Raises:
        InputError: A file is not a reproduction.
    """
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            content["rows"], content["name"]
        except (ValueError, KeyError, TypeError):
            raise InputError("is nothing that `ebbtide reproduce --json` wrote", file=path) from None
        found.append(content)
    return found


def overview(contents: Sequence[Mapping[str, Any]]) -> str:
    """A table of all papers: number of claims that hold, and the abstract's claims with our results."""
    lines = ["| system | claims that hold | for example | paper | here |", "|---|---|---|---|---|"]
    for content in contents:
        rows = {row["id"]: row for row in content["rows"]}
        hold = counted(content["rows"])
        wanted = [rows[row_id] for row_id in HEADLINES.get(content["name"], ()) if row_id in rows]
        for place, row in enumerate(wanted or [content["rows"][0]]):
            first = (content["name"], hold) if not place else ("", "")
            cells = (*first, row["claim"], _figure(row["paper"]), _figure(row["ours"]))
            lines.append(_line(cells))
    return "\n".join(lines) + "\n"


def by_paper(contents: Sequence[Mapping[str, Any]]) -> str:
    """A table with a row for each paper: what Ebbtide takes from it, and the number of claims that hold."""
    hold = {content["name"]: counted(content["rows"]) for content in contents}
    lines = ["| paper | used for | claims that hold here |", "|---|---|---|"]
    lines += [_line([*USES[name], hold.get(name, "not reproduced")]) for name in USES]
    return "\n".join(lines) + "\n"


def all_claims(contents: Sequence[Mapping[str, Any]]) -> str:
    """Every claim of every paper, then those that fail and those without a figure, with the reason of each."""
    if not contents:
        return f"{_FILLS}\n"
    pairs = [(content["name"], row) for content in contents for row in content["rows"]]
    lines = ["| system | claim | paper | ours | tolerance | holds |", "|---|---|---|---|---|---|"]
    for name, row in pairs:
        figures = [_figure(row["paper"]), _figure(row["ours"])]
        lines.append(_line([name, _named(row), *figures, _tolerance(row), _holds(row)]))
    unknown = [(name, row) for name, row in pairs if is_missing(row)]
    fail = [(name, row) for name, row in pairs if not is_missing(row) and not row["holds"]]
    lines += ["", "Fitted: what is simulated was fitted to that figure, so the claim is no independent test.", ""]
    lines.append("These fail:" if fail else "None fails.")
    lines += ["", *(f"- {name}, {_named(row)}: {_failure(row)}" for name, row in fail)] if fail else []
    if unknown:
        lines += ["", "These could not be worked out here:", ""]
        by_reason: dict[str, list[str]] = {}
        for name, row in unknown:
            by_reason.setdefault(f"{name}, {_reason(row)}", []).append(_named(row))
        lines += [f"- {reason}: {'; '.join(claims)}" for reason, claims in by_reason.items()]
    absent = [name for name in HEADLINES if name not in {content["name"] for content in contents}]
    if absent:
        lines += ["", f"Not reproduced here: {', '.join(absent)}."]
    return "\n".join(lines) + "\n"


def update_tables(readme: Path, claims: Path, contents: Sequence[Mapping[str, Any]]) -> None:
    """Write the row of each paper into the README; the overview and all claims into their page.

    Without any reproduction the rows and the overview stay as they are, and the claims' place says what fills it.

    Raises:
        InputError: Marks are missing; nothing was written.
    """
    rows, first = (by_paper(contents), overview(contents)) if contents else (None, None)
    face = _between(readme.read_text(encoding="utf-8"), PAPERS_BEGIN, PAPERS_END, rows, readme)
    page_text = _between(claims.read_text(encoding="utf-8"), BEGINS, ENDS, first, claims)
    page_text = _between(page_text, CLAIMS_BEGIN, CLAIMS_END, all_claims(contents), claims)
    write_text(readme, face)
    write_text(claims, page_text)


def _between(text: str, begins: str, ends: str, block: str | None, file: Path) -> str:
    """A text with a block between two marks; None: what is there stays."""
    begin, end = text.find(begins), text.find(ends)
    if not 0 <= begin < end:
        raise InputError(f"has no {begins} ... {ends}", file=file)
    return text if block is None else f"{text[: begin + len(begins)]}\n{block}{text[end:]}"


def _line(cells: Sequence[str]) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _named(row: Mapping[str, Any]) -> str:
    """The claim, and whether a model was fitted to it."""
    return str(row["claim"]) + (" (fitted)" if row.get("fitted") else "")


def _tolerance(row: Mapping[str, Any]) -> str:
    return str((row.get("tolerance") or {}).get("text", "-"))


def _reason(row: Mapping[str, Any]) -> str:
    """Reason why there is no figure, or why it may differ."""
    return str(row.get("missing") or row["note"])


def _failure(row: Mapping[str, Any]) -> str:
    """Our figure beside the tolerance, and what the note says of it."""
    figures = f"{_figure(row['ours'])} {row['unit']}, {_tolerance(row)}"
    return f"{figures}; {row['note']}" if row["note"] else figures


def _holds(row: Mapping[str, Any]) -> str:
    return "not worked out" if is_missing(row) else "yes" if row["holds"] else "**no**"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def main() -> None:
    """Write the tables of the README and of the page of claims."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--readme", type=Path, required=True)
    parser.add_argument("--claims", type=Path, required=True)
    options = parser.parse_args()
    update_tables(options.readme, options.claims, read_reproductions(options.folder))


if __name__ == "__main__":
    main()
