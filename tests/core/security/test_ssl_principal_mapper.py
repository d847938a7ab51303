"""The cases of Kafka's ``SslPrincipalMapperTest``, and where Python's patterns are not Java's."""

from __future__ import annotations

import pytest

from regent.core.security.ssl_principal_mapper import (
    BadRuleError,
    NoMatchingRuleError,
    SslPrincipalMapper,
)


@pytest.mark.parametrize(
    "rules",
    [
        "DEFAULT",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, DEFAULT",
        "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/",
        "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L",
        "RULE:^cn=(.?),ou=(.?),dc=(.?),dc=(.?)$/$1@$2/U",
        "RULE:^CN=([^,ADEFLTU,]+)(,.*|$)/$1/",
        "RULE:^CN=([^,DEFAULT,]+)(,.*|$)/$1/",
        "RULE://,DEFAULT",
        "  RULE:   /     / ,  DEFAULT  ",
        ",,RULE://,,,DEFAULT,,",
        r"RULE:\/\\\(\)\n\t/\/\//",
        "RULE:,RULE:,/,RULE:,\\//U,RULE:,/RULE:,/,RULE:,RULE:,/L,RULE:,/L,RULE:, DEFAULT, /DEFAULT/"
        ",DEFAULT",
    ],
)
def test_rules_that_kafka_takes_are_taken(rules: str):
    SslPrincipalMapper(rules)


@pytest.mark.parametrize(
    "rules",
    [
        "default",
        "DEFAUL",
        "DEFAULT/L",
        "DEFAULT/U",
        "RULE:CN=(.*?),OU=ServiceUsers.*/$1",
        "rule:^CN=(.*?),OU=ServiceUsers.*$/$1/",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L/U",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/L",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/U",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/LU",
        "RULE:(/x/",
        "RULE:[a-z&&[^b]]/x/",
        r"RULE:\p{Alpha}+/x/",
        r"RULE:\Qa\E/x/",
        "RULE:CN=.*/$1/",
        "RULE:CN=(.*)/$x/",
        "RULE:CN=(.*)/${name}/",
        "RULE:CN=(.*)/$1٣$٣/",
        "RULE:CN=(.*)/$99999999999/",
        "RULE:CN=(.*)/$4$5/",
        r"RULE:CN=(.*)/\$4/",
        r"RULE:CN=(.*)\b/$1/",
        r"RULE:CN=(.)\111/$1/",
        r"RULE:CN=(.*)\0101/$1/",
        r"RULE:CN=(.*)\v/$1/",
        r"RULE:CN=(.*)\U00000041/$1/",
        "RULE:CN=(?P<n>.*)/$1/",
        "RULE:CN=(?<n_1>.*)/$1/",
        "RULE:CN=(?#who)(.*)/$1/",
        "RULE:(?u)CN=(.*)/$1/",
        "RULE:(?x)CN=(.*)/$1/",
        "RULE:CN=(.*){,2}/$1/",
        "RULE:CN=([]a]*)/$1/",
        r"RULE:^CN=([^,]+)?+\(++|([^,]+)++/$1/",
        "RULE:CN=(?:(a)b|c)*+.*/$1/",
        "RULE:CN=(a){1,2}+.*/$1/",
        "RULE:CN=(?>(a)b|.*)/$1/",
        "RULE:CN=(?:(?=(?:x|(a))b)|.*)/$1/",
        "RULE:CN=(?!(?<n>a)b).*/${n}/",
        "RULE:CN=.*(?<=(a))/$1/",
        "RULE:CN=.*(?<!(a))/$1/",
        "RULE:CN=([^,]*)*X/$1/",
        "RULE:CN=(?:[^,]+)+X/$0/",
        "RULE:CN=(?:a|(?:.*?)){2,}X/$0/",
        "RULE:CN=(?:x?[a-z]+^)*X/$0/",
        "RULE:CN=([a--b]*)/$1/",
        "DEFAULT\u00a0",
        "\u3000DEFAULT",
        "DEFAULT\u2028",
    ],
)
def test_rules_that_mean_nothing_or_something_else_here_are_refused(rules: str):
    with pytest.raises(BadRuleError):
        SslPrincipalMapper(rules)


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ("CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        ("CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        ("cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
        ("cN=duke,OU=JavaSoft,O=Sun Microsystems", "DUKE"),
        ("OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
    ],
)
def test_the_first_rule_that_matches_makes_the_name(subject: str, name: str):
    rules = (
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, "
        "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L, "
        "RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U, "
        "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U, "
        "DEFAULT"
    )
    assert SslPrincipalMapper(rules).name_of(subject) == name


@pytest.mark.parametrize(
    ("rule", "subject", "name"),
    [
        (r"RULE:^CN=((\\, *|\w)+)(,.*|$)/$1/", r"CN=Tkac\, Adam,OU=ITZ", r"Tkac\, Adam"),
        (r"RULE:CN=(.*)\/(.*)/$2\/$1/", "CN=a/b", "b/a"),
        ("RULE:CN=(?<who>[^,]*).*/${who}!/", "CN=me,O=o", "me!"),
        (r"RULE:CN=(?<a>.)\k<a>/$1/", "CN=xx", "x"),
        ("RULE:CN=(.*)/$1@$4/", "CN=me", "me@$4"),
        ("RULE:CN=(.*)/$12/", "CN=me", "me2"),
        ("RULE:CN=(.*)/$0/", "CN=me", "CN=me"),
        ("RULE:CN=(a)?(.*)/$1$2/", "CN=me", "me"),
        (r"RULE:CN=(.*)/\$1/", "CN=me", "$1"),
        ("RULE:CN=(\\w*)/$1/,DEFAULT", "CN=Zoë", "CN=Zoë"),
        ("RULE:(?i)cn=(.*)/$1/", "CN=Me", "Me"),
        ("RULE:[(?<n>]*(.*)/$1/", "<n>P", "P"),
        ("RULE:CN=([^,&]*+)(?=,|$).*/$1/", "CN=a,b", "a"),
        (r"RULE:CN=([\w.-]+)@(?:a|b)\.example(,.*)?/$1/", "CN=me-too@b.example,O=o", "me-too"),
    ],
)
def test_patterns_and_replacements_mean_what_they_mean_in_java(rule: str, subject: str, name: str):
    assert SslPrincipalMapper(rule).name_of(subject) == name


@pytest.mark.parametrize(
    ("rules", "subject"),
    [
        ("RULE:CN=(.*)/$1/", "O=me"),
        ("RULE:N=me/x/", "CN=me,O=o"),
        ("", "CN=me"),
        ("DEFAULT", ""),
        ("RULE:CN=(.*)/$1/", "CN="),
        ("RULE:|.*/x/,DEFAULT", "CN=😀"),
        ("RULE:CN=(.*)/$1/", "CN=me\r"),
        ("RULE:CN=(.*)/$1/L", "CN=ΑΣ2Σ"),  # Java's small sigma depends on the ends of words
    ],
)
def test_a_subject_without_a_name_is_nobody(rules: str, subject: str):
    with pytest.raises(NoMatchingRuleError):
        SslPrincipalMapper(rules).name_of(subject)
