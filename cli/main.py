"""The root of the command line: the list of commands, and the form of errors.

A command is imported when it is called, so that `topics list` need not import Spark. Every
expected error is one line on stderr, with exit code 1, or 2 for wrong arguments; Ctrl-C gives 130.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from regent import __version__
from regent.cli.lazy_group import LazyCommand, LazyGroup
from regent.cli.output import examples
from regent.config.command_line import EXIT_INTERRUPTED, program
from regent.core.errors import RegentError

EXIT_FAILED = 1
EXIT_USAGE = 2
_NAME = "regent"  # in help texts; where it is not on the PATH, its path would wrap their lines


_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_PRINTING = ["events"], ["consume"], ["metadata"]
_PRINTING_OF_GROUPS = ["list"], ["describe"], ["show"]

COMMANDS: Mapping[str, LazyCommand] = {
    "cluster": LazyCommand(
        "regent.cli.cluster", "cluster", "Start a whole cluster on this machine."
    ),
    "node": LazyCommand("regent.cli.node", "node", "Run the brokers of one machine."),
    "broker": LazyCommand("regent.cli.broker", "broker", "Run one broker."),
    "zookeeper": LazyCommand(
        "regent.cli.zookeeper", "zookeeper", "Run the embedded ZooKeeper alone."
    ),
    "topics": LazyCommand(
        "regent.cli.topics", "topics", "Create, describe, change, delete topics."
    ),
    "produce": LazyCommand("regent.cli.produce", "produce", "Write lines as records."),
    "consume": LazyCommand("regent.cli.consume", "consume", "Print the records of a topic."),
    "groups": LazyCommand("regent.cli.groups", "groups", "List, describe, reset, delete groups."),
    "brokers": LazyCommand("regent.cli.brokers", "brokers", "List, stop and start brokers."),
    "restart": LazyCommand("regent.cli.restart", "restart", "Restart brokers one by one."),
    "controller": LazyCommand(
        "regent.cli.controller", "controller", "Show or move the controller."
    ),
    "reassign": LazyCommand("regent.cli.reassign", "reassign", "Move replicas to other brokers."),
    "elect-leaders": LazyCommand("regent.cli.elect_leaders", "elect_leaders", "Elect leaders now."),
    "acls": LazyCommand("regent.cli.acls", "acls", "List, add and remove ACLs."),
    "keys": LazyCommand("regent.cli.keys", "keys", "Allow and revoke keys of other machines."),
    "certs": LazyCommand("regent.cli.certs", "certs", "Make certificates for TLS."),
    "users": LazyCommand("regent.cli.users", "users", "Add and remove users who log in."),
    "tokens": LazyCommand(
        "regent.cli.tokens", "tokens", "Create, show, renew, expire delegation tokens."
    ),
    "metadata": LazyCommand(
        "regent.cli.metadata", "metadata", "Show the metadata cache of a broker."
    ),
    "status": LazyCommand("regent.cli.status", "status", "Show whether the cluster is healthy."),
    "top": LazyCommand("regent.cli.top", "top", "Watch brokers, traffic and lags."),
    "support": LazyCommand("regent.cli.support", "support", "Collect what explains a failure."),
    "logs": LazyCommand("regent.cli.logs", "logs", "Show what fills the disks of brokers."),
    "doctor": LazyCommand("regent.cli.doctor", "doctor", "Say what is wrong, and what mends it."),
    "migrate": LazyCommand(
        "regent.cli.migrate", "migrate", "Move a cluster from Kafka's brokers to Regent's."
    ),
    "console": LazyCommand("regent.cli.console", "console", "Show the cluster on a web page."),
    "events": LazyCommand("regent.cli.events", "events", "Read the journal of the controllers."),
    "jobs": LazyCommand("regent.cli.jobs", "jobs", "Run Spark jobs."),
    "profile": LazyCommand("regent.cli.profile", "profile", "Name clusters, and use them by name."),
    "placement-service": LazyCommand("regent.cli.placement_service", "placement_service", None),
}


class _ReaderLeftError(Exception):
    """Who read what a command prints has left, as `head` does."""


class RegentGroup(LazyGroup):
    """The root: reports every expected error in one line."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; click itself would end the process with 1 at a closed pipe."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise _ReaderLeftError from None

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command line and exit; the arguments are those of ``click.Command.main``."""
        kwargs = {"prog_name": _NAME, **kwargs, "standalone_mode": False}
        try:
            _refuse_other_than_text(args[0] if args else kwargs.get("args"))
            result = super().main(*args, **kwargs)
            if sys.stdout is not None:  # None: it was closed before the start
                sys.stdout.flush()
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            sys.exit(EXIT_USAGE)
        except click.UsageError as error:
            command = error.ctx.command_path if error.ctx else _NAME
            help_of = command.replace(_NAME, program(), 1)  # to copy into a shell
            _report(f"{error.format_message()} ({help_of} --help)")
            sys.exit(EXIT_USAGE)
        except click.ClickException as error:
            _report(error.format_message())
            sys.exit(EXIT_FAILED)
        except RegentError as error:
            _report(str(error))
            sys.exit(EXIT_FAILED)
        except click.Abort:
            sys.exit(EXIT_INTERRUPTED)
        except (BrokenPipeError, _ReaderLeftError):
            _give_up_stdout()
            sys.exit(0 if _only_shows(args[0] if args else kwargs.get("args")) else EXIT_FAILED)
        except OSError as error:
            named = os.fsdecode(error.filename or "") or _unwritable_output(error)
            if not named:
                raise
            _report(f"{named}: {error.strerror}")
            sys.exit(EXIT_FAILED)
        sys.exit(result if isinstance(result, int) else 0)


def _only_shows(words: Sequence[str] | None) -> bool:
    """Whether a command does nothing but print, so that a reader that leaves has all it wants."""
    named = [w for w in (sys.argv[1:] if words is None else words) if not w.startswith("-")]
    return named[:1] in _PRINTING or named[1:2] in _PRINTING_OF_GROUPS


def _unwritable_output(error: OSError) -> str:
    """Say that stdout, or a file, could not be written; "": an error without a name is another."""
    is_full = error.errno in _NO_SPACE
    try:
        if sys.stdout is not None:
            sys.stdout.flush()  # if it still has what could not be written, this fails again
    except OSError:
        _give_up_stdout()
        is_full = True
    return "the output cannot be written" if is_full else ""


def _give_up_stdout() -> None:
    """Write no more to stdout: the interpreter must not report that it fails when it flushes it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report(message: str) -> None:
    for line in message.splitlines():
        click.echo(f"regent: {line}", err=True)


@click.group(
    _NAME,
    cls=RegentGroup,
    commands=COMMANDS,
    context_settings={"max_content_width": 100, "help_option_names": ["-h", "--help"]},
    epilog=examples(
        "cluster                               start three brokers in ./data",
        "topics create payments --partitions 12 --replication-factor 3",
        "topics describe payments",
        "status",
    ),
)
@click.version_option(__version__, message="regent %(version)s")
@click.option("-v", "--verbose", is_flag=True, help="Log to stderr.")
def cli(verbose: bool) -> None:
    """Regent: a replicated, partitioned log cluster with Kafka's ZooKeeper-mode control plane.

    Commands find the cluster by --data-dir (default ./data, environment REGENT_DATA_DIR) or by
    --zookeeper HOST:PORT[/chroot] (environment REGENT_ZOOKEEPER), or by a name that `profile add`
    gave it: --profile (environment REGENT_PROFILE), or `profile use`.
    """
    if verbose:
        logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
    elif logging.lastResort is not None:
        # Else warnings of libraries would appear on stderr, beside the line of the error.
        logging.lastResort.setLevel(logging.CRITICAL)


def _refuse_other_than_text(words: Sequence[str] | None) -> None:
    """Raise ``UsageError`` for a word that is not UTF-8, unless it is the name of a file.

    The names of topics, groups and users are text, and librdkafka ends the process for others.
    """
    for word in sys.argv[1:] if words is None else words:
        if any("\ud800" <= letter <= "\udfff" for letter in word) and not os.path.lexists(word):
            raise click.UsageError(f"{word!r} is not UTF-8")


def main() -> None:
    """Run the command line of this process."""
    cli()
