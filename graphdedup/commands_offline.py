"""Commands that ask files: what another policy would fold, one graph for other tools, several reports side by side.

None of them touches a device.
"""

# No `from __future__ import annotations`: typer reads the annotations of functions that are made inside register.
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from graphdedup.errors import SettingsError

if TYPE_CHECKING:
    import typer

    from graphdedup.report.difference import Difference
    from graphdedup.report.ranks import Ranks
    from graphdedup.whatif import WhatIf

__all__ = ["compare_reports", "register"]


def register(app: "typer.Typer") -> None:
    """Add ``whatif`` and ``export`` to the application."""
    import typer

    @app.command()
    def whatif(
        file: Annotated[Path, typer.Argument(help="A file of captured graphs, as demo --graphs and run --graphs write it.")],
        tier: Annotated[str, typer.Option(help="structure, function or exact; default: all of them, side by side.")] = "",
        placement: Annotated[str, typer.Option(help="Which graphs share: group or position.")] = "group",
        execs_per_group: Annotated[int, typer.Option(help="Streams that graphs of one group run on at once.")] = 1,
        max_execs: Annotated[int | None, typer.Option(help="A bound on the executables.")] = None,
        json_file: Annotated[Path | None, typer.Option("--json", help="Write the prediction to this file.")] = None,
    ) -> int:
        """Predict, without a GPU, how captured graphs fold by another policy: groups, execs and modelled bytes."""
        from graphdedup.graphs_file import GraphsFile
        from graphdedup.placement import Placement
        from graphdedup.signature import Tier
        from graphdedup.whatif import MAX_EXECS_PER_GROUP, what_if

        _known("tier", tier, ("", *Tier))
        _known("placement", placement, Placement)
        if not 1 <= execs_per_group <= MAX_EXECS_PER_GROUP:
            raise _out_of_range("execs-per-group", execs_per_group, f"1 to {MAX_EXECS_PER_GROUP}")
        if max_execs is not None and max_execs < 1:
            raise _out_of_range("max-execs", max_execs, "1 or more")
        told = what_if(
            GraphsFile.read(file),
            tiers=[tier] if tier else tuple(Tier),
            placement=placement,
            execs_per_group=execs_per_group,
            max_execs=max_execs,
        )
        _print_and_write(told, json_file)
        return 0

    @app.command()
    def export(
        file: Annotated[Path, typer.Argument(help="A file of captured graphs, as demo --graphs and run --graphs write it.")],
        graph: Annotated[str, typer.Argument(help="A graph: its index, its label or a part of it.")],
        style: Annotated[str, typer.Option("--format", help="json, graphml or dot.")] = "json",
        output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file, not to stdout.")] = None,
    ) -> int:
        """Write one captured graph for other tools."""
        from graphdedup.graph_formats import FORMATS
        from graphdedup.graphs_file import GraphsFile

        _known("format", style, FORMATS)
        text = FORMATS[style](GraphsFile.read(file).find(graph).topology)
        if output is None:
            sys.stdout.write(text)
        else:
            _write(output, text, "--output")
        return 0


def compare_reports(files: Sequence[Path], *, ranks: bool, json_file: Path | None) -> int:
    """``graphdedup report`` with several files: two are compared, more, or any with ``ranks``, are merged by rank.

    Raises:
        ReportError: a file is none, or they are of several kinds.
        SettingsError: one file alone, or the JSON cannot be written.
    """
    from graphdedup.report import read_report
    from graphdedup.report.difference import difference
    from graphdedup.report.ranks import merge_ranks

    if len(files) < 2:
        raise SettingsError("--ranks merges the reports of several ranks.", remedy="give a file for each rank.")
    reports, names = [read_report(file) for file in files], _names(files)
    told: Difference | Ranks
    if ranks or len(files) > 2:
        told = merge_ranks(reports, names)
    else:
        told = difference(*reports, left_name=names[0], right_name=names[1])
    _print_and_write(told, json_file)
    return 0


def _names(files: Sequence[Path]) -> list[str]:
    """Names of files, with as much of their path as tells them apart."""
    for parts in range(1, 1 + max(len(file.parts) for file in files)):
        names = [str(Path(*file.parts[-parts:])) for file in files]
        if len(set(names)) == len(names):
            return names
    return [str(file) for file in files]


def _print_and_write(told: "WhatIf | Difference | Ranks", json_file: Path | None) -> None:
    color = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    print(told.to_text(color=color))
    if json_file is not None:
        _write(json_file, told.to_json() + "\n", "--json")


def _write(file: Path, text: str, option: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "cannot be written"
        raise SettingsError(f"{option} {file}: {reason}.", remedy="name a file in a folder that can be written.") from error


def _known(option: str, value: str, known: Iterable[str]) -> None:
    if value not in list(known):
        raise SettingsError(f"--{option} {value!r} is unknown.", remedy=f"use one of {', '.join(filter(None, known))}.")


def _out_of_range(option: str, value: int, span: str) -> SettingsError:
    return SettingsError(f"--{option} {value} is out of range.", remedy=f"give {span}.")
