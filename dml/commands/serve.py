"""The command ``dml serve``."""

import argparse
from collections.abc import Sequence
from functools import partial
from ipaddress import ip_address
from socket import socket
from time import sleep

from dml.commands.command_parser import CommandParser, add_trust
from dml.commands.error_lines import one_line_errors, print_line
from dml.runtime import signals
from dml.runtime.errors import InputError, check_installed
from dml.runtime.paths import expand_home
from dml.runtime.text import printable

DESCRIPTION = """\
Show an index as a page in the browser: drop, choose or paste an image, or
click one of the index, to see the most similar ones. Programs search at the
same address, whose /openapi.json describes the requests. Only this machine can
reach the page unless --host says otherwise; then everybody who reaches the
port sees all images of the index."""

EXAMPLES = {
    "dml serve my_index": "the page is at http://127.0.0.1:8000, until Ctrl-C",
    "dml serve my_index --port 0": "at any free port",
    "dml serve my_index --host 0.0.0.0 --allow-host 192.168.1.20": "for others, who call it so",
}

OWN_HOSTS = ("127.0.0.1", "localhost", "[::1]")
"""The names by which a browser calls the machine that it runs on."""


def serve_index(arguments: Sequence[str]) -> None:
    """Serve the index that the arguments of ``dml serve`` name, until a signal ends it."""
    parser = CommandParser("serve", DESCRIPTION, EXAMPLES)
    parser.add_argument("index", metavar="INDEX", help="folder of an index, which dml index wrote")
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="address to serve (default: 127.0.0.1)")
    parser.add_argument(
        "--port", type=_read_port, default=8000, metavar="N", help="port; 0 is any free (default: 8000)"
    )
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="name or address by which other machines may call this one",
    )
    parser.add_argument(
        "--model", metavar="MODEL", help="run, saved model or checkpoint to embed with (default: the one in the index)"
    )
    parser.add_argument("--device", default="auto", help="device that embeds (default: a GPU if there is one)")
    parser.add_number("--max-megabytes", 20, "largest upload")
    parser.add_number("--max-megapixels", 64, "largest image")
    add_trust(parser)
    options = parser.parse_args(arguments)
    with one_line_errors():
        check_installed("fastapi", "uvicorn", extra="serve")
        from dml.data.image_files.limits import ImageLimits  # after --help: these take seconds
        from dml.inference import Index, load
        from dml.inference.serving.http_server import open_listener, running_server
        from dml.inference.serving.image_search import ServedIndex
        from dml.inference.serving.web_api import create_app

        hosts = _list_hosts(options.host, options.allow_host)
        listener = open_listener(options.host, options.port)  # before the model is loaded: mistakes are told at once
        with listener:
            model = options.model and load(options.model, device=options.device, trust=options.trust)
            limits = ImageLimits(options.max_megabytes << 20, options.max_megapixels * 1_000_000)
            open_index = partial(Index.load, options.index, model, device=options.device, trust=options.trust)
            served = ServedIndex(expand_home(options.index), open_index, limits)
            index = served.find_search().index
            if not index.model.fingerprint:
                raise InputError(f"{printable(options.index)}: built of vectors alone; --model MODEL embeds queries")
            page_hosts, pages = _list_pages(listener, options.allow_host)
            app = create_app(served, [*hosts, *page_hosts])  # --host may name another address
            with signals.deferring("stopping"), running_server(app, listener) as server:
                print_line(f"{printable(options.index)}: {len(index):,} images at {pages}; Ctrl-C ends it")
                while not (signals.is_requested() or server.done()):
                    sleep(0.1)
            server.result()


def _list_hosts(host: str, allowed: Sequence[str]) -> list[str]:
    """List the names by which browsers may call the server.

    Raises:
        InputError: if the address stands for all of the machine, and nothing says how others call it; or if a name
            stands for several.
    """
    for name in allowed:
        if "*" in name:
            raise InputError(f"--allow-host {printable(name)}: * stands for any name; give each name by itself")
        if "/" in name or (":" in name and not _is_address(name)):
            raise InputError(f"--allow-host {printable(name)}: give the name alone, without http:// and the port")
    if _is_any_address(host):
        if not allowed:
            raise InputError(
                f"--host {host}: all addresses of this machine; --allow-host NAME says by which name or address "
                "others may call it"
            )
        return [*OWN_HOSTS, *map(_bracket, allowed)]
    return [*dict.fromkeys([*OWN_HOSTS, _bracket(host), *map(_bracket, allowed)])]


def _list_pages(listener: socket, allowed: Sequence[str]) -> tuple[list[str], str]:
    """List the names by which the page is opened -> these, and the addresses of the page in words.

    No browser opens that of all addresses, such as 0.0.0.0.
    """
    address, port = listener.getsockname()[:2]
    names = [_bracket(address)]
    if _is_any_address(address):
        names = ["[::1]" if ":" in address else "127.0.0.1", *map(_bracket, allowed)]
    return names, " and ".join(f"http://{name}:{port}" for name in names)


def _is_any_address(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:  # a name
        return host == ""


def _is_address(name: str) -> bool:
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _bracket(host: str) -> str:
    """Return a name or address as it stands in a URL: with brackets if it is of IPv6."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _read_port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text} is not a port, a number from 0 to 65535")
    return int(text)
