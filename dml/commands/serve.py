"""The command ``dml serve``."""

import argparse
from collections.abc import Sequence
from functools import partial
from ipaddress import ip_address
from time import sleep

from dml.commands.command_parser import CommandParser
from dml.commands.error_lines import print_line
from dml.runtime import signals
from dml.runtime.errors import InputError, check_installed
from dml.runtime.files import expand_home
from dml.runtime.imports import quick_imports
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
    parser.add_argument("--port", type=_read_port, default=8000, metavar="N", help="port; 0: any (default: 8000)")
    others = "name or address by which other machines may call this one"
    parser.add_argument("--allow-host", action="append", default=[], metavar="NAME", help=others)
    embeds = "run, saved model or checkpoint to embed with (default: the one in the index)"
    parser.add_argument("--model", metavar="MODEL", help=embeds)
    parser.add_device()
    parser.add_number("--max-megabytes", default=20, meaning="largest upload")
    parser.add_number("--max-megapixels", default=64, meaning="largest image")
    parser.add_trust()
    options = parser.parse(arguments)
    check_installed("fastapi", "uvicorn", extra="serve")
    with quick_imports():
        from dml.data.images import ImageLimits
        from dml.inference import Index, load
        from dml.inference.serving.image_search import ServedIndex
        from dml.inference.serving.web_api import create_app, open_listener, running_server

    with open_listener(options.host, options.port) as listener:  # before the model is loaded, as mistakes are told
        address, port = listener.getsockname()[:2]
        names = _list_names(options.host, address, options.allow_host)
        model = options.model and load(options.model, device=options.device, trust=options.trust)
        limits = ImageLimits(options.max_megabytes << 20, options.max_megapixels * 1_000_000)
        open_index = partial(Index.load, options.index, model, device=options.device, trust=options.trust)
        served = ServedIndex(expand_home(options.index), open_index, limits)
        index = served.find_search().index
        if not index.model.fingerprint:
            raise InputError(f"{printable(options.index)}: built of vectors alone; --model MODEL embeds queries")
        app = create_app(served, [*OWN_HOSTS, _bracket(options.host), *map(_bracket, options.allow_host), *names])
        pages = " and ".join(f"http://{name}:{port}" for name in names)
        with signals.deferring("stopping"), running_server(app, listener) as server:
            print_line(f"{printable(options.index)}: {len(index):,} images at {pages}; Ctrl-C ends it")
            while not (signals.is_requested() or server.done()):
                sleep(0.1)
        server.result()


def _list_names(host: str, address: str, allowed: Sequence[str]) -> list[str]:
    """List the names by which browsers open the page that is served at an address, which ``host`` stands for."""
    for name in allowed:
        if "*" in name or "/" in name or name.count(":") == 1:
            raise InputError(f"--allow-host {name}: give one name or address, without http:// and the port")
    if not ip_address(address).is_unspecified:
        return [_bracket(address)]
    if not allowed:
        raise InputError(f"--host {host}: all addresses of this machine; --allow-host NAME says how others may call it")
    return ["[::1]" if ":" in address else "127.0.0.1", *map(_bracket, allowed)]


def _bracket(host: str) -> str:
    """Return a name or address as it stands in a URL: with brackets if it is of IPv6."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _read_port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text} is not a port, a number from 0 to 65535")
    return int(text)
