"""Reading an https address from a file of rows, which may have been written by anybody.

The host's addresses are looked up here, all of them must be public, and the connection goes to the very address that was
checked (a second look-up could give another one). Every redirect is a new address and is checked the same way.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx

from watersmeet.core.errors import DecodeError

_NAT64 = ipaddress.ip_network("64:ff9b::/96")

Resolve = Callable[[str, int], Sequence[str]]


def resolve(host: str, port: int) -> list[str]:
    """All addresses of a host."""
    return [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


class Fetcher:
    """`fetcher(url)` gives the bytes behind an https address.

    max_bytes, seconds: of one file, all redirects included. cache: a folder where files are kept, so that a second epoch
    and a resumed run read the same bytes. transport, resolve: for tests.
    """

    def __init__(
        self,
        *,
        max_bytes: int = 32_000_000,
        seconds: float = 20.0,
        redirects: int = 4,
        cache: Path | None = None,
        transport: httpx.BaseTransport | None = None,
        resolve: Resolve = resolve,
    ) -> None:
        self.max_bytes, self.seconds, self.redirects, self.cache = max_bytes, seconds, redirects, cache
        self._resolve = resolve
        # no environment: a proxy would connect to hosts that nobody here has checked
        self._client = httpx.Client(transport=transport, trust_env=False, follow_redirects=False, timeout=seconds)

    def __call__(self, url: str) -> bytes:
        """Raises DecodeError saying what is wrong with the address or the answer."""
        kept = None if self.cache is None else self.cache / hashlib.sha256(url.encode()).hexdigest()
        if kept is not None and kept.is_file():
            return kept.read_bytes()
        content = self._fetch(url)
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            beside = kept.with_name(f".{kept.name}.{os.getpid()}")
            beside.write_bytes(content)
            beside.rename(kept)
        return content

    def _fetch(self, url: str) -> bytes:
        deadline, asked = time.monotonic() + self.seconds, url
        for _ in range(self.redirects + 1):
            request = self._request(asked, first=url)
            try:
                response = self._client.send(request, stream=True)
                try:
                    if response.is_redirect:
                        asked = str(httpx.URL(asked).join(response.headers["location"]))
                        continue
                    if response.status_code != 200:
                        raise DecodeError(f"{url}: the server answered {response.status_code}")
                    return self._body(response, url, deadline)
                finally:
                    response.close()
            except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
                raise DecodeError(f"{url}: cannot be fetched ({error or type(error).__name__})") from error
        raise DecodeError(f"{url}: more than {self.redirects} redirects")

    def _request(self, asked: str, *, first: str) -> httpx.Request:
        """A request to an address that was checked, under the name that was asked for."""
        try:
            address = httpx.URL(asked)
        except (httpx.InvalidURL, ValueError) as error:
            raise DecodeError(f"{first}: is no address ({error})") from error
        via = "" if asked == first else f" redirects to {asked}, which"
        if address.scheme != "https" or not address.host:
            raise DecodeError(f"{first}:{via} is not https; only https addresses are read")
        if address.userinfo:
            raise DecodeError(f"{first}:{via} holds a user name, which is not sent")
        port = address.port or 443
        try:
            found = list(self._resolve(address.host, port))
        except OSError as error:
            raise DecodeError(f"{first}:{via} has a host that is not known ({error})") from error
        for text in found:
            if not _public(text):
                raise DecodeError(f"{first}:{via} leads to {text}, which is not a public address; it is not read")
        if not found:
            raise DecodeError(f"{first}:{via} has a host without an address")
        name = address.netloc.decode("ascii")
        return self._client.build_request(
            "GET",
            address.copy_with(host=found[0]),
            headers={"Host": name, "Accept": "*/*", "Accept-Encoding": "identity"},
            extensions={"sni_hostname": address.host},
        )

    def _body(self, response: httpx.Response, url: str, deadline: float) -> bytes:
        content = bytearray()
        for chunk in response.iter_bytes(1 << 16):
            content += chunk
            if len(content) > self.max_bytes:
                raise DecodeError(f"{url}: is larger than the limit of {self.max_bytes:,} bytes")
            if time.monotonic() > deadline:
                raise DecodeError(f"{url}: took longer than {self.seconds:g} s")
        return bytes(content)


def _public(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address in _NAT64:
        return False  # an IPv4 address of any kind in disguise
    mapped = getattr(address, "ipv4_mapped", None) or getattr(address, "sixtofour", None)
    return bool(address.is_global and not address.is_multicast and (mapped is None or mapped.is_global))
