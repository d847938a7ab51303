"""The table ``[authorizer]``: who may do what."""

from __future__ import annotations

from dataclasses import dataclass

from regent.core.setting import setting

ACL_AUTHORIZER = "kafka.security.authorizer.AclAuthorizer"


@dataclass(frozen=True)
class AuthorizerConfig:
    """The table ``[authorizer]``: who may do what."""

    authorizer_class_name: str = setting(
        "",
        "What decides which client may do what. Kafka's AclAuthorizer: ACLs in ZooKeeper, which"
        " `regent acls` and Kafka's tools change. Empty: every client may do everything.",
        choices=("", ACL_AUTHORIZER),
    )
    super_users: str = setting(
        "",
        "The users who may do everything, separated by semicolons: User:admin;User:broker.",
        form="users as Type:name, separated by semicolons",
        pattern=r"\s*([^:;\s][^:;]*:[^;]+(;\s*[^:;\s][^:;]*:[^;]+)*;?\s*)?",
    )
    allow_everyone_if_no_acl_found: bool = setting(
        False,
        "Whether every client may use a resource that has no ACL.",
    )
