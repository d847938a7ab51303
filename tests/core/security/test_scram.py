"""SCRAM: vectors of the RFC, a client of another project, and what must never log in."""

from __future__ import annotations

import base64
import random
from collections.abc import Sequence

import pytest
import scramp

from regent.core.errors import BadDataError
from regent.core.security.sasl_login import LoggedIn, SaslAuthenticationError, user
from regent.core.security.scram import (
    ScramClient,
    ScramCredential,
    ScramMechanism,
    ScramServer,
    credential_of,
    derive,
    parsed_credential,
    printable,
)
from tests.support.sasl_users import NAME, PASSWORD, SALT_SECRET, Users

SHA_256, SHA_512 = ScramMechanism
MECHANISMS = list(ScramMechanism)
NONCE = printable(2**129 + 12345)


def server(
    mechanism: ScramMechanism = SHA_256,
    credentials: Users | None = None,
    nonce: str = NONCE,
    secret: bytes = SALT_SECRET,
) -> ScramServer:
    return ScramServer(mechanism, credentials or Users(NAME), nonce, secret)


def log_in(mechanism: ScramMechanism, login: ScramServer, name: str, password: str) -> None:
    client = ScramClient(mechanism, name, password, "fyko+d2lbbFgONRv9qkxdawL")
    client.check(login.evaluate(client.final(login.evaluate(client.first()))))


def refusal(login: ScramServer, token: bytes) -> SaslAuthenticationError:
    with pytest.raises(SaslAuthenticationError) as caught:
        login.evaluate(token)
    assert login.login is None
    return caught.value


def test_the_example_of_rfc_7677():
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    known = Users()
    known.credentials[SHA_256, "user"] = derive(SHA_256, "pencil", salt)
    login = server(SHA_256, known, nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    nonce = b"rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    first = login.evaluate(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first == b"r=" + nonce + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    proof = b"dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    final = login.evaluate(b"c=biws,r=" + nonce + b",p=" + proof)
    assert final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert login.login == LoggedIn(user("user"))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_client_of_others_logs_in_with_the_right_password_only(mechanism: ScramMechanism):
    for password in (PASSWORD, "wrong"):
        login = server(mechanism)
        client = scramp.ScramClient([mechanism.value], NAME, password)
        client.set_server_first(login.evaluate(client.get_client_first().encode()).decode())
        final = client.get_client_final().encode()
        if password == PASSWORD:
            client.set_server_final(login.evaluate(final).decode())
            assert login.login == LoggedIn(user(NAME))
        else:
            refusal(login, final)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_our_client_logs_in_at_a_server_of_others(mechanism: ScramMechanism):
    theirs = scramp.ScramMechanism(mechanism.value)
    salt, stored_key, server_key, iterations = theirs.make_auth_info(PASSWORD, 4096)
    login = theirs.make_server(lambda _: (salt, stored_key, server_key, iterations))
    client = ScramClient(mechanism, NAME, PASSWORD, NONCE)
    login.set_client_first(client.first().decode())
    login.set_client_final(client.final(login.get_server_first().encode()).decode())
    client.check(login.get_server_final().encode())


def test_a_false_server_is_noticed():
    client = ScramClient(SHA_256, NAME, PASSWORD, NONCE)
    first = server().evaluate(client.first())
    for changed in (first.replace(NONCE.encode(), b"x"), first.replace(b"i=4096", b"i=4095")):
        with pytest.raises(SaslAuthenticationError):
            client.final(changed)
    client.final(first)
    with pytest.raises(SaslAuthenticationError, match="false one"):
        client.check(b"v=" + base64.b64encode(bytes(32)))


@pytest.mark.parametrize("name", ["a,b", "a=b", "=2C"])
def test_names_are_escaped(name: str):
    login = server(credentials=Users(name))
    log_in(SHA_256, login, name, PASSWORD)
    assert login.login == LoggedIn(user(name))


def test_a_credential_has_the_text_of_kafka():
    salted = bytes(range(32))
    credential = credential_of(SHA_256, salted, b"salt", 4096)
    assert credential.text == (
        f"salt=c2FsdA==,stored_key={base64.b64encode(credential.stored_key).decode()}"
        f",server_key={base64.b64encode(credential.server_key).decode()},iterations=4096"
    )
    assert parsed_credential(SHA_256, credential.text) == credential
    swapped = ",".join(reversed(credential.text.split(",")))
    assert parsed_credential(SHA_256, swapped) == credential


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("salt=", "pepper="),
        ("iterations=4096", "iterations=many"),
        ("iterations=4096", "iterations=4096,more=1"),
        (",iterations=4096", ""),
        ("salt=c2FsdA==", "salt=c2FsdA"),
        ("salt=c2FsdA==", "salt="),
        ("stored_key=", "stored_key=AAAA"),
        ("server_key=", "server_key=!"),
    ],
)
def test_a_damaged_credential_is_named_without_its_values(old: str, new: str):
    text = derive(SHA_256, PASSWORD, b"salt").text
    with pytest.raises(BadDataError) as caught:
        parsed_credential(SHA_256, text.replace(old, new))
    assert text[40:60] not in str(caught.value)


def test_secrets_are_not_printed():
    credential = derive(SHA_256, PASSWORD, b"the salt")
    assert repr(credential) == "ScramCredential(iterations=4096)"


# --- who must not get in --------------------------------------------------------------------------


def test_cve_2017_12610_another_authorization_id_is_refused():
    error = refusal(server(credentials=Users(NAME, "root")), b"n,a=root,n=alice,r=abc")
    assert "authorization id" in str(error)


def test_a_last_message_for_another_header_is_refused():
    client = ScramClient(SHA_256, NAME, PASSWORD, "nonce")
    login = server()
    first = login.evaluate(b"n,a=alice," + client.first()[3:])  # as such it is right
    refusal(login, client.final(first))  # c=biws is n,,


def test_cve_2024_56128_the_whole_nonce_is_compared():
    """Kafka before 3.7.2 compared nothing, and later versions the end only."""
    for nonce in (b"other" + NONCE.encode(), NONCE.encode(), b"abc"):
        login = server()
        client = ScramClient(SHA_256, NAME, PASSWORD, "abc")
        final = client.final(login.evaluate(client.first()))
        old = b"abc" + NONCE.encode()
        assert old in final
        refusal(login, final.replace(old, nonce))


def test_a_replayed_transcript_is_refused():
    client = ScramClient(SHA_256, NAME, PASSWORD, "abc")
    first = server()
    final = client.final(first.evaluate(client.first()))
    assert first.evaluate(final).startswith(b"v=")
    again = server(nonce=NONCE[::-1])
    again.evaluate(client.first())
    refusal(again, final)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_an_unknown_user_sees_what_a_wrong_password_does(mechanism: ScramMechanism):
    answers, refusals = [], []
    for name in (NAME, "bob", "carol"):
        login = server(mechanism)
        client = ScramClient(mechanism, name, "wrong", "abc")
        first = login.evaluate(client.first())
        answers.append(dict(part.split("=", 1) for part in first.decode().split(",")))
        refusals.append(str(refusal(login, client.final(first))))
    assert len(set(refusals)) == 1
    assert {a["i"] for a in answers} == {"4096"}
    salts = [base64.b64decode(a["s"]) for a in answers]
    assert len(set(salts)) == 3
    assert {len(salt) for salt in salts} == {len(b"salt of alice")}


def test_a_salt_that_is_made_up_looks_like_kafkas():
    known = Users()
    known.credentials[SHA_256, "a"] = derive(SHA_256, PASSWORD, b"0123456789abcdefghijklmno")
    for users in (known, Users()):
        iterations, salt = first_answer("bob", users)
        assert (iterations, len(salt) in (25, 26)) == ("4096", True)
        assert set(salt) <= set(b"0123456789abcdefghijklmnopqrstuvwxyz")


def first_answer(name: str, known: Users) -> tuple[str, bytes]:
    """The iterations and the salt in the server's first message."""
    first = server(credentials=known).evaluate(f"n,,n={name},r=abc".encode())
    fields = dict(part.split("=", 1) for part in first.decode().split(","))
    return fields["i"], base64.b64decode(fields["s"])


def test_an_unknown_user_has_iterations_and_a_salt_as_the_others_have():
    known = Users()
    known.credentials[SHA_256, "a"] = derive(SHA_256, PASSWORD, bytes(64), 8192)
    iterations, salt = first_answer("bob", known)
    assert (iterations, len(salt)) == ("8192", 64)
    assert first_answer("bob", known) == (iterations, salt)
    assert first_answer("carol", known) != (iterations, salt)


def test_of_different_iterations_unknown_users_have_each_and_keep_theirs():
    known = Users()
    for number in range(60):
        iterations = 4096 if number % 3 else 8192
        known.credentials[SHA_256, str(number)] = ScramCredential(b"s", b"", b"", iterations)
    names = [f"unknown{number}" for number in range(300)]
    before = [first_answer(name, known) for name in names]
    assert 70 < [iterations for iterations, _ in before].count("8192") < 130
    known.credentials[SHA_256, "another"] = ScramCredential(b"s", b"", b"", 8192)
    after = [first_answer(name, known) for name in names]
    assert sum(a != b for a, b in zip(before, after, strict=True)) < 15


def test_an_unknown_user_has_the_same_salt_at_each_broker():
    first = b"n,,n=bob,r=abc"
    answers = {server(secret=secret).evaluate(first) for secret in (SALT_SECRET, SALT_SECRET)}
    assert len(answers) == 1
    assert server(secret=b"of another cluster").evaluate(first) not in answers
    assert server(SHA_512).evaluate(first) not in answers


def test_too_few_iterations_do_not_log_in():
    login = server(credentials=Users(NAME, iterations=4095))
    client = ScramClient(SHA_256, NAME, PASSWORD, "abc")
    refusal(login, client.final(login.evaluate(client.first())))


def test_a_token_is_looked_up_among_tokens_only():
    class Tokens(Users):
        def scram(
            self, mechanism: ScramMechanism, username: str, by_token: bool
        ) -> ScramCredential | None:
            if not by_token or username != "id":
                return None
            found = derive(mechanism, PASSWORD, b"salt")
            return found._replace(owner=user("owner"), expires_at_ms=123)

    login = server(credentials=Tokens())
    client = ScramClient(SHA_256, "id", PASSWORD, "abc")
    client._bare += b",tokenauth=true"
    client.check(login.evaluate(client.final(login.evaluate(b"n,," + client._bare))))
    assert login.login == LoggedIn(user("owner"), 123, by_token=True)
    login = server(credentials=Tokens())
    client = ScramClient(SHA_256, "id", PASSWORD, "abc")
    refusal(login, client.final(login.evaluate(client.first())))


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n,,n=alice",
        b"y,,n=alice,r=abc",
        b"p=tls-unique,,n=alice,r=abc",
        b"n,n=alice,r=abc",
        b"n,,n=,r=abc",
        b"n,,n=a=lice,r=abc",
        b"n,,n=al\xc3\xafce,r=abc",
        b"n,,n=alice,r=a b",
        b"n,,n=alice,r=abc,",
        b"n,,n=alice,r=abc,9=x",
        b"n,,n=alice,r=abc\n",
    ],
)
def test_a_first_message_that_is_none_is_refused(first: bytes):
    login = server()
    refusal(login, first)
    refusal(login, b"n,,n=alice,r=abc")  # the login is over


def test_after_the_last_token_nothing_is_accepted():
    login = server()
    log_in(SHA_256, login, NAME, PASSWORD)
    with pytest.raises(SaslAuthenticationError):
        login.evaluate(b"n,,n=alice,r=abc")


def mutated(dice: random.Random, token: bytes) -> bytes:
    data = bytearray(token)
    match dice.randrange(4):
        case 0:
            data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        case 1:
            del data[dice.randrange(len(data))]
        case 2:
            data.insert(dice.randrange(len(data) + 1), dice.randrange(256))
        case _:
            at = dice.randrange(len(data))
            data[at:] = data[at : at + dice.randrange(8)] + data[at:]
    return bytes(data)


def is_let_in(login: ScramServer, tokens: Sequence[bytes]) -> bool:
    try:
        for token in tokens:
            login.evaluate(token)
    except SaslAuthenticationError:
        return login.login is not None
    return True


@pytest.mark.parametrize(
    "count", [2_000, pytest.param(100_000, marks=[pytest.mark.nightly, pytest.mark.slow])]
)
def test_a_changed_transcript_never_logs_in(count: int):
    dice, known = random.Random(7), Users(NAME)
    client = ScramClient(SHA_256, NAME, PASSWORD, "abc")
    final = client.final(server(credentials=known).evaluate(client.first()))
    for number in range(count):
        login = server(credentials=known)
        tokens = [client.first(), final]
        changed = mutated(dice, tokens[number % 2])
        if changed in tokens:
            continue
        tokens[number % 2] = changed
        assert not is_let_in(login, tokens), tokens
