"""``acls``: lists, adds and removes ACLs; the options are those of Kafka's ``kafka-acls``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import click

from regent.cli.lazy_group import HelpfulGroup
from regent.cli.output import Output, examples, output_option, print_json, print_table, quoted
from regent.cli.waiting import timeout_option
from regent.cli.watching import complete_groups, complete_topics
from regent.client.acls import AclsClient
from regent.client.cluster_connection import Cluster, bootstrap_option, pass_cluster
from regent.client.wording import counted
from regent.core.security.acls import (
    ANY_HOST,
    CLUSTER_NAME,
    OPERATIONS,
    AccessControlEntry,
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    PatternType,
    Resource,
    ResourcePattern,
    ResourceType,
)

F = TypeVar("F", bound=Callable[..., Any])
ALLOW, DENY = AclPermissionType.ALLOW, AclPermissionType.DENY

_OPERATIONS: Final = {op.text: op for op in AclOperation if op is not AclOperation.ANY}
_COLUMNS: Final = (
    *("resource type", "resource name", "pattern", "principal", "host", "operation"),
    "permission",
)
_OF_PRODUCER: Final = (AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.CREATE)
_OF_TRANSACTIONS: Final = (AclOperation.WRITE, AclOperation.DESCRIBE)
_OF_CONSUMER: Final = (AclOperation.READ, AclOperation.DESCRIBE)


class _Wanted(NamedTuple):
    """The options that name ACLs."""

    resources: Sequence[Resource]
    pattern_type: PatternType
    principals: Sequence[tuple[str, AclPermissionType]]
    hosts: dict[AclPermissionType, Sequence[str]]
    operations: Sequence[AclOperation]
    producer: bool
    consumer: bool
    idempotent: bool


_NAMES: dict[str, Any] = {"metavar": "NAME", "multiple": True}


def _resource_options(pattern_types: Sequence[str], default: str) -> Callable[[F], F]:
    def add(command: F) -> F:
        options = [
            click.option(
                *("--topic", "topics"), **_NAMES, shell_complete=complete_topics, help="A topic."
            ),
            click.option(
                *("--group", "groups"), **_NAMES, shell_complete=complete_groups, help="A group."
            ),
            click.option("--cluster", "of_cluster", is_flag=True, help="The cluster itself."),
            click.option(
                "--transactional-id",
                "transactional_ids",
                metavar="NAME",
                multiple=True,
                help="A transactional id.",
            ),
            click.option(
                "--delegation-token", "tokens", metavar="ID", multiple=True, help="A token."
            ),
            click.option(
                "--user-principal",
                "users",
                metavar="User:NAME",
                multiple=True,
                help="A user, whose tokens are meant.",
            ),
            click.option(
                "--resource-pattern-type",
                "pattern_type",
                type=click.Choice(pattern_types, case_sensitive=False),
                default=default,
                show_default=True,
                help='What a name means; "*" is every name.',
            ),
        ]
        for option in reversed(options):
            command = option(command)
        return command

    return add


def _rule_options(command: F) -> F:
    """Add the options that say who may, or may not, do what."""
    options = [
        click.option(
            "--allow-principal",
            "allowed",
            metavar="User:NAME",
            multiple=True,
            help='Who may; "User:*" is everybody.',
        ),
        click.option(
            "--deny-principal", "denied", metavar="User:NAME", multiple=True, help="Who may not."
        ),
        click.option(
            "--allow-host", "allowed_hosts", metavar="IP", multiple=True, help="From where only."
        ),
        click.option(
            "--deny-host", "denied_hosts", metavar="IP", multiple=True, help="From where not."
        ),
        click.option(
            "--operation",
            "operations",
            type=click.Choice(list(_OPERATIONS), case_sensitive=False),
            multiple=True,
            help="What is done.  [default: All]",
        ),
        click.option("--producer", is_flag=True, help="All that a producer needs."),
        click.option("--consumer", is_flag=True, help="All that a consumer needs."),
        click.option("--idempotent", is_flag=True, help="With --producer: an idempotent one."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.group(cls=HelpfulGroup)
def acls() -> None:
    """List, add and remove ACLs: who may do what, with authorizer_class_name."""


@acls.command("list", epilog=examples("acls list", "acls list --topic payments -o json"))
@_resource_options(["any", "match", "literal", "prefixed"], "any")
@click.option("--principal", "principals", metavar="User:NAME", multiple=True, help="Of whom only.")
@timeout_option("Time for the answer of a broker.")
@output_option
@bootstrap_option
@pass_cluster
def list_acls(
    cluster: Cluster,
    /,
    principals: Sequence[str],
    pattern_type: str,
    timeout_ms: int,
    output: str,
    **named: Any,
) -> None:
    """List all ACLs, or those of some resources. With "match": all that count for a name."""
    client = _client(cluster, timeout_ms)
    found: dict[AclBinding, None] = {}
    resources: Sequence[Resource | None] = _resources(**named) or [None]
    of_whom: Sequence[str | None] = principals or [None]
    for resource in resources:
        for principal in of_whom:
            wanted = _filter(resource, PatternType[pattern_type.upper()], principal)
            found |= dict.fromkeys(client.find(wanted))
    _print(sorted(found), output)


@acls.command(
    epilog=examples(
        "acls add --allow-principal User:alice --operation Read --topic payments",
        "acls add --allow-principal User:alice --consumer --topic payments --group billing",
        "acls add --allow-principal User:bob --producer --topic a --resource-pattern-type prefixed",
    )
)
@_resource_options(["literal", "prefixed"], "literal")
@_rule_options
@timeout_option("Time for the answer of a broker.")
@output_option
@bootstrap_option
@pass_cluster
def add(cluster: Cluster, /, timeout_ms: int, output: str, **options: Any) -> None:
    """Add ACLs. Those that exist stay."""
    wanted = _wanted(**options)
    if not wanted.principals:
        raise click.UsageError("who? Give --allow-principal or --deny-principal")
    added = list(dict.fromkeys(_bindings(wanted)))
    _client(cluster, timeout_ms).create(added)
    if output == Output.JSON:
        _print(added, output)
    else:
        click.echo(f"Added {counted(len(added), 'ACL')}.")


@acls.command(
    epilog=examples(
        "acls remove --topic payments",
        "acls remove --allow-principal User:alice --operation Read --topic payments",
    )
)
@_resource_options(["literal", "prefixed", "any", "match"], "literal")
@_rule_options
@timeout_option("Time for the answer of a broker.")
@output_option
@bootstrap_option
@pass_cluster
def remove(cluster: Cluster, /, timeout_ms: int, output: str, **options: Any) -> None:
    """Remove ACLs: those named, or without a principal all of the resources."""
    wanted = _wanted(**options)
    if not wanted.principals and (wanted.operations or wanted.producer or wanted.consumer):
        raise click.UsageError("of whom? Give --allow-principal or --deny-principal")
    if wanted.principals:
        filters = [_exactly(binding) for binding in dict.fromkeys(_bindings(wanted))]
    else:
        filters = [_filter(r, wanted.pattern_type, None) for r in wanted.resources]
    removed = _client(cluster, timeout_ms).delete(filters)
    if output == Output.JSON:
        _print(removed, output)
    else:
        click.echo(f"Removed {counted(len(removed), 'ACL')}.")


def _client(cluster: Cluster, timeout_ms: int) -> AclsClient:
    return AclsClient(
        cluster.brokers(), timeout_s=timeout_ms / 1000, find_others=cluster.registered_brokers
    )


def _resources(
    *,
    topics: Sequence[str],
    groups: Sequence[str],
    of_cluster: bool,
    transactional_ids: Sequence[str],
    tokens: Sequence[str],
    users: Sequence[str],
) -> list[Resource]:
    named = {
        ResourceType.TOPIC: topics,
        ResourceType.GROUP: groups,
        ResourceType.CLUSTER: [CLUSTER_NAME] if of_cluster else [],
        ResourceType.TRANSACTIONAL_ID: transactional_ids,
        ResourceType.DELEGATION_TOKEN: tokens,
        ResourceType.USER: users,
    }
    return [Resource(kind, name) for kind, names in named.items() for name in names]


def _wanted(
    *,
    pattern_type: str,
    allowed: Sequence[str],
    denied: Sequence[str],
    allowed_hosts: Sequence[str],
    denied_hosts: Sequence[str],
    operations: Sequence[str],
    producer: bool,
    consumer: bool,
    idempotent: bool,
    **named: Any,
) -> _Wanted:
    """Check the options as Kafka's tool does; raises ``click.UsageError``."""
    resources = _resources(**named)
    kinds = {resource.resource_type for resource in resources}
    problem = None if resources else "of what? Give --topic, --group, --cluster or the like"
    if producer or consumer:
        is_plain = not (operations or denied or denied_hosts)
        problem = _problem_of_clients(kinds, is_plain=is_plain, consumer=consumer)
    elif idempotent:
        problem = "--idempotent goes with --producer"
    if (allowed_hosts and not allowed) or (denied_hosts and not denied):
        problem = "--allow-host and --deny-host go with principals"
    bad = [name for name in (*allowed, *denied) if not all(name.partition(":"))]
    if bad:
        problem = f"a principal is Type:name, as User:alice, not {bad[0]!r}"
    if problem is not None:
        raise click.UsageError(problem)
    return _Wanted(
        resources,
        PatternType[pattern_type.upper()],
        [*((name, ALLOW) for name in allowed), *((name, DENY) for name in denied)],
        {ALLOW: allowed_hosts or [ANY_HOST], DENY: denied_hosts or [ANY_HOST]},
        [_OPERATIONS[name] for name in operations],
        producer,
        consumer,
        idempotent,
    )


def _problem_of_clients(
    kinds: Collection[ResourceType], *, is_plain: bool, consumer: bool
) -> str | None:
    """Return what is wrong with options beside --producer or --consumer."""
    if not is_plain:
        return "--producer and --consumer go without --operation and --deny-…"
    if ResourceType.TOPIC not in kinds:
        return "--producer and --consumer need --topic"
    if consumer != (ResourceType.GROUP in kinds):
        return "--consumer needs --group, and --group goes with --consumer"
    return None


def _bindings(wanted: _Wanted) -> Iterator[AclBinding]:
    """Yield each ACL that the options mean; raises ``click.UsageError``."""
    for resource, operation in _permissions(wanted):
        pattern = ResourcePattern(*resource, wanted.pattern_type)
        if resource.resource_type is ResourceType.CLUSTER:  # it has one name
            pattern = ResourcePattern(*resource, PatternType.LITERAL)
        for principal, permission in wanted.principals:
            for host in wanted.hosts[permission]:
                entry = AccessControlEntry(principal, host, operation, permission)
                yield AclBinding(pattern, entry)


def _permissions(wanted: _Wanted) -> Iterator[tuple[Resource, AclOperation]]:
    if not wanted.producer and not wanted.consumer:
        for resource in wanted.resources:
            for operation in wanted.operations or [AclOperation.ALL]:
                _check_operation(resource.resource_type, operation)
                yield resource, operation
        return
    needed: dict[ResourceType, tuple[AclOperation, ...]] = {}
    if wanted.producer:
        needed = {
            ResourceType.TOPIC: _OF_PRODUCER,
            ResourceType.TRANSACTIONAL_ID: _OF_TRANSACTIONS,
        }
    if wanted.consumer:
        of_topic = *needed.get(ResourceType.TOPIC, ()), *_OF_CONSUMER
        needed |= {ResourceType.TOPIC: of_topic, ResourceType.GROUP: (AclOperation.READ,)}
    for resource in wanted.resources:
        for operation in needed.get(resource.resource_type, ()):
            yield resource, operation
    if wanted.idempotent:
        yield Resource(ResourceType.CLUSTER, CLUSTER_NAME), AclOperation.IDEMPOTENT_WRITE


def _check_operation(resource_type: ResourceType, operation: AclOperation) -> None:
    possible = OPERATIONS[resource_type]
    if operation is not AclOperation.ALL and operation not in possible:
        names = ", ".join(row.text for row in (*possible, AclOperation.ALL))
        raise click.UsageError(
            f"{resource_type.text} has no operation {operation.text}: it has {names}"
        )


def _exactly(binding: AclBinding) -> AclBindingFilter:
    (resource_type, name, pattern_type), entry = binding
    return AclBindingFilter(resource_type, name, pattern_type, *entry)


def _filter(
    resource: Resource | None, pattern_type: PatternType, principal: str | None
) -> AclBindingFilter:
    kind, name = (ResourceType.ANY, None) if resource is None else resource
    return AclBindingFilter(
        kind, name, pattern_type, principal, None, AclOperation.ANY, AclPermissionType.ANY
    )


def _print(bindings: Iterable[AclBinding], output: str) -> None:
    """Print the words in capitals, as Kafka's tools and clients have them."""
    rows = [
        (
            pattern.resource_type.name,
            pattern.name,
            pattern.pattern_type.name,
            entry.principal,
            entry.host,
            entry.operation.name,
            entry.permission_type.name,
        )
        for pattern, entry in bindings
    ]
    if output == Output.JSON:
        keys = [column.replace(" ", "_") for column in _COLUMNS]
        print_json([dict(zip(keys, row, strict=True)) for row in rows])
    else:
        print_table(_COLUMNS, [tuple(map(quoted, row)) for row in rows])
