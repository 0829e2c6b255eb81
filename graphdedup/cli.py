"""The ``graphdedup`` command.

Exit codes: 0 done and right, 1 a replay differed from eager, 2 it could not be done: then one line on stderr says why.
"""

# No `from __future__ import annotations`: typer reads the annotations of functions that are made inside build_app.
import importlib.util
import logging
import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from graphdedup.errors import DriverError, GraphDedupError, SettingsError

if TYPE_CHECKING:
    import typer

    from graphdedup.calibration import Calibration
    from graphdedup.demo import DemoRequest
    from graphdedup.probe.command import Probed
    from graphdedup.report import DemoResult

__all__ = ["build_app", "main"]

OK, DIFFERS, FAILED, INTERRUPTED = 0, 1, 2, 130
MAX_ROUNDS = 1_000_000
MAX_SEED = 2**62


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; ``arguments`` without the program's name, ``sys.argv`` if None. Returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if importlib.util.find_spec("typer") is None:
        return _fail("the command line needs typer. Remedy: pip install 'graphdedup[cli]'")
    from seam.errors import SeamError

    try:
        code = build_app(given)(args=given, prog_name="graphdedup", standalone_mode=False)
    except (GraphDedupError, SeamError) as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        # typer brings its own copy of click in some releases, so its errors are known by what they can do.
        if type(error).__name__ == "Abort":
            return INTERRUPTED
        if type(error).__name__ == "OutOfMemoryError":
            return _fail(f"out of memory: {error} Remedy: fewer --sizes, fewer --layers or a smaller --model.")
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        return _fail(f"{message().rstrip('.')}. Remedy: see graphdedup --help.")
    return code if isinstance(code, int) else OK


def build_app(arguments: Sequence[str] = ()) -> "typer.Typer":
    """The application; each command returns its exit code. ``arguments`` go into the demo's result as its command."""
    import typer

    from graphdedup import commands_offline

    app = typer.Typer(
        help="Fold CUDA graphs: N captured graphs, M executables.", add_completion=False, pretty_exceptions_enable=False
    )

    @app.callback(invoke_without_command=True)
    def root(
        context: typer.Context,
        show_version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
    ) -> int:
        if show_version:
            print(f"graphdedup {_version()}")
            raise typer.Exit(OK)
        if context.invoked_subcommand is None:
            raise SettingsError("no command given.", remedy="see graphdedup --help.")
        return OK

    @app.command()
    def demo(
        device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
        model: Annotated[str, typer.Option(help="tiny or 0.6b; default: 0.6b on a GPU, else tiny.")] = "",
        layers: Annotated[int | None, typer.Option(help="Another number of layers.")] = None,
        sizes: Annotated[str, typer.Option(help="Batch sizes: 1,2,4 or 1..256 or 1..4,8 or usual.")] = "usual",
        mode: Annotated[str, typer.Option(help="full, breakable or both.")] = "both",
        rounds: Annotated[int, typer.Option(help="How often each size is replayed, at least 3.")] = 3,
        seed: Annotated[int, typer.Option(help="Seed of weights, inputs and order.")] = 0,
        tier: Annotated[str, typer.Option(help="What must be equal: structure, function or exact.")] = "structure",
        compare: Annotated[bool, typer.Option("--compare", help="Capture once more, not folded, side by side.")] = False,
        json_file: Annotated[Path | None, typer.Option("--json", help="Write the result to this file.")] = None,
        graphs_file: Annotated[Path | None, typer.Option("--graphs", help="Write the captured graphs, for explain.")] = None,
        report_file: Annotated[Path | None, typer.Option("--report", help="Write the footprint report to this file.")] = None,
        verbose: Annotated[bool, typer.Option("--verbose", help="Log in detail.")] = False,
    ) -> int:
        """Capture a transformer at many batch sizes, fold, replay each and compare with eager bit for bit."""
        request = _demo_request(
            device=device,
            model=model,
            layers=layers,
            sizes=sizes,
            mode=mode,
            rounds=rounds,
            seed=seed,
            tier=tier,
            compare=compare,
            json_file=json_file,
            graphs_file=graphs_file,
            report_file=report_file,
            verbose=verbose,
            command=shlex.join(["graphdedup", *arguments]),
        )
        return _run_demo(request, json_file)

    @app.command()
    def probe(
        device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
        device_index: Annotated[int, typer.Option(help="Which GPU, as torch counts the visible ones.")] = 0,
        refresh: Annotated[bool, typer.Option("--refresh", help="Measure again, also where it was measured before.")] = False,
        json_file: Annotated[Path | None, typer.Option("--json", help="Write the capabilities to this file.")] = None,
    ) -> int:
        """Measure what an update of an executable carries on a device, once, and keep it for every later process."""
        from graphdedup.probe.command import probe_device

        if json_file is not None:
            _check_writable(json_file)
        _write_and_print(probe_device(_resolve_device(device), index=device_index, refresh=refresh), json_file)
        return OK

    @app.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
    def run(
        target: Annotated[list[str], typer.Argument(help="The script, or with -m the module, and its arguments.")],
        module: Annotated[bool, typer.Option("-m", help="The target is a module.")] = False,
        policy: Annotated[str, typer.Option(help="A tier, or fields such as tier=function,placement=position.")] = "",
        report_file: Annotated[Path | None, typer.Option("--report", help="Write the report to this file at the end.")] = None,
        graphs_file: Annotated[Path | None, typer.Option("--graphs", help="Write the captured graphs, as demo does.")] = None,
    ) -> int:
        """Run a program with its CUDA graphs folded, without an edit to it; the exit code is the program's."""
        from graphdedup.running import run_program

        if report_file is not None:
            _check_writable(report_file, "--report")
        if graphs_file is not None:
            _check_writable(graphs_file, "--graphs")
        return run_program(target, module=module, policy=policy or None, report=report_file, graphs=graphs_file)

    @app.command()
    def report(
        files: Annotated[
            list[Path] | None, typer.Argument(help="A JSON file of the demo, or of a footprint; two are compared.")
        ] = None,
        ranks: Annotated[
            bool, typer.Option("--ranks", help="The files are of the ranks of one job, as are more than two.")
        ] = False,
        json_file: Annotated[Path | None, typer.Option("--json", help="Write the comparison to this file.")] = None,
        style: Annotated[str, typer.Option("--format", help="text, json, markdown or html; of one file.")] = "text",
        output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file.")] = None,
        schema: Annotated[bool, typer.Option("--schema", help="The JSON schema of report files, in place of one.")] = False,
    ) -> int:
        """Print a report file as a table, or in another form; what differs between two; or several ranks side by side."""
        from graphdedup.commands_offline import compare_reports
        from graphdedup.report_command import report_command

        given = files or []
        if len(given) > 1 or ranks:
            if style != "text" or output is not None or schema:
                raise SettingsError("--format, --output and --schema are of one file.", remedy="leave them out, or use --json.")
            return compare_reports(given, ranks=ranks, json_file=json_file)
        if json_file is not None:
            raise SettingsError("--json writes a comparison.", remedy="give two files, or leave it out.")
        report_command(given[0] if given else None, style=style, output=output, schema=schema)
        return OK

    @app.command()
    def calibrate(
        device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
        nodes: Annotated[str, typer.Option(help="Lengths of graph.")] = "10,50,200,500,1000",
        execs: Annotated[int, typer.Option(help="Executables of each length.")] = 64,
        json_file: Annotated[Path | None, typer.Option("--json", help="Write the result to this file.")] = None,
    ) -> int:
        """Measure what an executable costs in bytes, by the slope over many of several lengths."""
        import torch

        from graphdedup.calibration import calibrate as measure

        if json_file is not None:
            _check_writable(json_file)
        lengths = _whole_numbers("nodes", nodes)
        _write_and_print(measure(torch.device(_resolve_device(device)), lengths, execs), json_file)
        return OK

    @app.command()
    def explain(
        file: Annotated[Path, typer.Argument(help="A file of captured graphs, as demo --graphs writes it.")],
        graph: Annotated[str, typer.Argument(help="A graph: its index, its label or a part of it.")],
        other: Annotated[str | None, typer.Argument(help="Another; default: the nearest one of another group.")] = None,
        style: Annotated[str, typer.Option("--format", help="text or json.")] = "text",
    ) -> int:
        """Say why two captured graphs fold or do not: the first difference."""
        from graphdedup.graphs_file import GraphsFile

        if style not in ("text", "json"):
            raise _unknown("format", style, ("text", "json"))
        answer = GraphsFile.read(file).answer(graph, other)
        print(answer.text if style == "text" else answer.to_json())
        return OK

    commands_offline.register(app)
    return app


def _demo_request(
    *,
    device: str,
    model: str,
    layers: int | None,
    sizes: str,
    mode: str,
    rounds: int,
    seed: int,
    tier: str,
    compare: bool,
    json_file: Path | None,
    graphs_file: Path | None,
    report_file: Path | None,
    verbose: bool,
    command: str,
) -> "DemoRequest":
    """Check everything that can be wrong with the options, before any long work."""
    from graphdedup.demo import PRESETS, DemoRequest, parse_sizes
    from graphdedup.signature import Tier

    modes: dict[str, tuple[Literal["full", "breakable"], ...]] = {
        "full": ("full",),
        "breakable": ("breakable",),
        "both": ("full", "breakable"),
    }
    if mode not in modes:
        raise _unknown("mode", mode, modes)
    if model and model not in PRESETS:
        raise _unknown("model", model, PRESETS)
    if layers is not None and not 1 <= layers <= 1024:
        raise SettingsError(f"--layers {layers} is out of range.", remedy="give 1 to 1024.")
    if not 3 <= rounds <= MAX_ROUNDS:
        raise SettingsError(f"--rounds {rounds} is out of range.", remedy=f"give 3 to {MAX_ROUNDS}.")
    if not 0 <= seed <= MAX_SEED:
        raise SettingsError(f"--seed {seed} is out of range.", remedy=f"give 0 to {MAX_SEED}.")
    if tier not in list(Tier):
        raise _unknown("tier", tier, Tier)
    parsed = parse_sizes(sizes)
    if json_file is not None:
        _check_writable(json_file)
    for file, option, what in ((graphs_file, "--graphs", "graphs"), (report_file, "--report", "report")):
        if file is not None:
            _check_writable(file, option)
            if len(modes[mode]) > 1:
                raise SettingsError(f"{option} writes the {what} of one mode.", remedy="add --mode full or --mode breakable.")
    kind = _resolve_device(device)
    config = PRESETS[model or ("0.6b" if kind == "cuda" else "tiny")]
    return DemoRequest(
        device=kind,
        config=config if layers is None else config.with_layers(layers),
        sizes=parsed,
        modes=modes[mode],
        rounds=rounds,
        seed=seed,
        tier=Tier(tier),
        graphs="" if graphs_file is None else str(graphs_file.absolute()),
        report="" if report_file is None else str(report_file.absolute()),
        compare=compare,
        progress=sys.stderr.isatty(),
        verbose=verbose,
        command=command,
    )


def _run_demo(request: "DemoRequest", json_file: Path | None) -> int:
    from graphdedup.demo.run import logging_to_stderr, run_demo

    with logging_to_stderr(logging.DEBUG if request.verbose else logging.INFO):
        result = run_demo(request)
    _write_and_print(result, json_file)
    return DIFFERS if result.mismatches else OK


def _whole_numbers(option: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise SettingsError(f"--{option} {text!r} is no list of numbers.", remedy="give 10,100,1000.") from None


def _write_and_print(result: "DemoResult | Probed | Calibration", json_file: Path | None) -> None:
    if json_file is not None:
        try:
            json_file.write_text(result.to_json() + "\n", encoding="utf-8")
        except OSError as error:
            _print_report(result)  # the numbers took a while: they are not lost with the file
            raise _not_writable(json_file, error.strerror or "cannot be written") from error
    _print_report(result)


def _print_report(report: "DemoResult | Probed | Calibration") -> None:
    color = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    print(report.to_text(color=color))


def _resolve_device(name: str) -> Literal["cpu", "cuda"]:
    """The device to run on.

    Raises:
        SettingsError: no such device.
        DriverError: a GPU was asked for, and there is none or the package that reaches its driver is missing.
    """
    import torch

    if name not in ("auto", "cpu", "cuda"):
        raise _unknown("device", name, ("auto", "cpu", "cuda"))
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return "cpu"
    if not torch.cuda.is_available():
        raise DriverError(
            "--device cuda: torch sees no GPU here.",
            remedy="use --device cpu, or a CUDA build of torch on a machine with a GPU.",
        )
    if not _has_cuda_bindings():
        if name == "auto":
            sys.stderr.write("graphdedup: a GPU is here, but not cuda-bindings: using the simulated device\n")
            return "cpu"
        raise DriverError("--device cuda: cuda-bindings is missing.", remedy="pip install 'graphdedup[cuda]'.")
    return "cuda"


def _has_cuda_bindings() -> bool:
    try:
        return importlib.util.find_spec("cuda.bindings.driver") is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False


def _check_writable(file: Path, option: str = "--json") -> None:
    """Raises SettingsError where ``file`` cannot be written, judged without touching it."""
    folder = file.parent
    if not folder.is_dir():
        raise _not_writable(file, f"there is no folder {folder}", option)
    if file.is_dir():
        raise _not_writable(file, "it is a folder", option)
    if not os.access(file if file.exists() else folder, os.W_OK):
        raise _not_writable(file, "no permission to write there", option)


def _not_writable(file: Path, reason: str, option: str = "--json") -> SettingsError:
    return SettingsError(f"{option} {file}: {reason}.", remedy="name a file in a folder that can be written.")


def _unknown(what: str, value: str, known: Iterable[str]) -> SettingsError:
    return SettingsError(f"--{what} {value!r} is unknown.", remedy=f"use one of {', '.join(known)}.")


def _fail(message: str) -> int:
    """Say why, in one line."""
    sys.stderr.write(f"graphdedup: error: {' '.join(message.split())}\n")
    return FAILED


def _version() -> str:
    try:
        return version("graphdedup")
    except PackageNotFoundError:
        return "(not installed)"
