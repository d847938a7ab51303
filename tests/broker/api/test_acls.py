"""What clients are answered that ask for ACLs: the texts are Kafka's."""

from __future__ import annotations

import pytest
from kafka.protocol.admin import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest

from regent.broker.api.acls import acl_apis
from regent.core.errors import Errors
from tests.transport.kafka.wire import ask

VERSIONS = range(4)


@pytest.mark.parametrize("version", VERSIONS)
def test_there_are_no_acls_to_describe(version: int):
    asked = DescribeAclsRequest(
        resource_type_filter=1,
        resource_name_filter=None,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )
    answer = ask(acl_apis(), asked, version)
    assert (answer.error_code, answer.error_message, answer.resources) == (
        Errors.SECURITY_DISABLED,
        "No Authorizer is configured on the broker",
        [],
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_every_acl_to_create_is_refused(version: int):
    creation = CreateAclsRequest.AclCreation(
        resource_type=2,
        resource_name="t",
        resource_pattern_type=3,
        principal="User:a",
        host="*",
        operation=3,
        permission_type=3,
    )
    answer = ask(acl_apis(), CreateAclsRequest(creations=[creation] * 2), version)
    assert [(row.error_code, row.error_message) for row in answer.results] == [
        (Errors.SECURITY_DISABLED, "No Authorizer is configured.")
    ] * 2


@pytest.mark.parametrize("version", VERSIONS)
def test_every_filter_of_acls_to_delete_is_refused(version: int):
    wanted = DeleteAclsRequest.DeleteAclsFilter(
        resource_type_filter=1,
        resource_name_filter=None,
        pattern_type_filter=3,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )
    answer = ask(acl_apis(), DeleteAclsRequest(filters=[wanted] * 2), version)
    assert [
        (row.error_code, row.error_message, row.matching_acls) for row in answer.filter_results
    ] == [(Errors.SECURITY_DISABLED, "No Authorizer is configured.", [])] * 2
