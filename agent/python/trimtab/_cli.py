"""Command line: `trimtab run|attach|build|doctor-python`. A wrong argument is one line on stderr and exit status 2."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys

from ._settings import DEFAULT_SERVER, MODES, STORAGE_FORMATS, Settings, SettingsError
from ._version import __version__

EXIT_USAGE = 2


class _Parser(argparse.ArgumentParser):
    def error(self, message: str):
        self.exit(EXIT_USAGE, f"{self.prog}: {message.replace(chr(10), ' ')} (see {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="trimtab", description="Watches the numerics of a live training job.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"trimtab {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    run = commands.add_parser(
        "run",
        help="run a training command under trimtab",
        allow_abbrev=False,
        usage="trimtab run [options] -- COMMAND …",
        description="Runs COMMAND unchanged and watches every rank of it.",
    )
    run.add_argument(
        "--server", metavar="HOST:PORT", help=f"trimtabd (default: $TRIMTAB_SERVER, else {DEFAULT_SERVER})"
    )
    run.add_argument("--run", metavar="NAME", help="name of the run (default: from the script's name and the time)")
    run.add_argument("--act", action="store_true", default=None, help="let the server switch attention kernels")
    run.add_argument("--mode", choices=MODES, help="mode to start in (default: observe)")
    run.add_argument("--sample-every", type=int, metavar="N", help="steps between samples (default: 10)")
    run.add_argument("--overhead-budget", type=float, metavar="SHARE", help="share of step time to use (default: 0.01)")
    run.add_argument(
        "--emulate-storage",
        choices=STORAGE_FORMATS,
        metavar="FORMAT",
        help="fault injector: compute attention in this storage format "
        f"({', '.join(STORAGE_FORMATS)}); for tests and demos",
    )
    run.add_argument(
        "--ring-dir", metavar="DIR", help="folder for the rings (default: a private one, removed at the end)"
    )
    run.add_argument("--no-courier", action="store_true", help="start no courier: one runs on this node already")
    run.add_argument("--log-file", metavar="FILE", help="trimtab's own lines go there instead of stderr")
    run.add_argument("job", nargs=argparse.REMAINDER, metavar="-- COMMAND …", help="the training command")
    attach = commands.add_parser("attach", help="attach to a running job", allow_abbrev=False)
    attach.add_argument("pid", type=int, metavar="PID")
    attach.add_argument("--server", metavar="HOST:PORT")
    commands.add_parser("build", help="build the hook library for this Python's torch now", allow_abbrev=False)
    commands.add_parser("doctor-python", help="check that a job in this Python can be watched", allow_abbrev=False)
    return parser


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    if options.command == "run":
        return _run(parser, options)
    if options.command == "attach":
        print(
            f"trimtab attach: a process that is already running (pid {options.pid}) cannot be hooked by this version; "
            "restart the job with `trimtab run -- COMMAND`, or call `trimtab.attach()` in its code",
            file=sys.stderr,
        )
        return EXIT_USAGE
    if options.command == "build":
        from . import _build

        return _build.main()
    if options.command == "doctor-python":
        from . import _doctor

        return _doctor.main()
    parser.error("a command is missing: run, attach, build or doctor-python")


def _run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    job = options.job[1:] if options.job[:1] == ["--"] else options.job
    if not job:
        return _refuse("the training command is missing; write: trimtab run [options] -- python train.py")
    if job[0].startswith("-"):
        return _refuse(f"unknown option {job[0]}; options of trimtab come before --, the training command after it")
    given = {
        name: getattr(options, name)
        for name in (
            "server",
            "run",
            "act",
            "mode",
            "sample_every",
            "overhead_budget",
            "emulate_storage",
            "ring_dir",
            "log_file",
        )
    }
    try:
        base = Settings.from_environment()
        named = {name: value for name, value in given.items() if value is not None}
        settings = dataclasses.replace(base, **{"server": base.server or DEFAULT_SERVER, **named})
    except SettingsError as error:
        return _refuse(str(error))
    from . import _launch

    if settings.log_file:
        os.environ["TRIMTAB_LOG_FILE"] = settings.log_file
    return _launch.run(settings, job, courier=not options.no_courier)


def _refuse(message: str) -> int:
    print(f"trimtab run: {message}", file=sys.stderr)
    return EXIT_USAGE
