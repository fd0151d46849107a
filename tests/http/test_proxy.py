"""By which proxy an address is reached, and whose certificates count: the shell's word, else the server's."""

from __future__ import annotations

import pytest

from kedge.http.proxy import ConnectionOptions, choose_connection, find_proxy, is_loopback

PROXY = "http://proxy.test:3128"
SECRET = "http://me:planted-password@proxy.test:3128"


@pytest.mark.parametrize(
    ("url", "env", "proxy"),
    [
        ("https://api.test/v1", {"HTTPS_PROXY": PROXY}, PROXY),
        ("https://api.test/v1", {"https_proxy": PROXY, "HTTPS_PROXY": "http://other.test"}, PROXY),
        ("https://api.test/v1", {"HTTP_PROXY": PROXY}, ""),
        ("http://api.test/v1", {"HTTP_PROXY": PROXY}, PROXY),
        ("https://api.test/v1", {"ALL_PROXY": "proxy.test:3128"}, PROXY),
        ("https://api.test/v1", {}, ""),
        ("https://api.test/v1", {"HTTPS_PROXY": "  "}, ""),
    ],
)
def test_the_proxy_is_that_of_the_scheme_else_the_one_for_all(url: str, env: dict[str, str], proxy: str) -> None:
    assert find_proxy(url, env) == proxy


@pytest.mark.parametrize(
    ("host", "entry", "is_excepted"),
    [
        ("api.test", "api.test", True),
        ("a.api.test", "api.test", True),
        ("a.api.test", ".api.test", True),
        ("a.api.test", "*.api.test", True),
        ("myapi.test", "api.test", False),
        ("API.test", "api.TEST", True),
        ("api.test", "other.test, api.test", True),
        ("api.test", "*", True),
        ("api.test", "", False),
        ("api.test", ",", False),
        ("api.test:8443", "api.test:8443", True),
        ("api.test:8443", "api.test:443", False),
        ("api.test", "api.test:443", True),
        ("10.1.2.3", "10.0.0.0/8", True),
        ("11.1.2.3", "10.0.0.0/8", False),
        ("10.1.2.3", "10.1.2.3", True),
        ("10.1.2.3", "1.2.3", False),
        ("10.1.2.3", "not/a-network", False),
        ("[2001:db8::1]", "2001:db8::/32", True),
        ("[2001:db8::1]", "2001:db8::1", True),
        ("[2001:db8::1]", "[2001:db8::1]:443", True),
        ("[2001:db8::1]", "2001:db8::2", False),
    ],
)
def test_what_no_proxy_names_is_reached_directly(host: str, entry: str, is_excepted: bool) -> None:
    env = {"HTTPS_PROXY": PROXY, "NO_PROXY": entry}
    assert find_proxy(f"https://{host}/v1", env) == ("" if is_excepted else PROXY)
    assert choose_connection(f"https://{host}/v1", env).is_direct == is_excepted


@pytest.mark.parametrize(
    "host", ["localhost", "a.localhost", "127.0.0.1:8080", "127.8.8.8", "[::1]:1234", "0.0.0.0:8080", "[::]"]
)
def test_no_proxy_leads_to_this_machine(host: str) -> None:
    assert is_loopback(f"http://{host}/v1")
    assert choose_connection(f"http://{host}/v1", {"HTTP_PROXY": PROXY, "ALL_PROXY": PROXY}) == ConnectionOptions(
        is_direct=True
    )


@pytest.mark.parametrize("host", ["api.test", "192.168.1.20:11434", "localhost.test", "[fe80::1]"])
def test_another_machine_is_not_this_one(host: str) -> None:
    assert not is_loopback(f"http://{host}/v1")


def test_a_shell_that_says_nothing_leaves_it_to_the_server() -> None:
    assert choose_connection("https://api.test", {"PATH": "/bin"}) == ConnectionOptions()


def test_certificates_come_from_the_variables_and_the_configuration() -> None:
    way = choose_connection("https://api.test", {"SSL_CERT_FILE": "/a.pem", "SSL_CERT_DIR": "/dir"}, "/b.pem")
    assert (way.ca_file, way.ca_dir, way.extra_ca_file) == ("/a.pem", "/dir", "/b.pem")


def test_the_password_of_a_proxy_is_not_shown() -> None:
    way = choose_connection("https://api.test", {"HTTPS_PROXY": SECRET})
    assert way.proxy == SECRET
    assert "planted" not in repr(way) + str(way) + repr([way])
