"""Encoded passwords, beside those that Kafka 3.9.1 has encoded."""

from __future__ import annotations

import pytest

from regent.core.errors import BadDataError
from regent.zk.codecs.encoded_passwords import decode_password, encode_password

SECRET = "the-secret"
PASSWORD = "p\u00e4ss,w\U0001f600rd"  # ten characters in Java
OF_KAFKA = (
    "initializationVector:vrCCOvolrsy0/112jHCdlg==,keyLength:128,salt:pVMCNyaQxny9NKffZXyI"
    "10gAOdYZ8v5vtXaRp92uha1U3tSuaioqEgdTLhNFZ5nOEsQpRRYE6/LXN2lcyVIocF9JjL4QMy9fF6xcnj2RP"
    "IBmh0ESXXSKZ3/9v/vIswijaR2+3i1VO8FiGo/v+3WHXl7qqdpkNaqvRHIGmQj1C24Hgh2r8NDRH3h89ZyMUX"
    "I59tVQUS1SlXdVQXrVaGK7LqjJ2FifQlamN8Kzn6KEfw+/XkpwFgIOi4U0XT2w1jiDz9gKukMFpwqjxZzNTV5"
    "Zs/OG0dFvmBOzeMI21SuUQXbtotCDF8iUWbjeee7WiMVrgcHNAc6d4a58VhoqQYRVUQ==,keyFactoryAlgor"
    "ithm:PBKDF2WithHmacSHA512,cipherAlgorithm:AES/CBC/PKCS5Padding,iterations:4096,passwo"
    "rdLength:10,encryptedPassword:qy10LlsD90E//eiRknoX2w=="
)
WITH_SHA1_AND_A_LONG_KEY = (
    "initializationVector:vUN6i3rBnNMmSQUMJhzQVg==,keyLength:256,salt:5BJ1EYjoSKyPUUY3L+Ox"
    "MknqeHhRgjUyCwbQNck2OnfAi4km8YHaUpddziXzzYb6b8jocsnMyPRnM+3OQeOdm8R9lFoUAhJWlItW2fBWc"
    "E4YzFgKcHd/VdX38Tvnmtomnu4AB1nUoGniwZUG7Wuu0LTfzGQwxZWBok6nILwDBh4MBUkHkwqS7Aq8sLas88"
    "aW4uiuVxDNVRLKfo69gneA4r3FCH+UCdIvGiigYzPqvlfMepyHu3Y+fv7BXLoxApmU/BEcVfWkAfYPG1iBpm6"
    "CGiPTFZg267fwy8ZW0DygJJ2JESk6st1nrpheLCNdlrrCmJePcLLbjNZ9HttXWTM3Ew==,keyFactoryAlgor"
    "ithm:PBKDF2WithHmacSHA1,cipherAlgorithm:AES/CBC/PKCS5Padding,iterations:1024,password"
    "Length:10,encryptedPassword:5rlCFmNR1GlkjqXUGQUYaA=="
)
WITH_GCM = (
    "initializationVector:mBDvMoyTD+CxuU6o,keyLength:128,salt:rGyeFfamHD0QW7PDXK0J4n8Kv0p7"
    "XW6zw/9qOHd7Dof5Q0T9878INJ/VsW7uYhGVrurDRWsPIC5SFIUX70ATmPOE8O8jXoPXEuC/obmpcS1Puk+bW"
    "xF8o5+AerL/ntZbe9/92NzpVE/GJ0SA7mLzynbwlGPIZnPQsJcwLapJQ49lr342JOJL/dmQeEemWlX460+YQV"
    "J+77MpkTXe+Ss1fmDquCZyhr9H28R1v128UtyX24m4XkdJuS1F5RqT3gEFumGNqBBQltxKd00LMCO9KhXYmoS"
    "LRVkH/orOllk5JhEsT6sSrrM3XvNGyyuOxKV4ayqGQFLyXE4KDll7uRljfQ==,keyFactoryAlgorithm:PBK"
    "DF2WithHmacSHA256,cipherAlgorithm:AES/GCM/NoPadding,authenticationTagLength:128,itera"
    "tions:1024,passwordLength:10,encryptedPassword:+upMOd03PMm050Bts4oPA1b6PaHfCLQKLivxQ2"
    "M="
)


@pytest.mark.parametrize("encoded", [OF_KAFKA, WITH_SHA1_AND_A_LONG_KEY, WITH_GCM])
def test_passwords_that_kafka_has_encoded_are_read(encoded: str) -> None:
    assert decode_password(SECRET, encoded) == PASSWORD


def test_a_password_is_encoded_with_the_fields_of_kafka() -> None:
    encoded = encode_password(SECRET, PASSWORD)
    assert decode_password(SECRET, encoded) == PASSWORD
    fields, of_kafka = (
        dict(field.split(":") for field in text.split(",")) for text in (encoded, OF_KAFKA)
    )
    assert {name: len(text) for name, text in fields.items()} == {
        name: len(text) for name, text in of_kafka.items()
    }
    for name in ("keyFactoryAlgorithm", "cipherAlgorithm", "keyLength", "iterations"):
        assert fields[name] == of_kafka[name]
    assert fields["passwordLength"] == "10"
    assert encoded != encode_password(SECRET, PASSWORD), "the salt is another one"


@pytest.mark.parametrize(
    "encoded",
    [
        "",
        "plain text",
        OF_KAFKA.replace("SHA512", "MD5"),
        OF_KAFKA.replace("CBC", "ECB"),
        OF_KAFKA.replace("keyLength:128", "keyLength:12"),
        OF_KAFKA.replace("iterations:4096", "iterations:999999999"),
        OF_KAFKA.replace("iterations:4096", "iterations:0"),
        OF_KAFKA.replace("passwordLength:10", "passwordLength:9"),
        OF_KAFKA.replace("passwordLength:10", "passwordLength:x"),
        OF_KAFKA.replace("initializationVector:", "initializationVector:A"),
        OF_KAFKA.replace("encryptedPassword:", "encryptedPassword:AAAA"),
        WITH_GCM.replace("authenticationTagLength:128", "authenticationTagLength:96"),
        WITH_GCM.replace("encryptedPassword:", "encryptedPassword:AAAA"),
    ],
)
def test_what_is_no_encoded_password_is_an_error_that_does_not_show_it(encoded: str) -> None:
    with pytest.raises(BadDataError, match="cannot be decoded with this secret"):
        decode_password(SECRET, encoded)


@pytest.mark.parametrize("encoded", [OF_KAFKA, WITH_GCM])
def test_another_secret_reads_nothing(encoded: str) -> None:
    with pytest.raises(BadDataError):
        decode_password("another", encoded)
